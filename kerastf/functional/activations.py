"""Activations by name. GELU finds its slope together with its value."""

import contextvars
import functools
import math

import keras
from keras import ops

from kerastf import compat, kernels, tracing

CUBE = 0.044715  # of the tanh form

_plain = contextvars.ContextVar("plain", default=False)


def plain_activations():
    """Within the block, activations are written as Keras writes them, which converters to other formats know."""
    return compat.switched(_plain, True)


def activation_of(name):
    """The activation function that a name stands for, the names that models give their blocks included.

    Args:
        name: Name of a Keras activation, or `"gelu_tanh"` for GPT-2's approximation of GELU.

    Raises:
        ValueError: There is none of that name.

    Examples:
        >>> from kerastf.functional import activation_of
        >>> float(activation_of("relu")(-1.0))
        0.0
    """
    if name in ("gelu", "gelu_tanh"):
        return gelu if name == "gelu" else gelu_tanh
    try:
        return keras.activations.get(name)
    except ValueError:
        raise ValueError(
            f"`activation` must be 'gelu_tanh' or the name of a Keras activation. Received: activation={name!r}"
        ) from None


def gelu(x):
    """`x P(X <= x)` with X standard normal: `x/2 (1 + erf(x / sqrt(2)))`."""
    return _with_slope(x, _gelu, lambda x: keras.activations.gelu(x, approximate=False))


def gelu_tanh(x):
    """GPT-2's approximation of `gelu`: `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`."""
    return _with_slope(x, _gelu_tanh, lambda x: keras.activations.gelu(x, approximate=True))


def add_bias(x, bias, activation=None):
    """`activation(x + bias)` for `x` of shape `(.., C)` and a bias `(C,)`; in one pass where the backend has one.

    Args:
        x: Float tensor.
        bias: Float tensor of the same dtype.
        activation: A function of tensors, such as `activation_of` finds; None for none.
    """
    if activation in (gelu, gelu_tanh) and not _plain.get():
        y = kernels.biased_gelu(x, bias, None if activation is gelu else CUBE)
        if y is not None:
            return y
        if tracing.fuses(x):
            return _by_programs(_gelu if activation is gelu else _gelu_tanh, x, bias)
    x = kernels.add_bias(x, bias)
    return x if activation is None else activation(x)


def _with_slope(x, function, plain):
    """A function of each number by itself that gives its slope, too; `plain` where that is no gain.

    The slope is all that is kept for the gradient, where TensorFlow would keep every tensor on the way. Outside a graph
    it is found when it is asked for, from what was given. PyTorch has kernels of its own.
    """
    if keras.backend.backend() == "torch" or keras.backend.is_keras_tensor(x) or _plain.get():
        return plain(x)
    if tracing.fuses(x):
        return _by_programs(function, x)

    @compat.custom_gradient
    def apply(x):
        if compat.op_by_op():
            return function(x, value_only=True), lambda above: above * function(x)[1]
        y, slope = function(kernels.widened(x))
        return ops.cast(y, x.dtype), lambda above: ops.cast(ops.cast(above, slope.dtype) * slope, x.dtype)

    return apply(ops.convert_to_tensor(x))


def _by_programs(function, x, *biases):
    """A function of each number, or of its sum with a bias, that gives its slope, too; by two programs of XLA."""
    value, slope = _programs(function)

    @compat.custom_gradient
    def apply(x, *biases):
        def gradient(above):
            of_x = slope(above, x, *biases)
            return of_x, *(kernels.summed_rows(of_x) for _ in biases)

        return value(x, *biases), gradient

    return apply(x, *biases)


@functools.cache
def _programs(function):
    """Programs for the value, and for the slope times what comes from above.

    Why: each program of XLA for a CPU that has one result goes through its numbers once. One for value and slope went
    thrice, and wrote down what both need; to find that twice takes three quarters of the time.
    """

    def value(x, *biases):
        return function(sum(biases, x), value_only=True)

    def slope(above, x, *biases):
        return above * function(sum(biases, x))[1]

    return tracing.rounded_program(value), tracing.rounded_program(slope)


def _gelu(x, value_only=False):
    """The value, or value and slope."""
    share = 0.5 + 0.5 * ops.erf(x * math.sqrt(0.5))
    if value_only:
        return x * share
    density = ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi))
    return x * share, share + x * density


def _gelu_tanh(x, value_only=False):
    """As `_gelu`; `(1 + tanh(z)) / 2` is the sigmoid of `2 z`."""
    square, twice = ops.square(x), 2 * math.sqrt(2 / math.pi)
    share = ops.sigmoid(x * (twice + twice * CUBE * square))
    if value_only:
        return x * share
    return x * share, share * (1 + (1 - share) * x * (twice + 3 * twice * CUBE * square))
