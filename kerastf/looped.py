"""Weights that a loop over time multiplies by, and that learn after the loop. TensorFlow on a CPU only.

Why: TensorFlow finds at each step what that adds to the gradient of a weight, by a product of few rows, and adds it up,
three passes over tensors as large as the weight. When what the products read and the slopes of what they gave are
known for all steps, one product finds it all.

Shapes: B batch, T time, C channels.
"""

import contextvars
import math

from keras import ops

from kerastf import compat, products, tracing

LARGE = 2**20  # numbers of a weight from which on it pays

_taught = contextvars.ContextVar("taught", default=False)


def pays(matrix):
    """Whether a weight learns after the loop: a large one, in `fit` for TensorFlow's kernels on a CPU.

    Why: a step of an LSTM of 650 units takes 0.89 of the time, of a GRU of 1,024 units 0.85, of one of 256 units 1.00.
    """
    return math.prod(matrix.shape) >= LARGE and tracing.trains_on_cpu()


def learning_after():
    """Within the block, which traces the loop, `weight` gives what no gradient flows through."""
    return compat.switched(_taught, True)


def weight(x):
    """A weight as a tensor, as a loop multiplies by it."""
    return ops.stop_gradient(x) if _taught.get() else x


def teach(inputs, matrix, lesson):
    """The inputs of a loop, through whose slope a matrix learns what its products in the loop would teach it.

    Args:
        inputs: What all steps read, `(B, T, C)`.
        matrix: A tensor `(N, M)`.
        lesson: Called with the slope of the inputs when the loop is over; gives what the products read, `(B, T, N)`,
            and the slope of what they gave, `(B, T, M)`.
    """

    @compat.custom_gradient
    def apply(inputs, matrix):
        def gradient(above):
            rows = [ops.reshape(x, (-1, x.shape[-1])) for x in lesson(above)]
            return above, products.product(*rows, transpose_a=True)

        return inputs, gradient

    return apply(inputs, matrix)


def before(first, outputs, reverse=False):
    """What each step found: the outputs `(B, T, C)` of the steps before, and `(B, C)` at first.

    Args:
        first: The state that the loop began with.
        outputs: In the order of time.
        reverse: Whether the loop went from the last step to the first.
    """
    parts = [outputs[:, 1:], first[:, None]] if reverse else [first[:, None], outputs[:, :-1]]
    return ops.concatenate(parts, axis=1)
