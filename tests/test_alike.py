"""Layers that are alike are traced once, and nothing else changes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kerastf
from kerastf import alike, compat, tracing

SMALL = {"num_layers": 3, "num_heads": 2, "dim": 16, "dropout": 0.1}
TOKENS = {"vocab_size": 11, "max_length": 9, "pad_id": 0}
FAMILIES = {
    "gpt": TOKENS,
    "bert": {**TOKENS, "head": {"name": "classifier", "num_classes": 3}},
    "transformer": {**TOKENS, "start_id": 1, "end_id": 2},
    "vit": {"image_size": 8, "patch_size": 4, "num_classes": 3, "drop_path": 0.2},
}


@pytest.fixture
def traced(monkeypatch):
    """The layers that were traced apart."""
    found, plain = [], alike._Apart.__call__

    def spy(self, *args):
        found.append(self.layer.name)
        return plain(self, *args)

    monkeypatch.setattr(alike._Apart, "__call__", spy)
    return found


def trained(family, inside, **options):
    keras.utils.set_random_seed(1)
    model = kerastf.create_model(family, **{**SMALL, **FAMILIES[family], **options})
    rng = np.random.default_rng(0)
    inputs = model.example_inputs(model.options, 8, 7, rng)
    targets = model.example_targets(inputs, rng)
    inputs = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    model.compile(keras.optimizers.SGD(0.1))  # others make much of noise in gradients that should be 0
    with compat.switched(alike._inside, inside):
        history = model.fit(inputs, targets, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return history["loss"], model.get_weights()


@pytest.mark.parametrize("family", FAMILIES)
def test_training_stays_the_same(traced, family):
    plain = trained(family, inside=True)
    assert not traced
    found = trained(family, inside=False)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-6)
    for a, b in zip(found[1], plain[1], strict=True):  # gradients of a context are summed in another order
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    kinds = {"gpt": 1, "bert": 1, "transformer": 2, "vit": 3}  # stochastic depth differs from layer to layer
    assert len(set(traced)) == kinds[family]


def test_in_fit_alone_a_layer_stays_a_function_of_the_graph(monkeypatch):
    found, plain = [], tracing.trace

    def trace(function, **options):
        made = plain(function, **options)
        found.extend([made] if isinstance(function, alike._Apart) else [])
        return made

    monkeypatch.setattr(tracing, "trace", trace)
    model = kerastf.create_model("gpt", **SMALL, **TOKENS)
    tokens = np.ones((4, 7), "int32")
    model.compile("sgd")
    model.fit(tokens, tokens, verbose=0)
    in_fit, found[:] = list(found), []
    tf.function(lambda x: model(x, training=True))(tokens)
    for functions, kept in ((in_fit, True), (found, False)):  # converters to other formats know no such functions
        made = [f for function in functions for f in function._list_all_concrete_functions()]
        assert made and all(f.function_def.attr["_noinline"].b == kept for f in made)


def test_a_step_under_xla_is_traced_whole(traced):
    """With a function inside, XLA would compile the step anew each time."""
    model = kerastf.create_model("gpt", **{**SMALL, **TOKENS, "num_layers": 2})
    tokens = np.ones((4, 8), "int32")
    model.compile("sgd", jit_compile=True)
    model.fit(tokens, tokens, verbose=0)
    assert not traced and not compat.compiling()


def test_layers_that_differ_are_traced_apart(traced):
    attention = [{"name": "multi_head"}, {"name": "window", "window": 3}, {"name": "multi_head"}]
    trained("gpt", inside=False, attention=attention)
    assert traced == ["layer_0", "layer_1"]


def two_layers(change):
    model = kerastf.create_model("gpt", **SMALL, **TOKENS)
    a, b = model.get_layer("layer_0"), model.get_layer("layer_1")
    assert alike.alike(a, b)
    change(b)
    return alike.alike(a, b)


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: setattr(layer.attention.drop_weights, "rate", 0.5),
        lambda layer: setattr(layer.feedforward, "activate", lambda x: x),
        lambda layer: setattr(layer, "norm_order", "post"),
        lambda layer: setattr(layer.feedforward, "trainable", False),
        lambda layer: setattr(layer.attention.qkv.bias, "trainable", False),
        lambda layer: setattr(layer.attention, "mine", object()),
        lambda layer: setattr(layer.attention.qkv, "autocast", False),
        lambda layer: layer.attention.qkv.enable_lora(2),
        lambda layer: setattr(layer, "feedforward_norm", layer.attention_norm),
        lambda layer: layer.feedforward.expand.quantize("int8"),
    ],
)
def test_whatever_is_changed_later_is_seen(change):
    assert not two_layers(change)


class Counted(keras.layers.Layer):
    """Counts its calls, and adds a loss."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(), initializer="ones", name="kernel")
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=None):
        return alike.call(self, self.compute, x) if training else self.compute(x)

    def compute(self, x):
        self.calls.assign_add(1.0)
        y = x * self.kernel
        self.add_loss(0.1 * ops.mean(ops.square(y)))
        return y


def test_losses_and_states_come_out(traced):
    x = keras.Input((2,))
    layers = [Counted(name="a"), Counted(name="b")]
    model = keras.Model(x, layers[1](layers[0](x)))
    calls = [float(layer.calls) for layer in layers]
    model.compile(keras.optimizers.SGD(0.5), loss=lambda y, p: 0.0 * ops.sum(p))
    losses = model.fit(np.full((4, 2), 2.0), np.zeros(4), batch_size=4, epochs=2, verbose=0).history["loss"]
    assert set(traced) == {"a"}
    assert [float(layer.calls) for layer in layers] == [n + 2 for n in calls]
    np.testing.assert_allclose(losses[0], 0.1 * 4 + 0.1 * 4, rtol=1e-6)
    # d/da of 0.1 (4 a^2 + 4 a^2 b^2) = 1.6, d/db = 0.8, at a = b = 1
    a, b = 1 - 0.5 * 1.6, 1 - 0.5 * 0.8
    np.testing.assert_allclose(losses[1], 0.4 * a**2 + 0.4 * (a * b) ** 2, rtol=1e-5)


def test_outside_of_a_step_nothing_is_traced(traced):
    layer = Counted()
    layer(np.ones((1, 2), "float32"), training=True)
    assert not traced
    tf.function(lambda x: layer(x, training=True))(tf.ones((1, 2)))
    assert traced
