"""Losses and activations."""

import keras
from keras import ops


def logistic_losses(true, true_weights, false, false_weights):
    """`-w log s(x)` of true scores and `-w log s(-x)` of false ones, summed per row: `(B,)`."""
    pieces = (true_weights * ops.softplus(-true), false_weights * ops.softplus(false))
    return sum(ops.sum(p, axis=tuple(range(1, len(p.shape)))) for p in pieces)


def logistic_slope(true, true_weights, false, false_weights):
    """A scalar with the gradient of the sum of `logistic_losses`, without its logarithms."""
    slopes = (true_weights * (ops.sigmoid(true) - 1), true), (false_weights * ops.sigmoid(false), false)
    return sum(ops.sum(ops.stop_gradient(slope) * score) for slope, score in slopes)


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
    if name == "gelu_tanh":
        return lambda x: keras.activations.gelu(x, approximate=True)
    try:
        return keras.activations.get(name)
    except ValueError:
        raise ValueError(
            f"`activation` must be 'gelu_tanh' or the name of a Keras activation. Received: activation={name!r}"
        ) from None
