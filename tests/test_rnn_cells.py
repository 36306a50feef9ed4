"""Recurrent cells and layers: against NumPy, in Keras's loop, over padding, cells of others, the fading gradient."""

import math

import keras
import numpy as np
import pytest
from keras import ops
from tensors import numpy
from tiny_rnn import CELLS, TINY

import kerastf
from kerastf.blocks.recurrent import Recurrent, RecurrentLayer, gradient_by_distance
from kerastf.errors import InputError
from kerastf.testing import check_block, check_model
from kerastf.testing.subjects import shake


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def numpy_step(name, weights, x, h, c):
    """One step of a cell, one unit at a time."""
    kernel, recurrent, bias = weights["kernel"], weights["recurrent_kernel"], weights["bias"]
    units = len(h)
    new_h, new_c = np.zeros(units), np.zeros(units)

    def part(gate, u):
        n = gate * units + u
        return sum(x[i] * kernel[i, n] for i in range(len(x))) + bias[n], sum(
            h[i] * recurrent[i, n] for i in range(units)
        )

    for u in range(units):
        if name == "simple":
            new_h[u] = math.tanh(sum(part(0, u)))
        elif name == "lstm":
            remember, forget, fresh, shown = (sum(part(gate, u)) for gate in range(4))
            new_c[u] = sigmoid(forget) * c[u] + sigmoid(remember) * math.tanh(fresh)
            new_h[u] = sigmoid(shown) * math.tanh(new_c[u])
        else:
            reset, update = sigmoid(sum(part(0, u))), sigmoid(sum(part(1, u)))
            mine, theirs = part(2, u)
            candidate = math.tanh(mine + reset * (theirs + weights["recurrent_bias"][u]))
            new_h[u] = candidate + update * (h[u] - candidate)
    return new_h, new_c


def numpy_run(name, weights, xs):
    units = weights["recurrent_kernel"].shape[0]
    h, c, outputs = np.zeros(units), np.zeros(units), []
    for x in xs:
        h, c = numpy_step(name, weights, x, h, c)
        outputs.append(h)
    return np.stack(outputs)


def weights_at(layer, path=""):
    found = {w.path: numpy(w).astype("float64") for w in layer.weights}
    return {p.rsplit("/", 1)[1]: w for p, w in found.items() if path in p}


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_equals_numpy(name):
    cell = kerastf.create_block("cell", name, units=4)
    rng = np.random.default_rng(0)
    x, states = rng.normal(size=(3, 5)).astype("float32"), rng.normal(size=(2, 3, 4)).astype("float32")
    states = states[: len(cell.state_size)]
    cell(x, list(states))
    shake(cell, 1)
    output, after = cell(x, list(states))
    for row in range(3):
        c = states[1][row] if name == "lstm" else None
        want_h, want_c = numpy_step(name, weights_at(cell), x[row], states[0][row], c)
        np.testing.assert_allclose(numpy(output)[row], want_h, atol=1e-5)
        np.testing.assert_allclose(numpy(after[0])[row], want_h, atol=1e-5)
        if name == "lstm":
            np.testing.assert_allclose(numpy(after[1])[row], want_c, atol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_a_keras_cell(name):
    """In `keras.layers.RNN` it does what our layer does, which projects the whole sequence first."""
    ours = Recurrent({"name": name, "units": 4})
    x = np.random.default_rng(0).normal(size=(3, 7, 5)).astype("float32")
    want = numpy(ours(x))
    theirs = keras.layers.RNN(kerastf.create_block("cell", name, units=4), return_sequences=True)
    theirs(x)
    theirs.set_weights(ours.get_weights())
    np.testing.assert_allclose(numpy(theirs(x)), want, atol=1e-6)


def test_the_forget_bias():
    for flag, want in ((True, 1), (False, 0)):
        cell = kerastf.create_block("cell", "lstm", units=3, unit_forget_bias=flag)
        cell.build((None, 2))
        assert numpy(cell.bias).tolist() == [0] * 3 + [want] * 3 + [0] * 6


@pytest.mark.parametrize("name", CELLS)
def test_a_bidirectional_stack_equals_numpy(name):
    model = kerastf.create_model("rnn", **TINY, cell=name, bidirectional=True, head="features")
    shake(model, 1)
    tokens = [3, 1, 4, 1, 5, 9]
    x = weights_at(model, "embedding/")["matrix"][tokens]
    for layer in ("layer_0", "layer_1"):
        there = numpy_run(name, weights_at(model, f"{layer}/forwards"), x)
        back = numpy_run(name, weights_at(model, f"{layer}/backwards"), x[::-1])[::-1]
        x = np.concatenate([there, back], axis=1)
    np.testing.assert_allclose(numpy(model(ops.array([tokens])))[0], x, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_padding_keeps_the_state(name, reverse):
    layer = Recurrent({"name": name, "units": 4}, reverse=reverse)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 5, 3)).astype("float32")
    want, states = layer.run(x)
    for before, after in ((0, 3), (2, 0), (1, 2)):
        padded = rng.normal(size=(3, 5 + before + after, 3)).astype("float32")
        padded[:, before : before + 5] = x
        mask = np.zeros((3, 5 + before + after), dtype="bool")
        mask[:, before : before + 5] = True
        got, kept = layer.run(padded, mask=ops.convert_to_tensor(mask))
        np.testing.assert_allclose(numpy(got)[:, before : before + 5], numpy(want), atol=1e-6)
        assert not np.any(numpy(got)[~mask])
        for a, b in zip(kept, states, strict=True):
            np.testing.assert_allclose(numpy(a), numpy(b), atol=1e-6)


def plugin_cell():
    @kerastf.register("cell", "plain")
    class Plain(keras.layers.Layer):
        """Leaky sum, with `call` only.

        Args:
            units: Width.
        """

        def __init__(self, units: int, **kwargs):
            super().__init__(**kwargs)
            self.units = self.state_size = self.output_size = units

        def build(self, x_shape):
            self.kernel = self.add_weight(shape=(x_shape[-1], self.units), name="kernel")

        def call(self, x, states, training=None):
            h = 0.9 * states[0] + ops.matmul(x, self.kernel)
            return ops.tanh(h), [h]

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    return Plain


def test_a_cell_with_call_only():
    plugin_cell()
    check_block("cell", "plain", units=4)
    check_model("rnn", cell="plain", only=["config", "gradients", "padding", "steps", "generate", "precision"])


def test_a_keras_cell():
    @kerastf.register("cell", "keras_lstm")
    class Cell(keras.layers.LSTMCell):
        def __init__(self, units: int, **kwargs):
            super().__init__(units, **kwargs)

        def get_config(self):
            return {"name": self.name, "dtype": self.dtype, "units": self.units}

    check_model("rnn", cell="keras_lstm", only=["gradients", "save", "padding", "steps", "generate"])


def test_config_round_trip_of_the_layers():
    for layer in (
        Recurrent({"name": "gru", "units": 3}, reverse=True),
        RecurrentLayer({"name": "lstm", "units": 3}, norm="rms", bidirectional=True, residual=True, dropout=0.1),
    ):
        again = type(layer).from_config(layer.get_config())
        x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
        layer(x), again(x)
        again.set_weights(layer.get_weights())
        np.testing.assert_array_equal(numpy(layer(x)), numpy(again(x)))
        assert again.get_config() == layer.get_config()
        assert layer.compute_output_shape((2, 4, 6)) == tuple(layer(x).shape)


@pytest.mark.parametrize("name", CELLS)
def test_gradient_by_distance_is_that_of_differences(name):
    layer = Recurrent({"name": name, "units": 3})
    x = np.random.default_rng(0).normal(size=(4, 2)).astype("float32")
    layer(x[None])
    shake(layer, 1)
    found = gradient_by_distance(layer, x)
    for distance in range(4):
        slopes = []
        for channel in range(2):
            ends = []
            for nudge in (-1e-2, 1e-2):
                moved = x.copy()
                moved[3 - distance, channel] += nudge
                ends.append(numpy(layer(moved[None]))[0, -1])
            slopes.append((ends[1] - ends[0]) / 2e-2)
        assert found[distance] == pytest.approx(np.linalg.norm(slopes), rel=1e-2, abs=1e-4)


def test_the_gradient_of_a_small_recurrent_matrix_fades():
    layer = Recurrent({"name": "simple", "units": 4})
    layer(ops.zeros((1, 20, 2)))
    layer.cell.recurrent_kernel.assign(0.5 * np.eye(4))
    norms = gradient_by_distance(layer, np.zeros((20, 2), dtype="float32"))
    np.testing.assert_allclose(norms, norms[0] * 0.5 ** np.arange(20), rtol=1e-4)


def test_the_picture(tmp_path):
    from kerastf import plots

    plots.gradient_by_distance({"simple": [1, 0.5, 0.0], "lstm": [1, 0.9, 0.8]}, path=tmp_path / "fading.png")
    assert (tmp_path / "fading.png").stat().st_size > 5000
    with pytest.raises(InputError, match="Received: curves={}"):
        plots.gradient_by_distance({})
