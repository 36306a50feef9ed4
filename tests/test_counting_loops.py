"""Costs of loops: recurrent networks by hand, each loop of Keras, one of unknown length, a planted mistake."""

import contextlib

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import counting

# --- recurrent networks


@pytest.mark.parametrize(
    "cell, product, rest",
    # Per step and row: the product with the last output, and what is done to each unit.
    [
        ("simple", lambda u: 2 * u * u, lambda u: 2 * u),  # add, tanh
        ("lstm", lambda u: 2 * u * 4 * u, lambda u: (4 + 3 + 1 + 3 + 1 + 1) * u),  # add; gates, tanh; c: * * +; tanh, *
        ("gru", lambda u: 2 * u * 3 * u, lambda u: (2 + 2 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1) * u),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_networks_by_hand(cell, product, rest, bidirectional):
    batch, length, width, units, vocabulary, gates = 3, 17, 24, 40, 50, {"simple": 1, "lstm": 4, "gru": 3}[cell]
    head = "language_model" if not bidirectional else {"name": "tagger", "num_classes": vocabulary}
    cost = kerastf.cost("rnn", vocab_size=vocabulary, dim=width, units=units, num_layers=1, cell=cell, head=head,
                        bidirectional=bidirectional, batch_size=batch, length=length)  # fmt: skip
    projection = 2 * width * gates * units + gates * units
    directions = 2 if bidirectional else 1
    loop = sum(row.flops for row in cost.layers if row.path.startswith("layer_0"))
    assert loop == directions * batch * length * (projection + product(units) + rest(units))
    out = 2 * directions * units * vocabulary + (vocabulary if bidirectional else 0)
    assert sum(row.flops for row in cost.layers if row.path.startswith("head")) == batch * length * out


def test_seq2seq_grows_with_both_lengths():
    def count(source, target):
        inputs = {"source": np.zeros((1, source), "int32"), "target": np.zeros((1, target), "int32")}
        return kerastf.cost("seq2seq.bahdanau", vocab_size=500, inputs=inputs).flops

    a, b, c, d = count(10, 10), count(20, 10), count(10, 20), count(20, 20)
    # Attention looks at all pairs: the corner that is left after both lengths is their product, U wide.
    units = 512
    pairs = d - b - c + a
    assert pairs % 100 == 0 and pairs / 100 > 3 * units
    assert count(30, 10) - b == b - a  # linear in the source


# --- loops


class Loops(keras.layers.Layer):
    """Ten products of a square matrix, by one of Keras's loops."""

    def __init__(self, by, **kwargs):
        super().__init__(**kwargs)
        self.by = by

    def build(self, x_shape):
        self.matrix = self.add_weight(shape=(x_shape[-1], x_shape[-1]), name="matrix")

    def call(self, x):
        def turn(y):
            return ops.matmul(y, self.matrix)

        if self.by == "python":
            for _ in range(10):
                x = turn(x)
            return x
        if self.by == "fori":
            return ops.fori_loop(0, 10, lambda i, y: turn(y), x)
        if self.by == "while":
            return ops.while_loop(lambda y: True, lambda y: (turn(y),), (x,), maximum_iterations=10)[0]
        if self.by == "scan":
            return ops.scan(lambda carry, _: (turn(carry), carry), x, length=10)[0]
        if self.by == "map":
            return ops.map(turn, ops.broadcast_to(x, (10, *x.shape)))[0]
        if self.by == "vectorized_map":
            return ops.vectorized_map(turn, ops.broadcast_to(x, (10, *x.shape)))[0]
        if self.by == "cond":
            return ops.cond(ops.sum(x) > 0, lambda: Loops.repeat(turn, x, 10), lambda: turn(x))
        if self.by == "switch":
            return ops.switch(ops.cast(x[0, 0], "int32"), [turn, lambda y: Loops.repeat(turn, y, 10)], x)
        if self.by == "rnn":
            return ops.sum(
                keras.layers.RNN(_Turn(turn, x.shape[-1]), return_sequences=True).call(
                    ops.zeros((4, 10, 8)) + x[:, None]
                ),
                axis=1,
            )
        raise ValueError(self.by)

    @staticmethod
    def repeat(turn, x, times):
        for _ in range(times):
            x = turn(x)
        return x

    def compute_output_shape(self, x_shape):
        return x_shape


class _Turn:
    def __init__(self, turn, units):
        self.turn, self.state_size, self.output_size = turn, units, units
        self.compute_dtype = "float32"

    def get_initial_state(self, batch_size=None):
        return [ops.zeros((batch_size, self.state_size))]

    def __call__(self, x, states):
        h = self.turn(x)
        return h, [h]

    call = __call__


@pytest.mark.parametrize("by", ["python", "fori", "while", "scan", "map", "vectorized_map", "cond", "switch", "rnn"])
def test_a_loop_counts_as_often_as_it_runs(by):
    x = keras.Input((8,))
    cost = kerastf.cost(keras.Model(x, Loops(by)(x)), batch_size=4)
    assert not cost.missed
    products = 10 * 2 * 4 * 8 * 8
    extra = {"cond": 4 * 8 + 1, "rnn": 2 * 10 * 4 * 8}.get(by, 0)  # the sums
    assert cost.flops == products + extra


def test_a_loop_of_unknown_length_is_named():
    class Until(keras.layers.Layer):
        def call(self, x):
            return ops.while_loop(lambda y: ops.sum(y) < 5, lambda y: (y * 2,), (x,))[0]

        def compute_output_shape(self, x_shape):
            return x_shape

    x = keras.Input((8,))
    assert kerastf.cost(keras.Model(x, Until()(x))).missed == ["WhileLoop"]


# --- a planted mistake


def test_a_forgotten_loop_is_caught(monkeypatch):
    @contextlib.contextmanager
    def once(self, count):
        yield

    monkeypatch.setattr(counting._Counter, "repeated", once)
    with pytest.raises(AssertionError):
        test_recurrent_networks_by_hand("lstm", lambda u: 2 * u * 4 * u, lambda u: 13 * u, False)
    with pytest.raises(AssertionError):
        test_a_loop_counts_as_often_as_it_runs("scan")
