"""Products of matrices, in the form that a backend computes fastest, each with its reason."""

import math

import keras
from keras import ops

from kerastf import compat, shapes, tracing

WIDE = 2**18  # numbers of a matrix from which on it matters how it is read
TALL = 2**13  # rows of a matrix from which on it goes first,
FEW = 512  # where the other one has no more


def product(a, b, *, transpose_a=False, transpose_b=False):
    """`a @ b`, with the last two axes of either transposed first where asked for. `b` may be a plain matrix.

    Why: outside a graph TensorFlow writes a transposed matrix down first, which for the tied head of GPT-2 takes four
    times as long as the product, and as much memory as the embedding.
    """
    if keras.backend.backend() != "tensorflow" or keras.backend.is_keras_tensor(a):
        a = ops.swapaxes(a, -1, -2) if transpose_a else a
        return ops.matmul(a, ops.swapaxes(b, -1, -2) if transpose_b else b)
    import tensorflow as tf

    if len(b.shape) > 2:
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    if len(a.shape) == 2:
        return _of_matrices(a, b, transpose_a, transpose_b)
    rows = ops.reshape(a, (-1, a.shape[-1]))
    rows = _of_rows(rows, b, transpose_b) if _by_one_dnn(b) else tf.matmul(rows, b, transpose_b=transpose_b)
    return ops.reshape(rows, (*shapes.leading(a, len(a.shape) - 1), b.shape[0 if transpose_b else 1]))


def _of_matrices(a, b, transpose_a, transpose_b):
    """`a @ b` on TensorFlow.

    Why: where oneDNN has to transpose the second matrix, its product of batches takes 0.75 to 0.95 of the time. Without
    oneDNN, the logits of a few hundred tokens take 0.8 to 0.9 when they are computed turned.
    """
    import tensorflow as tf

    if transpose_b and not transpose_a:
        if _by_one_dnn(b):
            return tf.squeeze(tf.matmul(a[None], b[None], transpose_b=True), 0)
        if _by_few(a, b):
            return tf.transpose(tf.matmul(b, a, transpose_b=True))
    return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)


def _of_rows(rows, matrix, transposed):
    """`rows @ matrix`, whose gradients are by `_of_matrices`, too."""

    @compat.custom_gradient
    def apply(rows, matrix):
        def gradient(above):
            of_rows = _of_matrices(above, matrix, False, not transposed)
            pair = (above, rows) if transposed else (rows, above)
            return of_rows, _of_matrices(*pair, True, False)

        return _of_matrices(rows, matrix, False, transposed), gradient

    return apply(rows, matrix)


def _by_one_dnn(matrix):
    """Whether a product with a matrix of float32 is computed by oneDNN, again and again: in `fit` on an x86 CPU."""
    known = matrix.dtype == "float32" and None not in matrix.shape and math.prod(matrix.shape) >= WIDE
    return known and tracing.one_dnn() and tracing.trains_on_cpu()


def _by_few(rows, matrix):
    """Whether few rows of float32 meet a tall matrix, again and again without oneDNN: in `fit` on another CPU."""
    if matrix.dtype != "float32" or None in (rows.shape[0], matrix.shape[0]):
        return False
    few = rows.shape[0] <= FEW and matrix.shape[0] >= TALL
    return few and not tracing.one_dnn() and tracing.trains_on_cpu()


def exact_product(a, b, *, transpose_a=False):
    """`a @ b` in float32, of matrices of any float dtype.

    Why: JAX sums bfloat16 in float32, and would round what it has found.
    """
    if keras.backend.backend() != "jax":
        return ops.cast(product(a, b, transpose_a=transpose_a), "float32")
    import jax.numpy as jnp

    return jnp.matmul(a.T if transpose_a else a, b, preferred_element_type="float32")
