"""Normalisation. Shapes: C channels."""

import keras
from keras import ops

from kerastf import kernels


def normalise(x, gain, shift, *, epsilon, dtype="float32"):
    """Gives mean 0 and deviation 1 over the channels, then a gain and a shift: `g (x - mean) / sqrt(var + e) + b`.

    Its gradient is written by hand: it needs the normal numbers and one rate per position, where one that is derived
    step by step keeps and reads several tensors as large as the input.

    Args:
        x: `(.., C)`.
        gain: `(C,)`.
        shift: `(C,)`, or None.
        epsilon: Keeps the division finite.
        dtype: Of the result; it is computed in float32.

    Returns:
        `(.., C)`.
    """
    x = x if keras.backend.is_keras_tensor(x) else ops.convert_to_tensor(x)
    learnt = [x, gain] if shift is None else [x, gain, shift]
    if keras.backend.backend() == "torch" or keras.backend.is_keras_tensor(x):
        return ops.cast(_forward(epsilon, *learnt)[0], dtype)
    by_program = kernels.normalised(x, gain, shift, epsilon=epsilon, dtype=dtype)
    if by_program is not None:
        return by_program

    @ops.custom_gradient
    def apply(x, gain, *shifts):
        y, *kept = _forward(epsilon, x, gain, *shifts)

        def gradient(above):
            normal, rate = _found_again(x, *kept)
            slope = above * gain
            inner = ops.mean(slope, axis=-1, keepdims=True), ops.mean(slope * normal, axis=-1, keepdims=True)
            of_x = ops.cast(rate * (slope - inner[0] - normal * inner[1]), x.dtype)
            of_shift = [kernels.summed_rows(above) for _ in shifts]
            return of_x, kernels.summed_rows(above * normal), *of_shift

        return y, gradient

    return ops.cast(apply(*learnt), dtype)


def _forward(epsilon, x, gain, *shifts):
    h = ops.cast(x, "float32")  # the moments need the range and precision of float32
    mean = ops.mean(h, axis=-1, keepdims=True)  # (.., 1)
    centred = h - mean
    rate = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)  # (.., 1)
    normal = centred * rate
    y = normal * gain
    return (y + shifts[0] if shifts else y), normal, mean, rate


def _found_again(x, normal, mean, rate):
    """The normal numbers and their rates for the gradient; JAX keeps `x` instead of the former."""
    if keras.backend.backend() != "jax":
        return normal, rate
    mean, rate = kernels.tied((mean, rate), None)
    return (ops.cast(x, "float32") - mean) * rate, rate
