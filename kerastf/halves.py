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

SMALL = 2**14  # numbers of a matrix that is not worth cutting,
SMALL_FOR_ONE = 2**17  # for a single row,
SMALL_IN_A_PAIR = 2**16  # and as a batch of two: XLA gives one of fewer numbers to one core
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
    if making and id(matrix) not in store and _worth_cutting(matrix, x.shape[0]):
        store[id(matrix)] = _cut(ops.cast(matrix, x.dtype), x.shape[0], transpose_b)
    if store is None or x.shape[1] > 1 or id(matrix) not in store:
        return products.product(x, ops.cast(matrix, x.dtype), transpose_b=transpose_b)
    rows, _, features = x.shape
    y = store[id(matrix)](ops.reshape(x, (rows, features)))  # (B, N)
    return ops.reshape(y, (rows, 1, y.shape[1]))


def _worth_cutting(matrix, rows):
    least = SMALL if rows > 1 else SMALL_IN_A_PAIR if tracing.one_dnn() else SMALL_FOR_ONE
    return isinstance(matrix, keras.Variable) and matrix.shape[0] * matrix.shape[1] >= least


def _cut(matrix, rows, turned):
    """The product of `(B, C)` with a matrix in two parts, as a function; `turned` says that it is `(N, C)` already.

    Why the forms differ: the turned matrix of a single row is read as it lies, which takes 0.8 of the time on a Xeon,
    as a batch of two, for which XLA wakes the other core once. On ARM cores turning it does not pay.
    """
    if rows > 1 or (turned and not tracing.one_dnn()):
        return _by_rows(matrix if turned else ops.transpose(matrix))
    if tracing.one_dnn():
        return _by_pair(matrix if turned else ops.transpose(matrix))
    return _by_columns(matrix)


def _by_rows(matrix):
    parts = ops.split(matrix, [matrix.shape[0] // 2], axis=0)

    def times(x):
        parts_of_y = [products.product(part, x, transpose_b=True) for part in parts]
        return ops.transpose(ops.concatenate(parts_of_y, axis=0))  # (B, N)

    return times


def _by_columns(matrix):
    parts = ops.split(matrix, [matrix.shape[1] // 2], axis=1)
    return lambda x: ops.concatenate([products.product(x, part) for part in parts], axis=1)  # (1, N)


def _by_pair(matrix):
    count, features = matrix.shape
    even = ops.pad(matrix, [[0, 1], [0, 0]]) if count % 2 else matrix
    pair = ops.reshape(even, (2, -1, features))

    def times(x):
        twice = ops.broadcast_to(x[None], (2, 1, features))
        y = ops.reshape(products.product(twice, pair, transpose_b=True), (1, -1))
        return y[:, :count]  # (1, N)

    return times
