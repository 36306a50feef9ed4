"""Cross-entropy from features, some rows at a time, so that the logits never exist as a whole.

For TensorFlow and JAX.

Shapes: N tokens, C channels, V vocabulary.
"""

import keras
from keras import ops

from kerastf import compat, kernels, products, tracing

LOGITS = 2**26  # how many logits there are at a time: 256 MB; what they add to, the gradient of a matrix, is as large
LOGITS_ON_ACCELERATOR = 2**27


def cross_entropy(features, matrix, shift, labels, weights, *, training=True):
    """The sum of weighted cross-entropies of `x = features matrix^T + shift`, without all of `x` at a time.

    `sum_n w_n (log(sum_v exp(x_nv)) - x_n,label_n)`. The gradient is found together with it, from the same logits.

    Args:
        features: `(N, C)`.
        matrix: `(V, C)`; rounded to the precision of the features where it has more, its gradient is not.
        shift: `(V,)`, or None.
        labels: Integers `(N,)` in `[0, V)`.
        weights: Float32 `(N,)`. No gradient flows through them.
        training: Whether the gradient is found; it takes two thirds of the time.

    Returns:
        The sum, and the likeliest class of each row, `(N,)`.
    """
    count, classes = features.shape[0], matrix.shape[0]
    idle = kernels.idle_classes(classes)
    logits = LOGITS_ON_ACCELERATOR if tracing.on_accelerator() else LOGITS
    pieces, rows = _cut(ops.shape(features)[0], max(1, logits // classes))
    learnt = (features, matrix) if shift is None else (features, matrix, shift)
    # What comes from above is then a factor of the weights: no pass over a gradient as large as the matrix.
    at_once = rows == count and (keras.backend.backend() == "tensorflow" or features.dtype == "float32")

    def entropies(f, labels, m, *shifts):
        logits = products.product(f, m, transpose_b=True)
        if shifts:
            logits = ops.cast(logits, "float32") + ops.cast(shifts[0], "float32")
        return kernels.cross_entropies(logits, labels, classes, training=training)

    def of_slopes(slopes, weights, f, m, *shifts):
        """The gradients of features, matrix and shift."""
        # Weights go to the small factors of the products, not to slopes as large as the logits.
        rounded, column = ops.cast(slopes, f.dtype), ops.cast(weights[:, None], f.dtype)
        of_matrix = products.exact_product(rounded, f * column, transpose_a=True)
        of_shift = [products.exact_product(ops.cast(weights[None], slopes.dtype), slopes)[0] for _ in shifts]
        return products.product(rounded, m) * column, of_matrix, *of_shift

    def of_some(f, labels, weights, *shared):
        """Sums over some rows, of losses and of slopes of what all rows share; and what each row has of its own."""
        losses, slopes, chosen = entropies(f, labels, *shared)
        loss = ops.sum(losses * weights)
        if not training:
            return (loss,), (chosen,)
        of_features, *of_shared = of_slopes(slopes, weights, f, *shared)
        return (loss, *of_shared), (chosen, of_features)

    def of_all(f, *shared):
        if rows == count:
            return of_some(f, labels, weights, *shared)
        missing = pieces * rows - ops.shape(f)[0]
        given = [
            ops.reshape(ops.pad(x, [[0, missing]] + [[0, 0]] * (len(x.shape) - 1)), (-1, rows, *x.shape[1:]))
            for x in (f, labels, weights)
        ]

        def add(total, row):
            sums, own = of_some(*row, *shared)
            return tuple(a + b for a, b in zip(total, sums, strict=True)), own

        start = ops.zeros(()), *(ops.zeros(x.shape) for x in (shared if training else ()))
        known = rows if isinstance(rows, int) else None
        shapes = [((known,), "int32"), ((known, f.shape[1]), f.dtype)][: 2 if training else 1]
        sums, own = kernels.fold(add, start, given, shapes)
        return sums, [ops.reshape(x, (-1, *x.shape[2:]))[: ops.shape(f)[0]] for x in own]

    @compat.custom_gradient
    def total(*learnt):
        f, m, *shifts = learnt
        shared = ops.cast(m, f.dtype), *shifts
        shared = [ops.pad(x, [[0, idle]] + [[0, 0]] * (len(x.shape) - 1)) if idle else x for x in shared]
        if at_once:
            losses, slopes, chosen = entropies(f, labels, *shared)
            loss = ops.sum(losses * weights)
        else:
            (loss, *of_shared), (chosen, *of_features) = of_all(f, *shared)

        def gradient(*above):
            above = keras.tree.flatten(above)[0]  # of the loss; JAX gives one tuple
            if at_once:
                found = of_slopes(slopes, weights * above, f, *shared)
            else:
                found = [slope * ops.cast(above, slope.dtype) for slope in (*of_features, *of_shared)]
            return tuple(ops.cast(slope[: x.shape[0]], x.dtype) for slope, x in zip(found, learnt, strict=True))

        return (loss, chosen), gradient

    return total(*learnt)


def _cut(count, most):
    """Into how many pieces rows go, one at least, and how many into each, at most `most`, so that few are filled up.

    Tensors, where a graph does not know the count.
    """
    at_least = max if isinstance(count, int) else ops.maximum
    pieces = at_least(1, -(-count // most))
    return pieces, at_least(1, -(-count // pieces))
