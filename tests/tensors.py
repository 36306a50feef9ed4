"""Tensors as arrays of NumPy."""

from keras import ops


def numpy(x):
    return ops.convert_to_numpy(x)
