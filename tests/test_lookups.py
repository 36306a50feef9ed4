"""Rows of an embedding, and the whole of it for a tied head, have one gradient."""

import contextlib
import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays

import kerastf.blocks.embedding
from kerastf import lookups, tracing

TOKENS = np.array([[1, 4, 1], [0, 4, 4]], "int32")  # some of them more than once


def gradients(read, matrix, above):
    """Of a loss of rows and of the whole, read twice; and the kinds of operations it takes."""
    variable = keras.Variable(matrix)

    @tf.function(autograph=False)
    def traced(tokens):
        with tf.GradientTape() as tape:
            loss = read(variable, tokens, above)
        return tape.gradient(loss, variable.value)

    graph = traced.get_concrete_function(tf.TensorSpec(TOKENS.shape, "int32")).graph
    return [tf.convert_to_tensor(traced(TOKENS)).numpy() for _ in range(2)], {op.type for op in graph.get_operations()}


def of_rows(variable, tokens, above):
    return tf.reduce_sum(lookups.rows(variable, tokens) * above)


def of_both(variable, tokens, above):
    loss = of_rows(variable, tokens, above)
    return loss + tf.reduce_sum(tf.matmul(lookups.whole(variable), lookups.whole(variable), transpose_b=True))


def of_rows_twice(variable, tokens, above):
    return of_both(variable, tokens, above) + 2 * of_rows(variable, tokens, above)


@pytest.mark.parametrize("fitting", [True, False])
@pytest.mark.parametrize("read", [of_rows, of_both, of_rows_twice])
def test_the_gradient_is_that_of_numpy(read, fitting):
    matrix, above = arrays(0, (6, 4), (2, 3, 4))
    with tracing.fusing() if fitting else contextlib.nullcontext():
        found, kinds = gradients(read, matrix, above)
    want = np.zeros((6, 4))
    np.add.at(want, TOKENS, above.astype("float64"))
    want *= 3 if read is of_rows_twice else 1
    if read is not of_rows:
        want += 2 * matrix.sum(0)  # of the sum of all products of two rows
    for one in found:  # the second call begins anew
        np.testing.assert_allclose(one, want, atol=1e-5)
    assert ("InplaceAdd" in kinds) == (fitting and read is not of_rows)


@pytest.mark.parametrize("metrics", [None, ["sparse_categorical_accuracy"]])
@pytest.mark.parametrize("family", ["gpt", "transformer", "seq2seq"])
def test_a_training_is_the_same_with_and_without_a_loan(monkeypatch, family, metrics):
    options = {"gpt": {"num_heads": 2}, "transformer": {"num_heads": 2}, "seq2seq": {"units": 16}}[family]
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, 40, (8, 6)).astype("int32")
    x = tokens if family == "gpt" else {"source": tokens, "target": np.roll(tokens, 1)}

    def trained():
        keras.utils.set_random_seed(0)
        sizes = {"vocab_size": 40, "dim": 16, "num_layers": 1, "dropout": 0.0, **options}
        model = kerastf.create_model(family, max_length=8, **sizes)
        model.compile(keras.optimizers.SGD(0.5), **({"metrics": metrics} if metrics else {}))
        model.fit(x, np.roll(tokens, -1), batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights()

    found = trained()
    monkeypatch.setattr(lookups, "rows", lambda variable, tokens: keras.ops.take(variable, tokens, axis=0))
    for one, other in zip(found, trained(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(("policy", "lent"), [("float32", True), ("mixed_bfloat16", True), ("bfloat16", False)])
def test_only_numbers_of_float32_are_lent(policy, lent):
    block = kerastf.blocks.embedding.Token(6, 4, dtype=policy)
    block.build((2, 3))

    @tf.function(autograph=False)
    def traced(tokens):
        block(tokens)
        return lookups.whole(block.matrix) is not block.matrix

    with tracing.fusing():
        assert bool(traced(TOKENS)) == lent


def test_in_mixed_precision_the_rows_are_rounded_and_the_matrix_is_not():
    block = kerastf.blocks.embedding.Token(6, 4, dtype="mixed_bfloat16")
    block.build((2, 3))
    matrix, above = arrays(0, (6, 4), (2, 3, 4))
    block.matrix.assign(matrix)

    @tf.function(autograph=False)
    def traced(tokens):
        with tf.GradientTape() as tape:
            found = block(tokens)
            loss = tf.reduce_sum(tf.cast(found, "float32") * above) + tf.reduce_sum(lookups.whole(block.matrix) ** 2)
        return found, tape.gradient(loss, block.matrix.value)

    with tracing.fusing():
        found, slope = traced(TOKENS)
    assert found.dtype == "bfloat16" and slope.dtype == "float32"
    np.testing.assert_array_equal(found, tf.cast(matrix[TOKENS], "bfloat16"))
    want = 2 * matrix.astype("float64")
    np.add.at(want, TOKENS, tf.cast(tf.cast(above, "bfloat16"), "float64").numpy())  # slopes of rows are rounded
    np.testing.assert_allclose(slope, want, atol=1e-5)
    # No matrix as large as the embedding was rounded for it.
    graph = traced.get_concrete_function(tf.TensorSpec(TOKENS.shape, "int32")).graph
    assert not [
        op for op in graph.get_operations() for out in op.outputs if (out.dtype, out.shape) == ("bfloat16", (6, 4))
    ]


def test_a_loan_keeps_no_variable():
    def trace():
        variable = keras.Variable(np.eye(3, dtype="float32"))
        traced = tf.function(lambda tokens: of_rows(variable, tokens, 1.0), autograph=False)
        with tracing.fusing():
            traced.get_concrete_function(tf.TensorSpec((2,), "int32"))
        return weakref.ref(variable)

    kept = trace()
    gc.collect()
    assert kept() is None
