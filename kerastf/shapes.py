"""Shapes and parts of tensors, asked of a backend in as few operations as there can be."""

import itertools

import keras
from keras import ops


def leading(x, count):
    """The first `count` axes of a tensor, as `ops.reshape` takes them: -1 where one alone is not known.

    Why: outside a graph TensorFlow runs an operation for each question after a shape; in one it takes four to hand a
    single size from one tensor to another.

    Args:
        x: A tensor with at least one axis more, none of which is empty.
        count: How many axes.
    """
    known = tuple(x.shape)[:count]
    unknown = known.count(None)
    if unknown > 1:
        return tuple(ops.shape(x)[:count])
    return tuple(-1 if n is None else n for n in known) if unknown else known


def split(x, sizes, axis=-1):
    """A tensor cut along an axis into parts of these sizes.

    Why: on TensorFlow the gradient of a slice is a tensor of zeros to write into, that of a split none, and Keras's
    split at given places finds the sizes by nine operations; on PyTorch that split fails for tensors that stand for a
    shape alone.

    Args:
        x: A tensor.
        sizes: How long the parts are; their sum is the axis's length.
        axis: Which axis.
    """
    if len(sizes) == 1:
        return [x]
    ends = list(itertools.accumulate(sizes))
    if keras.backend.backend() == "torch" and not keras.backend.is_keras_tensor(x):
        return [x.narrow(axis, end - n, n) for n, end in zip(sizes, ends, strict=True)]
    if keras.backend.backend() != "tensorflow" or keras.backend.is_keras_tensor(x):
        return ops.split(x, ends[:-1], axis=axis)
    import tensorflow as tf

    return tf.split(x, sizes, axis)


def heads_first(x):
    """`(B, S, K, D)` to `(B, K, S, D)`, and back."""
    if x.shape[1] == 1:
        return ops.expand_dims(ops.squeeze(x, 1), 2)  # nothing to move
    if x.shape[2] == 1:
        return ops.expand_dims(ops.squeeze(x, 2), 1)
    return ops.transpose(x, (0, 2, 1, 3))
