"""Losses and metrics. Shapes: B batch, H, W and D of an image, h and w of the grid, K codes, T time, V text tokens."""

import math

import keras
from keras import ops

from kerastf.blocks.losses import token_weights, weighted_mean

PACKAGE = "kerastf_dalle"


@keras.saving.register_keras_serializable(PACKAGE)
class Reconstruction(keras.losses.Loss):
    """How far images are from their targets, a mean over pixels, then over images.

    Args:
        kind: `"squared"` or `"absolute"` difference, or `"cross_entropy"` of pixels as probabilities.
        name: Name of the loss.
        dtype: Its dtype.

    Examples:
        >>> float(Reconstruction("absolute")(ops.ones((2, 4, 4, 3)), ops.full((2, 4, 4, 3), 0.75)))
        0.25
    """

    def __init__(self, kind: str = "squared", name="reconstruction", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.kind = kind

    def __call__(self, y_true, y_pred, sample_weight=None):
        # Not Keras's reduction: it would take the mean of each replica, however many images that has.
        losses = self.rows(y_true, y_pred)
        return weighted_mean(losses, token_weights(losses, None, sample_weight))

    def rows(self, y_true, y_pred):
        """The loss of each image, `(B,)`."""
        target, image = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")  # (B, H, W, D)
        if self.kind == "cross_entropy":
            image = ops.clip(image, 1e-6, 1 - 1e-6)
            found = -target * ops.log(image) - (1 - target) * ops.log(1 - image)
        else:
            found = ops.square(target - image) if self.kind == "squared" else ops.abs(target - image)
        return ops.mean(found, axis=(1, 2, 3))

    def get_config(self):
        return {"name": self.name, "kind": self.kind}


def kl_to_uniform(logits):
    """How far the choice of codes is from an even one: `KL = log K + sum_k q_k log q_k`, with `q = softmax(logits)`.

    Args:
        logits: Float tensor `(B, h, w, K)`.

    Returns:
        The mean over the places of each row, `(B,)`.

    Examples:
        >>> kl_to_uniform(ops.zeros((2, 3, 3, 8))).numpy().tolist()
        [0.0, 0.0]
    """
    logs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    return math.log(logits.shape[-1]) + ops.mean(ops.sum(ops.exp(logs) * logs, axis=-1), axis=(1, 2))


@keras.saving.register_keras_serializable(PACKAGE)
class CodePerplexity(keras.metrics.Metric):
    """How many codes are in use: `exp(-sum_k p_k log p_k)`, `p_k` the share of places whose likeliest code is `k`.

    Args:
        num_codes: How many codes K there are.
        name: Name of the metric.
        dtype: Its dtype.

    Examples:
        >>> metric = CodePerplexity(4)
        >>> metric.update_state(ops.one_hot(ops.array([[[0, 1]]]), 4))
        >>> round(float(metric.result()), 3)
        2.0
    """

    def __init__(self, num_codes: int, name="codes_in_use", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.num_codes = num_codes
        self.counts = self.add_variable((num_codes,), initializer="zeros", name="counts")

    def update_state(self, logits):
        chosen = ops.one_hot(ops.argmax(logits, axis=-1), self.num_codes)  # (B, h, w, K)
        self.counts.assign_add(ops.cast(ops.sum(chosen, axis=(0, 1, 2)), self.counts.dtype))

    def result(self):
        share = self.counts / ops.maximum(ops.sum(self.counts), 1.0)
        return ops.exp(-ops.sum(share * ops.log(ops.maximum(share, 1e-12))))

    def get_config(self):
        return {"name": self.name, "num_codes": self.num_codes}


def parts(y_true, y_pred, text_length, vocab_size, pad_id=None):
    """Cross-entropies of the caption's tokens and of the image's codes, each chosen among its own kind only.

    Args:
        y_true: Integers `(B, T)`, the next token at each position; codes are counted from `vocab_size` on.
        y_pred: Logits `(B, T, V + K)`.
        text_length: How many positions the caption has.
        vocab_size: How many text tokens V there are.
        pad_id: A text token that does not count, or None.

    Returns:
        For the text and for the image: losses and weights, each `(B, T')`.
    """
    labels, logits = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
    last = text_length - 1  # here the first code comes next
    words, codes = labels[:, :last], labels[:, last:] - vocab_size
    of_words = ops.sparse_categorical_crossentropy(words, logits[:, :last, :vocab_size], from_logits=True)
    of_codes = ops.sparse_categorical_crossentropy(codes, logits[:, last:, vocab_size:], from_logits=True)
    return [(of_words, token_weights(words, pad_id)), (of_codes, token_weights(codes, None))]


@keras.saving.register_keras_serializable(PACKAGE)
class PartsCrossEntropy(keras.losses.Loss):
    """`text_weight * mean(-log p(token)) + image_weight * mean(-log p(code))`; each mean over its own part.

    Args:
        text_length: How many positions the caption has.
        vocab_size: How many text tokens there are; codes come after them.
        text_weight: Weight of the caption's part.
        image_weight: Weight of the image's part.
        pad_id: A text token that does not count, or None.
        name: Name of the loss.
        dtype: Its dtype.
    """

    def __init__(
        self, text_length: int, vocab_size: int, *, text_weight: float = 1 / 8, image_weight: float = 7 / 8,
        pad_id: int | None = None, name="parts_cross_entropy", dtype=None,
    ):  # fmt: skip
        super().__init__(name=name, dtype=dtype)
        self.text_length = text_length
        self.vocab_size = vocab_size
        self.weights = (text_weight, image_weight)
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        found = parts(y_true, y_pred, self.text_length, self.vocab_size, self.pad_id)
        total = 0.0
        for weight, (losses, counted) in zip(self.weights, found, strict=True):
            if sample_weight is not None:  # of rows
                counted = counted * ops.reshape(ops.cast(sample_weight, "float32"), (-1, 1))
            total = total + weight * weighted_mean(losses, counted)
        return total

    def get_config(self):
        return {
            "name": self.name, "text_length": self.text_length, "vocab_size": self.vocab_size,
            "text_weight": self.weights[0], "image_weight": self.weights[1], "pad_id": self.pad_id,
        }  # fmt: skip


@keras.saving.register_keras_serializable(PACKAGE)
class PartLoss(keras.metrics.Mean):
    """The mean cross-entropy of one part.

    Args:
        part: 0 for the caption, 1 for the image.
        text_length: How many positions the caption has.
        vocab_size: How many text tokens there are.
        pad_id: A text token that does not count, or None.
        name: Name of the metric.
        dtype: Its dtype.
    """

    def __init__(self, part: int, text_length: int, vocab_size: int, pad_id: int | None = None, name=None, dtype=None):
        super().__init__(name=name or ("text_loss", "image_loss")[part], dtype=dtype)
        self.part = part
        self.sizes = {"text_length": text_length, "vocab_size": vocab_size, "pad_id": pad_id}

    def update_state(self, y_true, y_pred, sample_weight=None):
        losses, counted = parts(y_true, y_pred, **self.sizes)[self.part]
        return super().update_state(ops.ravel(losses), ops.ravel(counted))

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype, "part": self.part, **self.sizes}
