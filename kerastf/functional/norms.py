"""Normalisation. Shapes: C channels."""

import functools

import keras
from keras import ops

from kerastf import compat, kernels, products, tracing

MANY = 2**15  # numbers of one row of a batch from which on programs of XLA pay


def normalise(x, gain, shift, *, epsilon, dtype="float32", beside=False):
    """Gives mean 0 and deviation 1 over the channels, then a gain and a shift: `g (x - mean) / sqrt(var + e) + b`.

    Its gradient is written by hand: it needs the normal numbers and one rate per position, or the input and its
    moments, where one that is derived step by step keeps and reads several tensors as large as the input.

    Args:
        x: `(.., C)`.
        gain: `(C,)`.
        shift: `(C,)`, or None.
        epsilon: Keeps the division finite.
        dtype: Of the result; it is computed in float32.
        beside: Whether `x` is handed on as well. Who reads it there and not as it came, as a residual connection may,
            has both its gradients added where the norm's is found, not by one more pass over three tensors.

    Returns:
        `(.., C)`; with `beside` a pair, `x` and that.
    """
    x = x if keras.backend.is_keras_tensor(x) else ops.convert_to_tensor(x)
    learnt = [x, gain] if shift is None else [x, gain, shift]
    if keras.backend.backend() == "torch" or keras.backend.is_keras_tensor(x):
        y = ops.cast(_forward(epsilon, *learnt)[0], dtype)
        return (x, y) if beside else y
    by_program = kernels.normalised(x, gain, shift, epsilon=epsilon, dtype=dtype, beside=beside)
    if by_program is not None:
        return by_program

    forward, backward = functools.partial(_forward, epsilon), _backward
    if tracing.one_dnn() and tracing.fuses(x, MANY):
        forward, backward = _programs(epsilon)

    @compat.custom_gradient
    def apply(x, gain, *shifts):
        y, *kept = forward(x, gain, *shifts)

        def gradient(*above):
            *passing, above = keras.tree.flatten(above)  # JAX gives one tuple
            of_x, of_gains = backward(above, x, gain, *kept, *passing)
            return of_x, kernels.summed_rows(of_gains), *(kernels.summed_rows(above) for _ in shifts)

        return ((x, y) if beside else y), gradient

    if not beside:
        return ops.cast(apply(*learnt), dtype)
    x, y = apply(*learnt)
    return x, ops.cast(y, dtype)


def _forward(epsilon, x, gain, *shifts):
    h = ops.cast(x, "float32")  # the moments need the range and precision of float32
    mean = ops.mean(h, axis=-1, keepdims=True)  # (.., 1)
    centred = h - mean
    rate = ops.rsqrt(ops.mean(ops.square(centred), axis=-1, keepdims=True) + epsilon)  # (.., 1)
    normal = centred * rate
    y = normal * gain
    return (y + shifts[0] if shifts else y), normal, mean, rate


def _backward(above, x, gain, normal, mean, rate, *passing):
    """Slope of `x`, to which what passes the norm by is added, and what the gain's is the sum of."""
    normal, rate = _found_again(x, normal, mean, rate)
    slope = above * gain
    inner = ops.mean(slope, axis=-1, keepdims=True), ops.mean(slope * normal, axis=-1, keepdims=True)
    return _joined(rate * (slope - inner[0] - normal * inner[1]), x, passing), above * normal


def _joined(slope, x, passing):
    """The slope of `x` in its precision, and all that passes by."""
    return ops.cast(sum((ops.cast(other, slope.dtype) for other in passing), start=slope), x.dtype)


@functools.cache
def _programs(epsilon):
    """The same as two programs of XLA for a CPU, which keep the moments alone.

    Why: XLA adds the numbers of a row there one after another, and of a product many at a time.
    """

    def forward(x, gain, *shifts):
        h = ops.cast(x, "float32")
        average = ops.full((x.shape[-1], 1), 1 / x.shape[-1])
        mean = products.product(h, average)
        centred = h - mean
        rate = ops.rsqrt(products.product(ops.square(centred), average) + epsilon)
        y = centred * rate * gain
        return (y + shifts[0] if shifts else y), mean, rate

    def backward(above, x, gain, mean, rate, *passing):
        normal = (ops.cast(x, "float32") - mean) * rate
        of_gains, shares = above * normal, gain[:, None] / x.shape[-1]
        inner = products.product(above, shares), products.product(of_gains, shares)
        return _joined(rate * (above * gain - inner[0] - normal * inner[1]), x, passing), of_gains

    return tracing.program(forward), tracing.program(backward)


def _found_again(x, normal, mean, rate):
    """The normal numbers and their rates for the gradient; JAX keeps `x` instead of the former."""
    if keras.backend.backend() != "jax":
        return normal, rate
    mean, rate = kernels.tied((mean, rate), None)
    return (ops.cast(x, "float32") - mean) * rate, rate
