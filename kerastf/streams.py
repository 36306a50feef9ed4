"""A batch in two halves that a training step takes through its layers side by side. TensorFlow on a CPU only.

Why: each operation waits until all processors have done their share of it, so that one of two waits in a twentieth of a
step. Where two halves go their ways at the same time, it works for the other half meanwhile.
"""

import math
import os

from kerastf import ahead, tracing

LARGE = 2**18  # numbers of a half from which on its operations are worth their calls,
RATIO = 1  # and numbers of the batch for each of the layer's weights


def divides(tensors, weights):
    """Whether what a layer is given in a step being traced goes through it in halves.

    The gradients of the weights are computed for each half and added, and each half is a call more to be made ready for
    the first step: a GPT-2 of few tokens starts a tenth later and wins nothing. So the batch has at least as many
    numbers as the layer.

    Args:
        tensors: The batch `(B, .., C)`, then masks and the like, or None.
        weights: The variables that learn.
    """
    if not (tracing.trains_on_cpu() and tracing.one_dnn() and (os.cpu_count() or 1) > 1):
        return False
    x = tensors[0]
    rows, *sizes = ahead.expected(x.shape)
    if rows is None or rows % 2 or None in sizes or any(t is not None and t.shape[0] != x.shape[0] for t in tensors):
        return False
    numbers = rows * math.prod(sizes)
    return numbers >= 2 * LARGE and numbers >= RATIO * sum(math.prod(v.shape) for v in weights)


def halves(tensors):
    """The tensors' first and second rows, two lists; those that `join` has joined are taken as they were."""
    cut = [(None, None) if x is None else _halves(x) for x in tensors]
    return [list(part) for part in zip(*cut, strict=True)]


def _halves(x):
    import tensorflow as tf

    known = _known()
    found = next((parts for whole, parts in known if whole is x), None)
    if found is None:
        rows = tf.shape(x)[0] if x.shape[0] is None else x.shape[0]
        found = tf.split(x, [rows - rows // 2, rows // 2])
        known.append((x, found))
    return found


def join(parts):
    """Two halves as one tensor."""
    import tensorflow as tf

    whole = tf.concat(parts, axis=0)
    _known().append((whole, parts))
    return whole


def _known():
    """What was cut or joined in the step that is traced now: pairs of a tensor and its halves."""
    return tracing.kept(tracing.graph(), "streams")
