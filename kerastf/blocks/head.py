"""Heads: features to outputs, with the loss and the metrics that belong to them.

Shapes: B batch, T time, C channels, V vocabulary, N classes. A head is called with the features and the mask of kept
positions; `default_loss()` and `default_metrics()` give fresh Keras objects, or None where there is none;
`example_targets(features_shape, rng)` gives random targets, by which the contract tries them.

A head that reads the features of few positions says so by `reads`, and may then be handed no others: `"first"`, that
position alone; `"positions"`, the first and those that it is given.
"""

from typing import Literal

import keras
from keras import ops

from kerastf import chunked_loss, functional, halves, lookups, replicas
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.losses import RowCrossEntropy, TokenAccuracy, TokenCrossEntropy, token_weights
from kerastf.registry import register


@register("head", "language_model", supports=("decode",))
class LanguageModel(keras.layers.Layer):
    """Scores for the next token at every position: `logits = x E^T`, by default with the embedding's own matrix `E`.

    Args:
        vocab_size: How many tokens V there are.
        tied: Whether the matrix is the embedding's. A head that is used without a model makes its own.
        bias: Whether there is a bias per token.
        pad_id: A target that does not count in the loss, or None.
        label_smoothing: Share of the target that is spread over all tokens, in `[0, 1)`.
        initializer_std: Deviation of its own matrix at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not used: every position has a next token.

    Returns:
        Float tensor of shape `(B, T, V)`.

    Examples:
        >>> head = LanguageModel(vocab_size=10)
        >>> tuple(head(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 10)

    References:
        - [Press and Wolf, 2016](https://arxiv.org/abs/1608.05859) for the tied matrix
    """

    def __init__(
        self, vocab_size: int, *, tied: bool = True, bias: bool = False, pad_id: int | None = None,
        label_smoothing: float = 0.0, initializer_std: float = 0.02, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1. Received: vocab_size={vocab_size}")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"`label_smoothing` must be in [0, 1). Received: label_smoothing={label_smoothing}")
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.tied = tied
        self.bias = bias
        self.pad_id = pad_id
        self.label_smoothing = label_smoothing
        self.initializer_std = initializer_std
        self.read_matrix = None

    def tie(self, embedding):
        """Takes the matrix from an embedding block from now on. The embedding goes on owning it."""
        self.read_matrix = lambda: embedding.matrix  # a closure: Keras would track the layer a second time

    def build(self, features_shape, mask_shape=None):
        self.matrix = None
        if self.read_matrix is None:
            initializer = keras.initializers.RandomNormal(stddev=self.initializer_std)
            shape = (self.vocab_size, features_shape[-1])
            self.matrix = self.add_weight(shape=shape, initializer=initializer, name="matrix")
        if self.bias:
            self.shift = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="shift")

    def call(self, features, mask=None):
        logits = halves.product(features, self._matrix(), transpose_b=True)  # (B, T, V)
        return logits + self.shift if self.bias else logits

    def _matrix(self):
        return self.matrix if self.read_matrix is None else self.read_matrix()  # (V, C)

    def loss_of(self, features, targets, sample_weight=None, *, training=True):
        """The default loss straight from the features, without all logits at a time. Not on PyTorch.

        Args:
            features: `(B, T, C)`.
            targets: `(B, T)`.
            sample_weight: As for a Keras loss, or None.
            training: Whether there will be a gradient.

        Returns:
            The loss, and the likeliest token at each position, `(B, T)`.
        """
        labels = ops.cast(targets, "int32")
        weights = token_weights(labels, self.pad_id, sample_weight)
        weights = weights / ops.maximum(replicas.total(ops.sum(weights)), 1e-7)
        labels = labels if self.pad_id is None else ops.where(labels == self.pad_id, 0, labels)
        flat = ops.reshape(features, (-1, features.shape[-1]))  # (N, C)
        matrix = lookups.whole(self._matrix()) if training else self._matrix()
        loss, chosen = chunked_loss.cross_entropy(
            flat, ops.cast(matrix, matrix.dtype), self.shift if self.bias else None, ops.reshape(labels, (-1,)),
            ops.reshape(weights, (-1,)), training=training,
        )  # fmt: skip
        return loss, ops.reshape(chosen, ops.shape(labels))

    def default_loss(self):
        """Cross-entropy of the next token, over the positions whose target is not the padding."""
        return TokenCrossEntropy(self.pad_id, label_smoothing=self.label_smoothing)

    def default_metrics(self):
        return [TokenAccuracy(self.pad_id)]

    def target_spec(self, features_shape):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return features_shape[:-1], self.vocab_size, self.pad_id

    def example_targets(self, features_shape, rng):
        """Random tokens, one per position."""
        return rng.integers(0, self.vocab_size, features_shape[:-1])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        return (*features_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "tied": self.tied,
            "bias": self.bias,
            "pad_id": self.pad_id,
            "label_smoothing": self.label_smoothing,
            "initializer_std": self.initializer_std,
        }


def _labels(labels, num_classes):
    """The names of classes as a list, or None."""
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2. Received: num_classes={num_classes}")
    if labels is not None and len(labels) != num_classes:
        raise ValueError(f"`labels` must name the {num_classes} classes. Received: {len(labels)} names")
    return None if labels is None else [str(name) for name in labels]


@register("head", "classifier", supports=("pooled",))
class Classifier(keras.layers.Layer):
    """One answer per sequence: `logits = W pool(x) + b`.

    Args:
        num_classes: How many classes N there are.
        pooling: Which features stand for the sequence: those of the `"first"` position, of the `"last"` that is kept,
            the `"mean"` of all that are kept, or what the body's own `"pooler"` made of them, where it has one (BERT).
        dropout: Fraction dropped from them, in `[0, 1)`.
        initializer_std: Deviation of the kernel at the start.
        labels: Names of the classes, which travel with the model; None where they have none.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)`, True = keep, or None.
        pooled: Float tensor of shape `(B, C)` from the body's pooler, or None.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, N)`.

    Examples:
        >>> head = Classifier(num_classes=3)
        >>> tuple(head(keras.ops.ones((2, 5, 8))).shape)
        (2, 3)
    """

    def __init__(
        self, num_classes: int, *, pooling: Literal["first", "last", "mean", "pooler"] = "mean", dropout: float = 0.0,
        initializer_std: float = 0.02, labels: list[str] | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.labels = _labels(labels, num_classes)
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.num_classes = num_classes
        self.pooling = pooling
        self.dropout = dropout
        self.initializer_std = initializer_std

    def build(self, features_shape, mask_shape=None, pooled_shape=None):
        if self.pooling == "pooler" and pooled_shape is None:
            raise ValueError(
                "This body has no pooler. Write pooling='first', 'last' or 'mean'. Received: pooling='pooler'"
            )
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        self.project = keras.layers.Dense(
            self.num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            dtype=self.dtype_policy, name="project",
        )  # fmt: skip
        self.project.build((features_shape[0], features_shape[-1]))

    @property
    def reads(self):
        """Which positions' features it reads: the `"first"`, as a pooler does too, or `"all"`."""
        return "first" if self.pooling in ("first", "pooler") else "all"

    def call(self, features, mask=None, pooled=None, training=None):
        if self.pooling == "first":
            pooled = features[:, 0]  # (B, C)
        elif self.pooling != "pooler":
            pool = functional.last_kept if self.pooling == "last" else functional.mean_kept
            pooled = pool(features, mask)  # (B, C)
        return self.project(self.drop(pooled, training=training))  # (B, N)

    def default_loss(self):
        return RowCrossEntropy()

    def default_metrics(self):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def target_spec(self, features_shape):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return features_shape[:1], self.num_classes, None

    def example_targets(self, features_shape, rng):
        """Random classes, one per row."""
        return rng.integers(0, self.num_classes, features_shape[:1])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None, pooled_shape=None):
        return (features_shape[0], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "pooling": self.pooling,
            "dropout": self.dropout,
            "initializer_std": self.initializer_std,
            "labels": self.labels,
        }


@register("head", "tagger")
class Tagger(keras.layers.Layer):
    """One answer per position: `logits_t = W x_t + b`. Positions labelled `ignore` do not count.

    Args:
        num_classes: How many classes N there are.
        ignore: A label that does not count in the loss and the metrics, or None.
        dropout: Fraction dropped from the features, in `[0, 1)`.
        initializer_std: Deviation of the kernel at the start.
        labels: Names of the classes, which travel with the model; None where they have none.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not needed: what does not count says so by its label.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, N)`.

    Examples:
        >>> head = Tagger(num_classes=3)
        >>> tuple(head(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 3)
    """

    def __init__(
        self, num_classes: int, *, ignore: int | None = -1, dropout: float = 0.0, initializer_std: float = 0.02,
        labels: list[str] | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.labels = _labels(labels, num_classes)
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.num_classes = num_classes
        self.ignore = ignore
        self.dropout = dropout
        self.initializer_std = initializer_std

    def build(self, features_shape, mask_shape=None):
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        self.project = keras.layers.Dense(
            self.num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            dtype=self.dtype_policy, name="project",
        )  # fmt: skip
        self.project.build(features_shape)

    def call(self, features, mask=None, training=None):
        return self.project(self.drop(features, training=training))  # (B, T, N)

    def default_loss(self):
        return TokenCrossEntropy(self.ignore)

    def default_metrics(self):
        return [TokenAccuracy(self.ignore)]

    def target_spec(self, features_shape):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return features_shape[:-1], self.num_classes, self.ignore

    def example_targets(self, features_shape, rng):
        """Random classes, one per position."""
        return rng.integers(0, self.num_classes, features_shape[:-1])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        return (*features_shape[:-1], self.num_classes)

    def get_config(self):
        return {
            **super().get_config(),
            "num_classes": self.num_classes,
            "ignore": self.ignore,
            "dropout": self.dropout,
            "initializer_std": self.initializer_std,
            "labels": self.labels,
        }


@register("head", "features")
class Features(keras.layers.Layer):
    """The features themselves: `y = x`. It has no loss of its own; give `compile` one.

    Args:
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not used.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(Features()(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, features, mask=None):
        return features

    def default_loss(self):
        return None

    def default_metrics(self):
        return []

    def example_targets(self, features_shape, rng):
        """There are none: it has no loss of its own."""
        return None

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        return features_shape
