"""A weight that learns after a loop learns what it would learn within it, and only where nothing else is known."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays

import kerastf
from kerastf import looped, tracing
from kerastf.blocks.cell import LSTM, Cell
from kerastf.blocks.recurrent import Recurrent

CELLS = {
    "simple": {"name": "simple", "units": 5}, "lstm": {"name": "lstm", "units": 5}, "gru": {"name": "gru", "units": 5},
    "projected_lstm": {"name": "projected_lstm", "units": 6, "projection": 4, "cell_clip": 0.5},
}  # fmt: skip
MASKS = {
    "none": None, "right": [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], "left": [[1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]],
    "holes": [[1, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1]],
}  # fmt: skip


def slopes(monkeypatch, layer, x, large, mask=None, states=None):
    """Outputs and last states, and the slopes of input and weights, as `fit` would find them; and how often it taught."""
    monkeypatch.setattr(looped, "LARGE", large)
    taught, teach = [], looped.teach
    monkeypatch.setattr(looped, "teach", lambda *given: taught.append(given) or teach(*given))
    factors = arrays(7, (3, 4, layer.output_size), (3, layer.output_size))

    @tf.function(autograph=False)
    def traced(x, *states):
        with tf.GradientTape() as tape:
            tape.watch([x, *states])
            outputs, last = layer.run(x, list(states) or None, mask=mask)
            total = tf.reduce_sum(outputs * factors[0]) + tf.reduce_sum(last[0] * factors[1])
        return outputs, last, tape.gradient(total, [x, *states, *(v.value for v in layer.trainable_variables)])

    with tracing.fusing():
        outputs, last, found = traced(tf.constant(x), *map(tf.constant, states or ()))
    monkeypatch.setattr(looped, "teach", teach)
    return [outputs, *last, *found], len(taught)


def layer_of(spec, reverse=False):
    keras.utils.set_random_seed(2)
    layer = Recurrent(spec, reverse=reverse)
    layer.build((3, 4, 6))
    for v in layer.trainable_variables:  # biases that start as zeros would hide what is lost of them
        v.assign(v + 0.1 * np.random.default_rng(1).normal(size=v.shape))
    return layer


@pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", CELLS)
def test_slopes_are_those_of_a_loop_that_teaches_itself(monkeypatch, name, mask, reverse):
    layer, (x,) = layer_of(CELLS[name], reverse), arrays(1, (3, 4, 6))
    mask = None if MASKS[mask] is None else np.array(MASKS[mask], "bool")
    want, none = slopes(monkeypatch, layer, x, 2**60, mask)
    got, once = slopes(monkeypatch, layer, x, 0, mask)
    assert (none, once) == (0, 1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CELLS)
def test_a_loop_may_go_on_from_other_states(monkeypatch, name):
    layer, (x,) = layer_of(CELLS[name]), arrays(1, (3, 4, 6))
    states = arrays(5, *((3, n) for n in layer.cell.state_size))
    (want, _), (got, once) = (slopes(monkeypatch, layer, x, n, states=states) for n in (2**60, 0))
    assert once == 1
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


class Halved(LSTM):
    """A cell that does something else with what `recur` gives."""

    def advance(self, projected, states):
        return super().advance(projected + self.recur(states[0]) / 2, states)


class Warm(LSTM):
    """A cell that starts from ones."""

    def get_initial_state(self, batch_size=None):
        return [s + 1 for s in super().get_initial_state(batch_size)]


@pytest.mark.parametrize("cls", [Halved, Warm])
def test_a_cell_that_changes_what_is_known_teaches_within_the_loop(monkeypatch, cls):
    layer, (x,) = layer_of(CELLS["lstm"]), arrays(1, (3, 4, 6))
    layer.cell.__class__ = cls
    mask = np.array(MASKS["left"], "bool")
    (want, _), (got, times) = (slopes(monkeypatch, layer, x, n, mask) for n in (2**60, 0))
    assert times == 0 and not layer.cell.learns_after()
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_states_and_padding_together_are_left_to_the_loop(monkeypatch):
    layer, (x,) = layer_of(CELLS["gru"]), arrays(1, (3, 4, 6))
    states = arrays(5, (3, 5))
    assert slopes(monkeypatch, layer, x, 0, np.array(MASKS["left"], "bool"), states)[1] == 0


def test_only_large_weights_and_only_in_fit(monkeypatch):
    kernel = keras.Variable(np.zeros((4, 8), "float32"))
    for large, fitting, pays in ((32, True, True), (33, True, False), (32, False, False)):
        monkeypatch.setattr(looped, "LARGE", large)
        monkeypatch.setattr(tracing, "trains_on_cpu", lambda fitting=fitting: fitting)
        assert looped.pays(kernel) is pays


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_training_is_the_same(monkeypatch, cell, dtype):
    x, y = np.random.default_rng(0).integers(1, 9, (2, 12, 7)).astype("int32")
    x[::3, 5:] = 0
    found = []
    for large in (0, 2**60):
        monkeypatch.setattr(looped, "LARGE", large)
        keras.utils.set_random_seed(1)
        options = {"dim": 8, "units": 8, "num_layers": 2, "pad_id": 0, "dropout": 0.1}
        model = kerastf.create_model("rnn", vocab_size=9, cell=cell, dtype=dtype, **options)
        model.compile(keras.optimizers.Adam(0.01))
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history["loss"]
        found.append([history, *(keras.ops.convert_to_numpy(v) for v in model.trainable_variables)])
    tolerance = 1e-4 if dtype == "float32" else 0.03
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


def test_cells_that_may_are_cells_of_ours():
    assert all(layer_of(spec).cell.learns_after() for spec in CELLS.values())
    assert not Cell(3).learns_after()
