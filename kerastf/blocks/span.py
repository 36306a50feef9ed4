"""The head that finds an answer in a text: where it starts and where it ends. Shapes: B batch, T time, C channels."""

import keras
import numpy as np
from keras import ops

from kerastf import functional
from kerastf.blocks.losses import TokenCrossEntropy, token_weights
from kerastf.registry import register


@keras.saving.register_keras_serializable("kerastf")
class SpanCrossEntropy(keras.losses.Loss):
    """Mean cross-entropy of the start and the end of a span, over all positions.

    Args:
        ignore: A label that does not count, or None.
        name: Name of the loss.
        dtype: Its dtype.
    """

    def __init__(self, ignore: int | None = -1, *, name="cross_entropy", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.ignore = ignore
        self.of_tokens = TokenCrossEntropy(ignore)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return self.of_tokens(y_true, ops.transpose(y_pred, (0, 2, 1)), sample_weight)  # over (B, 2, T)

    def get_config(self):
        return {"name": self.name, "ignore": self.ignore}


@keras.saving.register_keras_serializable("kerastf")
class SpanAccuracy(keras.metrics.Mean):
    """Share of rows whose likeliest start and likeliest end are both right; rows with an ignored label do not count.

    Args:
        ignore: A label that does not count, or None.
        name: Name of the metric.
        dtype: Its dtype.
    """

    def __init__(self, ignore: int | None = -1, name="accuracy", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.ignore = ignore

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(y_true, "int32")  # (B, 2)
        right = ops.equal(ops.cast(ops.argmax(y_pred, axis=1), "int32"), y_true)  # (B, 2)
        weights = token_weights(y_true, self.ignore, sample_weight)  # (B, 2)
        return super().update_state(ops.cast(ops.all(right, axis=1), "float32"), ops.min(weights, axis=1))

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype, "ignore": self.ignore}


@register("head", "span")
class Span(keras.layers.Layer):
    """Scores for each position to be the first and the last of the answer: `[start_t, end_t] = W x_t + b`.

    Padding has a score whose probability is zero, so it is never chosen. Targets are `(B, 2)`: start and end.

    Args:
        ignore: A target that does not count in the loss and the metrics, or None.
        initializer_std: Deviation of the kernel at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)`, True = keep, or None.

    Returns:
        Float32 tensor of shape `(B, T, 2)`.

    Examples:
        >>> head = Span()
        >>> logits = head(keras.ops.ones((1, 3, 8)), mask=keras.ops.array([[True, True, False]]))
        >>> chances = keras.ops.softmax(logits, axis=1)
        >>> [round(float(p), 3) for p in chances[0, :, 0]]
        [0.5, 0.5, 0.0]

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 4.2
    """

    points = True  # its targets are positions

    def __init__(self, *, ignore: int | None = -1, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.ignore = ignore
        self.initializer_std = initializer_std

    def build(self, features_shape, mask_shape=None):
        self.project = keras.layers.Dense(
            2, kernel_initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            dtype=self.dtype_policy, name="project",
        )  # fmt: skip
        self.project.build(features_shape)

    def call(self, features, mask=None):
        logits = ops.cast(self.project(features), "float32")  # (B, T, 2): float16 could not hold the padding's score
        return logits if mask is None else ops.where(mask[..., None], logits, functional.NEGATIVE)

    def default_loss(self):
        return SpanCrossEntropy(self.ignore)

    def default_metrics(self):
        return [SpanAccuracy(self.ignore)]

    def target_spec(self, features_shape):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return (features_shape[0], 2), features_shape[1], self.ignore

    def example_targets(self, features_shape, rng):
        """Random spans: start and end."""
        return np.sort(rng.integers(0, features_shape[1], (features_shape[0], 2)), axis=1)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        return (*features_shape[:-1], 2)

    def get_config(self):
        return {**super().get_config(), "ignore": self.ignore, "initializer_std": self.initializer_std}
