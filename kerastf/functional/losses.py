"""Losses."""

from keras import ops


def logistic_losses(true, true_weights, false, false_weights):
    """`-w log s(x)` of true scores and `-w log s(-x)` of false ones, summed per row: `(B,)`."""
    pieces = (true_weights * ops.softplus(-true), false_weights * ops.softplus(false))
    return sum(ops.sum(p, axis=tuple(range(1, len(p.shape)))) for p in pieces)


def logistic_slope(true, true_weights, false, false_weights):
    """A scalar with the gradient of the sum of `logistic_losses`, without its logarithms."""
    slopes = (true_weights * (ops.sigmoid(true) - 1), true), (false_weights * ops.sigmoid(false), false)
    return sum(ops.sum(ops.stop_gradient(slope) * score) for slope, score in slopes)
