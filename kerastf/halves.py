"""Matrices of weights cut in two for the loop that generates tokens. On TensorFlow without a GPU or TPU only.

XLA on a CPU computes a product of a few rows on one core, and packs the matrix anew each time. Two halves go to two
cores; turned, they need less packing. A product of eight rows takes a third to two thirds of the time. The halves need
as much memory as the weights, until the loop has ended.

Shapes: B rows, T tokens, C features, N outputs.
"""

import contextlib
import contextvars

import keras
from keras import ops

from kerastf import products, tracing

SMALL = 2**14  # numbers of a matrix that is not worth cutting; for a single row 8 times as many
_kept = contextvars.ContextVar("halves", default=(None, False))


@contextlib.contextmanager
def read(store, *, making):
    """Within the block, `product` reads matrices from halves: makes and keeps them, or takes those kept.

    Args:
        store: A dict that the halves are kept in.
        making: Whether they are made, which must be outside of the loop that takes them.
    """
    if keras.backend.backend() != "tensorflow" or tracing.on_accelerator():
        yield
        return
    token = _kept.set((store, making))
    try:
        yield
    finally:
        _kept.reset(token)


def product(x, matrix, *, transpose_b=False):
    """`x @ matrix` for `x` `(B, T, C)` and a variable, which is transposed first where asked for."""
    store, making = _kept.get()
    if store is None or (id(matrix) not in store and not (making and _worth_cutting(matrix, x.shape[0]))):
        return products.product(x, ops.cast(matrix, x.dtype), transpose_b=transpose_b)
    rows = x.shape[0]
    if id(matrix) not in store:
        whole = ops.cast(matrix, x.dtype)
        if rows > 1 and not transpose_b:
            whole = ops.transpose(whole)  # a single row would not make up for that
        axis = 0 if rows > 1 or transpose_b else 1
        store[id(matrix)] = ops.split(whole, [whole.shape[axis] // 2], axis=axis), axis
    if x.shape[1] > 1:
        return products.product(x, ops.cast(matrix, x.dtype), transpose_b=transpose_b)
    parts, axis = store[id(matrix)]
    row = ops.reshape(x, (rows, x.shape[2]))
    if axis == 1:
        y = ops.concatenate([products.product(row, part) for part in parts], axis=1)  # (B, N)
    else:
        y = ops.transpose(ops.concatenate([products.product(part, row, transpose_b=True) for part in parts], axis=0))
    return ops.reshape(y, (rows, 1, y.shape[1]))


def _worth_cutting(matrix, rows):
    least = SMALL if rows > 1 else 8 * SMALL
    return isinstance(matrix, keras.Variable) and matrix.shape[0] * matrix.shape[1] >= least
