"""Losses and metrics of heads, right over all replicas. Shapes: B batch, T time, N classes."""

import keras
from keras import ops

from kerastf import replicas


@keras.saving.register_keras_serializable("kerastf")
class TokenCrossEntropy(keras.losses.Loss):
    """Mean cross-entropy over the positions whose label is not the ignored one, in the batch of all replicas.

    With smoothing `e`, the target is `1 - e` on the label and `e / N` on every class:
    `loss = (1 - e) (lse(x) - x_label) + e (lse(x) - mean(x))`

    Args:
        ignore: A label that does not count, or None.
        label_smoothing: Share `e` of the target that is spread over all classes, in `[0, 1)`.
        name: Name of the loss.
        dtype: Its dtype.
    """

    def __init__(self, ignore: int | None = None, *, label_smoothing: float = 0.0, name="cross_entropy", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.ignore = ignore
        self.label_smoothing = label_smoothing

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Not Keras's reduction: it would count the ignored positions in the mean.
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        weights = token_weights(labels, self.ignore, sample_weight)
        kept = labels if self.ignore is None else ops.where(labels == self.ignore, 0, labels)
        losses = ops.sparse_categorical_crossentropy(kept, logits, from_logits=True)
        if self.label_smoothing:
            picked = ops.squeeze(ops.take_along_axis(logits, kept[..., None], axis=-1), axis=-1)
            losses = losses + self.label_smoothing * (picked - ops.mean(logits, axis=-1))
        return weighted_mean(losses, weights)

    def get_config(self):
        return {"name": self.name, "ignore": self.ignore, "label_smoothing": self.label_smoothing}


def token_weights(labels, ignore, sample_weight=None):
    """How much each label counts: not at all where it is ignored, else its sample weight or 1."""
    weights = ops.ones_like(labels, dtype="float32")
    if ignore is not None:
        weights = ops.cast(ops.not_equal(labels, ignore), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    if getattr(sample_weight.shape, "rank", 0) is None:  # TensorFlow has met weights of rows and of tokens
        sample_weight = ops.reshape(sample_weight, (ops.shape(labels)[0], -1) if len(labels.shape) > 1 else (-1,))
    missing = len(weights.shape) - len(sample_weight.shape)
    return weights * ops.reshape(sample_weight, (*ops.shape(sample_weight), *([1] * missing)))


def weighted_mean(losses, weights):
    """The mean of losses by their weights. Of several replicas, each gives its part of the mean over all."""
    return ops.sum(losses * weights) / ops.maximum(replicas.total(ops.sum(weights)), 1e-7)


@keras.saving.register_keras_serializable("kerastf")
class RowCrossEntropy(keras.losses.Loss):
    """Mean cross-entropy over the rows of the batch, of all replicas together.

    Weights multiply the losses, and the sum is divided by the number of rows, as Keras does.

    Args:
        name: Name of the loss.
        dtype: Its dtype.
    """

    def __init__(self, name="cross_entropy", dtype=None):
        super().__init__(name=name, dtype=dtype)

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Not Keras's reduction: it would count two rows on one replica as much as three on another.
        labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        labels = ops.reshape(labels, ops.shape(logits)[:-1])  # (B,), should they come as (B, 1)
        losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        weights = token_weights(labels, None, sample_weight)
        rows = replicas.total(ops.sum(ops.ones_like(losses)))
        return ops.sum(losses * weights) / ops.maximum(rows, 1e-7)

    def get_config(self):
        return {"name": self.name}


@keras.saving.register_keras_serializable("kerastf")
class TokenAccuracy(keras.metrics.Mean):
    """Share of positions whose most likely class is the right one; positions with an ignored label do not count.

    It is given scores `(B, T, N)`, or the most likely classes `(B, T)` themselves.

    Args:
        ignore: A label that does not count, or None.
        name: Name of the metric.
        dtype: Its dtype.
    """

    def __init__(self, ignore: int | None = None, name="accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.ignore = ignore

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")
        chosen = y_pred if len(y_pred.shape) == len(y_true.shape) else ops.argmax(y_pred, axis=-1)
        right = ops.equal(ops.cast(chosen, "int32"), y_true)
        weights = token_weights(y_true, self.ignore, sample_weight)
        # Flat, because Keras's mean would first average each row over its own length.
        return super().update_state(ops.ravel(ops.cast(right, "float32")), ops.ravel(weights))

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype, "ignore": self.ignore}
