"""A batch goes through its layers in halves, and nothing else changes."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kerastf
from kerastf import ahead, alike, streams, tracing
from kerastf.blocks.stack import TransformerLayer

SMALL = {"num_layers": 3, "num_heads": 2, "dim": 16, "dropout": 0.0}
TOKENS = {"vocab_size": 11, "max_length": 9, "pad_id": 0}
FAMILIES = {
    "gpt": TOKENS,
    "bert": {**TOKENS, "head": {"name": "classifier", "num_classes": 3}},
    "transformer": {**TOKENS, "start_id": 1, "end_id": 2},
    "vit": {"image_size": 8, "patch_size": 4, "num_classes": 3},
}


@pytest.fixture
def joined(monkeypatch):
    """Halves at any size, on any processor; the tensors that were joined."""
    found, plain = [], streams.join
    monkeypatch.setattr(streams, "join", lambda parts: found.append(parts) or plain(parts))
    monkeypatch.setattr(streams, "LARGE", 1)
    monkeypatch.setattr(streams, "RATIO", 0)
    monkeypatch.setattr(streams.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    return found


def trained(family, rows=8, batch_size=4, static=False, **options):
    keras.utils.set_random_seed(1)
    model = kerastf.create_model(family, **{**SMALL, **FAMILIES[family], **options})
    rng = np.random.default_rng(0)
    inputs = model.example_inputs(model.options, rows, 7, rng)
    targets = model.example_targets(inputs, rng)
    inputs = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    model.compile(keras.optimizers.SGD(0.1))
    feed = {"x": inputs, "y": targets, "batch_size": batch_size, "shuffle": False}
    if static:
        rows = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(batch_size, drop_remainder=True)
        feed = {"x": rows, "shuffle": False}
    history = model.fit(**feed, epochs=2, verbose=0).history
    return history["loss"], model.get_weights()


@contextlib.contextmanager
def whole():
    """Within the block nothing is divided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "LARGE", 2**60)
        yield


def assert_same(found, plain):
    np.testing.assert_allclose(found[0], plain[0], rtol=2e-6)
    for a, b in zip(found[1], plain[1], strict=True):  # gradients of halves are summed in another order
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("family", "feed"), [
    *((family, feed) for family in FAMILIES for feed in ({}, {"static": True})), ("gpt", {"rows": 7}), ("gpt", {"rows": 9}),
])  # fmt: skip
def test_training_stays_the_same(joined, family, feed):
    with whole():
        plain = trained(family, **feed)
    assert not joined
    assert_same(trained(family, **feed), plain)
    assert len(joined) == {"transformer": 6}.get(family, 3)


def test_programs_of_xla_take_halves_of_any_size(monkeypatch, joined):
    monkeypatch.setattr(tracing, "LARGE", 1)
    for rows in (7, 9):  # the last batch: three rows, or one, of which the second half has none
        found = trained("gpt", rows=rows, num_layers=1)
        with whole():
            assert_same(found, trained("gpt", rows=rows, num_layers=1))
    assert len(joined) == 2


def test_layers_take_the_halves_of_the_layer_before(joined):
    trained("gpt", static=True)
    names = [op.type for op in joined[0][0].graph.get_operations()]
    assert names.count("SplitV") == 2  # what the embedding gives, and the mask


def test_each_half_has_random_numbers_of_its_own_and_the_next_step_others(joined):
    layer = TransformerLayer(
        {"name": "multi_head", "num_heads": 2, "dropout": 0.5}, feedforward={"name": "mlp", "dropout": 0.5}
    )
    half = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    x = np.concatenate([half, half])
    layer.build(x.shape)
    step = tf.function(lambda x: layer(x, training=True), autograph=False)
    with tracing.fusing():
        first, second = ops.convert_to_numpy(step(x)), ops.convert_to_numpy(step(x))
    assert len(joined) == 1
    assert np.abs(first[:2] - first[2:]).max() > 0.01
    assert np.abs(first - second).max() > 0.01


class Own(keras.layers.Layer):
    """Doubles; adds a loss, or keeps a mean."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def build(self, shape):
        self.mean = self.add_weight(shape=(), initializer="zeros", trainable=False, name="mean")

    def call(self, x):
        return alike.call(self, self.compute, x)

    def compute(self, x):
        if self.what == "loss":
            self.add_loss(ops.square(ops.mean(x)))
        if self.what == "state":
            self.mean.assign(0.5 * self.mean + 0.5 * ops.mean(ops.square(x)))
        return 2 * x


@pytest.mark.parametrize(("what", "divided"), [("loss", 0), ("state", 0), ("neither", 1)])
def test_what_is_of_the_whole_batch_stays_so(joined, what, divided):
    x = np.random.default_rng(0).normal(size=(4, 5, 16)).astype("float32")
    layer = Own(what)
    layer.build(x.shape)

    @tf.function(autograph=False)
    def step(x):
        found = layer(x)
        return found, ops.sum(ops.stack(layer.losses)) if what == "loss" else ops.zeros(())

    with tracing.fusing():
        found, loss = (ops.convert_to_numpy(v) for v in step(x))
    assert len(joined) == divided
    np.testing.assert_array_equal(found, 2 * x)
    np.testing.assert_allclose(loss, np.mean(x) ** 2 if what == "loss" else 0, rtol=1e-5)
    np.testing.assert_allclose(layer.mean, np.mean(x**2) / 2 if what == "state" else 0, rtol=1e-5)


@pytest.mark.parametrize(("shapes", "rows", "divided"), [
    ([(4, 6)], None, True), ([(3, 6)], None, False), ([(4, 5)], None, False), ([(None, 6)], None, False), ([(None, 6)], 4, True),
    ([(None, 6)], 5, False), ([(4, None)], None, False), ([(4, 6), None, (4, 2)], None, True), ([(4, 6), (1, 2)], None, False),
    ([(4, 6), (None, 2)], 4, False), ([(None, 6), (None, 2)], 4, True), ([(None, 6), (1, 2)], 4, False),
])  # fmt: skip
def test_batches_of_an_even_and_large_number_of_rows_are_divided(monkeypatch, joined, shapes, rows, divided):
    monkeypatch.setattr(streams, "LARGE", 12)
    found = []
    given = [tf.TensorSpec(shape) for shape in shapes if shape]

    @tf.function(input_signature=given, autograph=False)
    def step(*tensors):
        left = iter(tensors)
        found.append(streams.divides([next(left) if shape else None for shape in shapes], []))
        return tensors

    with tracing.fusing(), ahead.expecting(np.ones((rows, 1)) if rows else None, rows):
        step.get_concrete_function()
    assert found == [divided]


@pytest.mark.parametrize(("weights", "divided"), [((4, 6), True), ((5, 5), False)])
def test_a_layer_with_more_weights_than_the_batch_has_numbers_takes_it_whole(monkeypatch, joined, weights, divided):
    monkeypatch.setattr(streams, "RATIO", 1)
    with tracing.fusing():
        found = tf.function(lambda x: tf.constant(streams.divides([x], [tf.ones(weights)])), autograph=False)(
            tf.ones((4, 6))
        )
    assert bool(found) == divided


def test_layers_that_share_a_trace_share_it_for_both_halves(monkeypatch, joined):
    traced, plain = [], alike._Apart.__call__
    monkeypatch.setattr(alike._Apart, "__call__", lambda self, *given: traced.append(self) or plain(self, *given))
    trained("gpt", static=True, dropout=0.1)
    assert len(joined) == 3 and len(traced) == 1


@pytest.mark.parametrize("where", ["outside of fit", "one core", "no oneDNN"])
def test_nothing_is_divided_where_nothing_is_won(monkeypatch, joined, where):
    if where == "one core":
        monkeypatch.setattr(streams.os, "cpu_count", lambda: 1)
    if where == "no oneDNN":
        monkeypatch.setattr(tracing, "one_dnn", lambda: False)
    found = []

    @tf.function(autograph=False)
    def step(x):
        found.append(streams.divides([x], []))
        return x

    with contextlib.nullcontext() if where == "outside of fit" else tracing.fusing():
        step(tf.ones((4, 6)))
    assert found == [False]
