"""The loss from features equals that of all logits, forward and backward, and `fit` uses it where it may."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from amounts import examples
from arrays import arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf import chunked_loss, kernels, tracing
from kerastf.blocks.head import LanguageModel
from kerastf.models import from_features
from kerastf.models.gpt import GPT


@settings(max_examples=examples(12, 25), deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 40), vocab=st.integers(2, 30), logits=st.sampled_from([8, 64, 10_000]), shift=st.booleans(),
    unknown=st.booleans(), fitting=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_loss_from_features_equals_that_of_all_logits(rows, vocab, logits, shift, unknown, fitting, seed):
    features, matrix, moved = arrays(seed, (rows, 6), (vocab, 6), (vocab,))
    rng = np.random.default_rng(seed)
    labels, weights = rng.integers(0, vocab, rows).astype("int32"), rng.random(rows).astype("float32")
    shifts = [moved] if shift else []

    def pieces(f, m, *s):
        loss, chosen = chunked_loss.cross_entropy(f, m, s[0] if s else None, labels, weights)
        return loss * 3.0, chosen

    def whole(f, m, *s):
        x = ops.matmul(f, ops.transpose(m)) + (s[0] if s else 0.0)
        losses = ops.sparse_categorical_crossentropy(labels, x, from_logits=True)
        return ops.sum(losses * weights) * 3.0, ops.argmax(x, axis=-1)

    def run(function):
        def go(*given):
            with tf.GradientTape() as tape:
                tape.watch(given)
                loss, chosen = function(*given)
            return loss, chosen, tape.gradient(loss, given)

        shapes = [tf.TensorSpec((None if unknown else rows, 6))] + [tf.TensorSpec(x.shape) for x in (matrix, *shifts)]
        return tf.function(go, input_signature=shapes, autograph=False)(features, matrix, *shifts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_loss, "LOGITS", logits)
        with tracing.fusing() if fitting else contextlib.nullcontext():
            got = run(pieces)
        want = run(whole)
    assert float(got[0]) == pytest.approx(float(want[0]), rel=1e-5, abs=1e-5)
    np.testing.assert_array_equal(got[1], want[1])
    for a, b in zip(got[2], want[2], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize("logits", [10_000, 60], ids=["at once", "in pieces"])
def test_in_mixed_precision_the_matrix_has_a_gradient_of_its_own_precision(monkeypatch, logits):
    monkeypatch.setattr(chunked_loss, "LOGITS", logits)
    features, matrix, shift = arrays(3, (16, 8), (12, 8), (12,))
    labels, weights = np.arange(16, dtype="int32") % 12, np.linspace(0.1, 1, 16, dtype="float32")
    features = tf.cast(features, "bfloat16")

    @tf.function(autograph=False)
    def traced(*given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            loss = 3.0 * chunked_loss.cross_entropy(*given, labels, weights)[0]
        return tape.gradient(loss, given)

    with tracing.fusing():
        found = traced(features, tf.constant(matrix), tf.constant(shift))
    assert [x.dtype.name for x in found] == ["bfloat16", "float32", "float32"]
    f, m = (np.array(tf.cast(tf.cast(x, "bfloat16"), "float64")) for x in (features, matrix))
    x = f @ m.T + shift
    slope = np.exp(x - x.max(1, keepdims=True))
    slope = 3 * weights[:, None] * (slope / slope.sum(1, keepdims=True) - np.eye(12)[labels])
    for got, want in zip(found, (slope @ m, slope.T @ f, slope.sum(0)), strict=True):
        np.testing.assert_allclose(np.array(tf.cast(got, "float64")), want, atol=2**-6 * np.abs(want).max())


@pytest.mark.parametrize("classes", [7, 600])
@pytest.mark.parametrize("rows", [1, 4, None])
@pytest.mark.parametrize("scale", [1e-3, 5.0, 1e4])
def test_cross_entropies_in_fit_equal_those_of_numpy(rows, scale, classes):
    (logits,) = arrays(3, (rows or 5, classes))
    logits, labels = logits * scale, np.arange(rows or 5).astype("int32") % 7
    logits[0, 6] = -np.inf  # a class that cannot be

    @tf.function(input_signature=[tf.TensorSpec((rows, classes)), tf.TensorSpec((rows,), "int32")], autograph=False)
    def traced(logits, labels):
        return kernels.cross_entropies(tf.identity(logits), labels, classes)

    given = tf.constant(logits)
    with tracing.fusing():
        losses, slopes, chosen = traced(given, labels)
    kinds = [op.type for op in traced.get_concrete_function().graph.get_operations()]
    assert "InplaceSub" in kinds and "SparseSoftmaxCrossEntropyWithLogits" not in kinds
    shifted = logits.astype("float64") - logits.max(-1, keepdims=True)
    shares = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    want = np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(labels)), labels]
    np.testing.assert_allclose(losses, want, rtol=1e-6, atol=1e-6 * max(1, scale / 10))
    np.testing.assert_allclose(slopes, shares - np.eye(classes)[labels], atol=1e-6)
    np.testing.assert_array_equal(chosen, logits.argmax(-1))
    np.testing.assert_array_equal(given, logits)  # what was given is not written over


@given(
    rows=st.integers(1, 4), classes=st.sampled_from([1, 7, 256, 512, 600, 1021]), levels=st.integers(1, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_likeliest_class_is_the_first_of_the_highest(rows, classes, levels, seed):
    logits = np.random.default_rng(seed).integers(-levels, 1, (rows, classes)).astype("float32")  # many are as high
    logits[0] = -np.inf
    found = tf.function(kernels._highest, autograph=False)(tf.constant(logits))
    np.testing.assert_array_equal(found, logits.argmax(-1))


def test_many_columns_are_looked_through_by_groups():
    kinds = {}
    for classes in (255, 256):
        traced = tf.function(kernels._highest).get_concrete_function(tf.TensorSpec((None, classes)))
        kinds[classes] = [op.type for op in traced.graph.get_operations()]
    assert "Max" in kinds[256] and "Max" not in kinds[255]


@pytest.mark.parametrize("label", [-1, 7])
def test_a_label_that_is_no_class_is_refused_in_fit(label):
    (logits,) = arrays(3, (4, 7))
    traced = tf.function(lambda logits, labels: kernels.cross_entropies(logits, labels, 7)[:2], autograph=False)
    with tracing.fusing(), pytest.raises(tf.errors.InvalidArgumentError, match="indices"):
        traced(tf.constant(logits), np.array([0, label, 2, 3], "int32"))


@given(count=st.integers(0, 200), most=st.integers(1, 90), unknown=st.booleans())
def test_pieces_hold_all_rows_and_little_else(count, most, unknown):
    pieces, rows = map(int, chunked_loss._cut(ops.convert_to_tensor(count) if unknown else count, most))
    assert rows <= most and pieces == max(1, -(-count // most))
    assert 0 <= pieces * rows - count < (pieces if count else 2)


def test_a_batch_of_no_rows_has_no_loss():
    features, matrix = arrays(0, (0, 6), (7, 6))

    @tf.function(input_signature=[tf.TensorSpec((None, 6)), tf.TensorSpec((None,), "int32")])
    def total(features, labels):
        return chunked_loss.cross_entropy(features, matrix, None, labels, ops.cast(labels, "float32"))

    loss, chosen = total(features, np.zeros(0, "int32"))
    assert float(loss) == 0 and chosen.shape == (0,)


def histories(monkeypatch, large, **options):
    """The history of a training with the loss from features, or with all logits, and the weights after it."""
    monkeypatch.setattr(from_features, "LARGE", 0 if large else 2**60)
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, **options)
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 11, (2, 20, 9)).astype("int32")
    weights = rng.random((20, 9)).astype("float32")
    history = model.fit(x, y, sample_weight=weights, batch_size=8, epochs=3, validation_data=(x, y), verbose=0).history
    return history, [ops.convert_to_numpy(w) for w in model.trainable_variables]


@pytest.mark.parametrize(
    "options", [{}, {"pad_id": 3}, {"head": {"name": "language_model", "tied": False, "bias": True}}]
)
def test_a_training_is_the_same_by_features_and_by_logits(monkeypatch, options):
    (a, mine), (b, theirs) = (histories(monkeypatch, large, dropout=0.1, **options) for large in (True, False))
    assert set(a) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4)
    for left, right in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-4)


def test_logits_are_never_whole_in_a_step(monkeypatch):
    model = kerastf.create_model("gpt", vocab_size=50_000, max_length=64, dim=8, num_layers=1, num_heads=2)
    model.compile("adamw")
    x = np.ones((48, 64), "int32")
    model.fit(x, x, batch_size=48, verbose=0)
    concrete = tf.function(lambda: model.train_step((ops.convert_to_tensor(x), ops.convert_to_tensor(x))))
    graph = concrete.get_concrete_function().graph
    graphs = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
    largest = max(
        int(np.prod(out.shape)) for g in graphs for op in g.get_operations() for out in op.outputs
        if out.shape.rank is not None and None not in out.shape.as_list()
    )  # fmt: skip
    assert largest < 48 * 64 * 50_000 / 2


def test_mixed_precision_stays_near(monkeypatch):
    losses = []
    for large in (True, False):
        history, _ = histories(monkeypatch, large, dtype="mixed_bfloat16", dropout=0.0)
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=0.02)


# --- where it may not serve


def small(head="language_model", **options):
    return kerastf.create_model(
        "gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, dropout=0.0, head=head, **options
    )


def batch():
    return np.random.default_rng(0).integers(0, 11, (2, 8, 9)).astype("int32")


@pytest.fixture
def called(monkeypatch):
    """What `loss_of` is told of training, call by call, where any number of logits is many."""
    found = []
    original = LanguageModel.loss_of

    def loss_of(self, *args, training=True):
        found.append(training)
        return original(self, *args, training=training)

    monkeypatch.setattr(LanguageModel, "loss_of", loss_of)
    monkeypatch.setattr(from_features, "LARGE", 0)
    return found


def test_evaluate_looks_for_no_gradient(called):
    model = small()
    model.compile("sgd")
    model.fit(*batch(), verbose=0)
    assert set(called) == {True}
    called.clear()
    model.evaluate(*batch(), verbose=0)
    assert set(called) == {False}


@pytest.mark.parametrize("logits", [20, 10_000])
def test_the_loss_without_a_gradient_is_the_same(monkeypatch, logits):
    monkeypatch.setattr(chunked_loss, "LOGITS", logits)
    features, matrix, shift = arrays(0, (9, 6), (7, 6), (7,))
    labels, weights = np.arange(9, dtype="int32") % 7, np.linspace(0, 1, 9, dtype="float32")
    given = [*map(ops.convert_to_tensor, (features, matrix, shift, labels, weights))]
    for got, want in zip(*(chunked_loss.cross_entropy(*given, training=t) for t in (False, True)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_family_keeps_a_loss_of_its_own(called, monkeypatch):
    monkeypatch.setattr(GPT, "default_loss", lambda self: lambda y_true, y_pred: 7.0 + 0.0 * ops.sum(y_pred, (1, 2)))
    model = small()
    model.compile("sgd")
    assert model.fit(*batch(), verbose=0).history["loss"] == [7.0]
    assert not called


def test_a_head_that_changes_what_it_inherits_keeps_it(called):
    @kerastf.register("head", "sharper")
    class Sharper(LanguageModel):
        def __init__(self, vocab_size: int, *, tied: bool = True, **kwargs):
            super().__init__(vocab_size, tied=tied, **kwargs)

        def call(self, features, mask=None):
            return 50 * super().call(features)

    model = small("sharper")
    model.compile(keras.optimizers.SGD(0.0))
    x, y = batch()
    loss = model.fit(x, y, verbose=0).history["loss"][0]
    logits = ops.cast(model(x), "float32")
    want = float(ops.mean(ops.sparse_categorical_crossentropy(y, logits, from_logits=True)))
    assert loss == pytest.approx(want, rel=1e-5) and not called


@pytest.mark.parametrize("given", ["metrics", "weighted_metrics"])
def test_other_metrics_are_given_logits(called, given):
    model = small()
    model.compile("sgd", **{given: [keras.metrics.SparseTopKCategoricalAccuracy(11, name="any")]})
    assert model.fit(*batch(), verbose=0).history["any"] == [1.0]
    assert not called


def test_float16_keeps_its_logits(called):
    model = small(dtype="mixed_float16")
    model.compile("sgd")
    model.fit(*batch(), verbose=0)
    assert not called  # a gradient that is found before the loss is scaled would be zero where it is small


def test_rows_on_several_devices_keep_their_logits(called, monkeypatch):
    monkeypatch.setattr(keras.distribution, "distribution", lambda: "data parallel")
    model = small()
    model.compile("sgd")
    model.fit(*batch(), verbose=0)
    assert not called


def test_a_step_under_xla_is_the_same(called):
    losses = []
    for jit in (True, False):
        keras.utils.set_random_seed(1)
        model = small()
        model.compile(keras.optimizers.Adam(0.01), jit_compile=jit)
        losses.append(model.fit(*batch(), batch_size=4, epochs=2, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert called


def test_dropout_under_xla(called):
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, dropout=0.2)
    model.compile("adamw", jit_compile=True)
    losses = model.fit(*batch(), batch_size=4, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] and called
