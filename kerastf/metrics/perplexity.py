"""Perplexity. Shapes: B batch, T time, V vocabulary."""

import keras
from keras import ops

from kerastf.blocks.losses import token_weights


@keras.saving.register_keras_serializable("kerastf")
class Perplexity(keras.metrics.Mean):
    """The exponential of the mean cross-entropy over all tokens that are not padding.

    `exp(sum_i -log p(y_i) / sum_i 1)`, with both sums over every token seen since the last reset: batches with more
    padding weigh less, and the result does not depend on how tokens are batched.

    Args:
        pad_id: A target that does not count, or None.
        name: Name of the metric.
        dtype: Its dtype.

    Call arguments:
        y_true: Integer tensor of shape `(B, T)`.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Weights of shape `(B,)` or `(B, T)`.

    Examples:
        >>> metric = Perplexity(pad_id=0)
        >>> metric.update_state([[1, 2, 0]], keras.ops.zeros((1, 3, 4)))
        >>> round(float(metric.result()), 4)
        4.0
    """

    def __init__(self, pad_id: int | None = None, name="perplexity", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.pad_id = pad_id

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")  # (B, T)
        logits = ops.cast(y_pred, "float32")  # (B, T, V)
        weight = token_weights(y_true, self.pad_id, sample_weight)
        if self.pad_id is not None:
            y_true = ops.where(y_true == self.pad_id, 0, y_true)  # a padding number need not be a token
        entropy = keras.losses.sparse_categorical_crossentropy(y_true, logits, from_logits=True)  # (B, T)
        entropy = ops.where(weight == 0, 0.0, entropy)  # what does not count may be infinite
        # Flat, because Keras would take the mean over T first, and a token of a long batch would weigh less.
        return super().update_state(ops.reshape(entropy, (-1,)), ops.reshape(weight, (-1,)))

    def result(self):
        return ops.exp(super().result())

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype, "pad_id": self.pad_id}
