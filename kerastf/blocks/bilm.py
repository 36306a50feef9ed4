"""Language models that read in both directions, and the mix of their layers.

Shapes: B batch, T time, C channels of a direction, V vocabulary, S samples, L layers. Features of both directions stand
side by side, forward first: `(B, T, 2C)`.
"""

import contextvars
import math
from typing import Literal

import keras
from keras import ops

from kerastf import compat
from kerastf.blocks.losses import TokenCrossEntropy, token_weights
from kerastf.registry import register

NOTHING = -1  # the target of a position that has no next or previous token

_sampling = contextvars.ContextVar("sampling", default=False)


def sampling():
    """Within the block, a head with `num_samples` gives features instead of logits: the loss then takes a few only."""
    return compat.switched(_sampling, True)


def two_way_targets(tokens, pad_id=None):
    """What each position predicts: forward the next token, backward the previous one.

    Args:
        tokens: Integers `(B, T)`, the tokens that stand at the positions.
        pad_id: A token that neither predicts nor is predicted, or None.

    Returns:
        Integers `(B, T, 2)`, -1 where there is nothing to predict.

    Examples:
        >>> two_way_targets(keras.ops.array([[5, 6, 7, 0]]), pad_id=0)[0].numpy().tolist()
        [[6, -1], [7, 5], [-1, 6], [-1, -1]]
    """
    tokens = ops.cast(tokens, "int32")
    if pad_id is not None:
        tokens = ops.where(tokens == pad_id, NOTHING, tokens)
    after = ops.pad(tokens[:, 1:], ((0, 0), (0, 1)), constant_values=NOTHING)  # (B, T)
    before = ops.pad(tokens[:, :-1], ((0, 0), (1, 0)), constant_values=NOTHING)  # (B, T)
    found = ops.stack([after, before], axis=-1)  # (B, T, 2)
    return ops.where((tokens == NOTHING)[..., None], NOTHING, found)


def _targets(y_true, pad_id):
    """Targets `(B, T, 2)`: as they are, or made from the tokens `(B, T)`."""
    return ops.cast(y_true, "int32") if len(y_true.shape) == 3 else two_way_targets(y_true, pad_id)


@keras.saving.register_keras_serializable("kerastf")
class TwoWayCrossEntropy(keras.losses.Loss):
    """Mean cross-entropy of the next token, read forwards, and of the previous one, read backwards.

    Args:
        pad_id: A token that does not count, or None.
        name: Name of the loss.
        dtype: Its dtype.

    Call arguments:
        y_true: Integers `(B, T)`, the tokens that stand at the positions; or ready targets `(B, T, 2)`.
        y_pred: Logits `(B, T, 2, V)`.
        sample_weight: Weights `(B,)` or `(B, T)` of the predicting positions.
    """

    def __init__(self, pad_id: int | None = None, *, name="cross_entropy", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.pad_id = pad_id

    def __call__(self, y_true, y_pred, sample_weight=None):
        return TokenCrossEntropy(NOTHING)(_targets(y_true, self.pad_id), y_pred, sample_weight)

    def get_config(self):
        return {"name": self.name, "pad_id": self.pad_id}


@keras.saving.register_keras_serializable("kerastf")
class TwoWayPerplexity(keras.metrics.Mean):
    """Perplexity of one direction: the exponential of its mean cross-entropy over all tokens seen.

    Args:
        direction: `"forward"` or `"backward"`.
        pad_id: A token that does not count, or None.
        name: Name of the metric; None for `forward_perplexity` or `backward_perplexity`.
        dtype: Its dtype.
    """

    def __init__(
        self, direction: Literal["forward", "backward"], pad_id: int | None = None, name=None, dtype=None
    ):  # fmt: skip
        if direction not in ("forward", "backward"):
            raise ValueError(f"`direction` must be 'forward' or 'backward'. Received: direction={direction!r}")
        super().__init__(name=name or f"{direction}_perplexity", dtype=dtype)
        self.direction = direction
        self.pad_id = pad_id

    def update_state(self, y_true, y_pred, sample_weight=None):
        side = ("forward", "backward").index(self.direction)
        labels = _targets(y_true, self.pad_id)[..., side]  # (B, T)
        logits = ops.cast(y_pred, "float32")[..., side, :]  # (B, T, V)
        weights = token_weights(labels, NOTHING, sample_weight)
        losses = ops.sparse_categorical_crossentropy(ops.maximum(labels, 0), logits, from_logits=True)
        # Flat, because Keras would take the mean of each row over its own length first.
        return super().update_state(ops.ravel(losses), ops.ravel(weights))

    def result(self):
        return ops.exp(super().result())

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype, "direction": self.direction, "pad_id": self.pad_id}


@register("head", "bidirectional_language_model", supports=("two_directions",))
class BidirectionalLanguageModel(keras.layers.Layer):
    """Scores for the next token from what stands before, and for the previous one from what stands after.

    `logits_d = h_d E^T + b` for both directions d, with one matrix `E`: by default the embedding's own, where that has
    one. The target is the row of tokens itself; the loss looks one position on, and one back.

    With `num_samples`, a training step scores the right token and S others, drawn with a probability that falls as
    `1 / rank`, `p(k) = log((k + 2) / (k + 1)) / log(V + 1)`, instead of all V: `x_k - log(S p(k))` takes the place of
    `x_k`, which makes up for drawing some more often than others. So tokens should be numbered by frequency. Evaluation
    and prediction always score all of them. The perplexities that `fit` prints for training are then those among the
    samples, and lower than the real ones.

    Args:
        vocab_size: How many tokens V there are.
        tied: Whether the matrix is the embedding's. A head that is used without a model makes its own.
        bias: Whether there is a bias per token.
        num_samples: How many tokens S a training step draws; None to score all.
        pad_id: A token that does not count in the loss, or None.
        initializer_std: Deviation of its own matrix at the start.
        seed: Of the draws.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, 2C)`: the forward features, then the backward ones.
        mask: Not used: what does not count says so by its target.

    Returns:
        Float tensor of shape `(B, T, 2, V)`.

    Examples:
        >>> head = BidirectionalLanguageModel(vocab_size=10)
        >>> tuple(head(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 2, 10)

    References:
        - [Peters et al., 2018](https://arxiv.org/abs/1802.05365), section 3.1
        - [Jean et al., 2014](https://arxiv.org/abs/1412.2007) for the sampled softmax
    """

    def __init__(
        self, vocab_size: int, *, tied: bool = True, bias: bool = True, num_samples: int | None = None,
        pad_id: int | None = None, initializer_std: float = 0.02, seed: int | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1. Received: vocab_size={vocab_size}")
        if num_samples is not None and not 1 <= num_samples <= vocab_size:
            raise ValueError(
                f"`num_samples` must be in [1, {vocab_size}], as vocab_size={vocab_size} says, or None. "
                f"Received: num_samples={num_samples}"
            )
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.tied = tied
        self.bias = bias
        self.num_samples = num_samples
        self.pad_id = pad_id
        self.initializer_std = initializer_std
        self.seed = seed
        self.read_matrix = None
        self.draws = keras.random.SeedGenerator(seed) if num_samples else None

    def tie(self, embedding):
        """Takes the matrix from an embedding block from now on. The embedding goes on owning it."""
        self.read_matrix = lambda: embedding.matrix  # a closure: Keras would track the layer a second time

    def build(self, features_shape, mask_shape=None):
        self.compute_output_shape(features_shape)
        self.matrix = self.shift = None
        if self.read_matrix is None:
            initializer = keras.initializers.RandomNormal(stddev=self.initializer_std)
            shape = (self.vocab_size, features_shape[-1] // 2)
            self.matrix = self.add_weight(shape=shape, initializer=initializer, name="matrix")
        if self.bias:
            self.shift = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="shift")

    def call(self, features, mask=None):
        if self.num_samples and _sampling.get():
            return features
        matrix = ops.cast(self._matrix(), features.dtype)  # (V, C)
        logits = ops.matmul(self._halves(features), ops.transpose(matrix))  # (B, T, 2, V)
        return logits + ops.cast(self.shift, logits.dtype) if self.bias else logits

    def _matrix(self):
        return self.matrix if self.read_matrix is None else self.read_matrix()

    def _halves(self, features):
        shape = ops.shape(features)
        return ops.reshape(features, (*shape[:-1], 2, features.shape[-1] // 2))  # (B, T, 2, C)

    def sample(self, tokens, features):
        """The right tokens among samples, as a smaller problem with the same gradient on average.

        Args:
            tokens: Integers `(B, T)`, as the loss takes them.
            features: `(B, T, 2C)`.

        Returns:
            Targets `(B, T, 2)`: 0, or -1 where there is nothing to predict; and logits `(B, T, 2, 1 + S)`, the right
            token's first.
        """
        labels = two_way_targets(tokens, self.pad_id)  # (B, T, 2)
        right = ops.maximum(labels, 0)
        halves = ops.cast(self._halves(features), "float32")  # (B, T, 2, C)
        u = keras.random.uniform((self.num_samples,), seed=self.draws)
        drawn = ops.cast(ops.exp(u * math.log(self.vocab_size + 1)), "int32") - 1  # (S,)
        drawn = ops.clip(drawn, 0, self.vocab_size - 1)  # rounding may reach V
        scores = ops.matmul(halves, ops.transpose(ops.take(self._matrix(), drawn, axis=0)))  # (B, T, 2, S)
        scores = scores + self._corrections(drawn)
        scores = ops.where(right[..., None] == drawn, -1e9, scores)  # the right token is there already
        score = ops.sum(halves * ops.take(self._matrix(), right, axis=0), axis=-1)  # (B, T, 2)
        score = score + self._corrections(right)
        return ops.minimum(labels, 0), ops.concatenate([score[..., None], scores], axis=-1)  # (B, T, 2, 1 + S)

    def _corrections(self, tokens):
        """What is added to the product of tokens: their bias, less the logarithm of how often they are drawn."""
        k = ops.cast(tokens, "float32")
        often = self.num_samples * ops.log1p(1 / (k + 1)) / math.log(self.vocab_size + 1)
        return (ops.take(self.shift, tokens, axis=0) if self.bias else 0.0) - ops.log(often)

    def default_loss(self):
        """The mean of both directions' cross-entropies, over the tokens that are not padding."""
        return TwoWayCrossEntropy(self.pad_id)

    def default_metrics(self):
        return [TwoWayPerplexity(direction, self.pad_id) for direction in ("forward", "backward")]

    def target_spec(self, features_shape):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return features_shape[:2], self.vocab_size, None

    def example_targets(self, features_shape, rng):
        """Random tokens, one per position."""
        return rng.integers(1, self.vocab_size, features_shape[:2])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        if features_shape[-1] % 2:
            raise ValueError(
                "The features of two directions stand side by side, so their width is even. "
                f"Received: features of width {features_shape[-1]}"
            )
        return (*features_shape[:-1], 2, self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "tied": self.tied,
            "bias": self.bias,
            "num_samples": self.num_samples,
            "pad_id": self.pad_id,
            "initializer_std": self.initializer_std,
            "seed": self.seed,
        }
