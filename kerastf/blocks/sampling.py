"""Negative sampling: the head that learns to tell a true neighbour from words drawn at random.

Shapes: B batch, T time, C channels, V vocabulary, K draws.
"""

import keras
import numpy as np
from keras import ops

from kerastf.blocks.losses import token_weights, weighted_mean
from kerastf.registry import register


@keras.saving.register_keras_serializable("kerastf")
class NegativeSamplingLoss(keras.losses.Loss):
    """What negative sampling costs on average over all draws, from the scores of all words.

    `loss = -log s(x_label) - k sum_w P(w) log s(-x_w)`, with `s` the logistic function.

    Args:
        noise: The probability `P(w)` of each word to be drawn, a list or array of V numbers.
        negatives: How many words k are drawn per pair.
        ignore: A label that does not count, or None.
        name: Name of the loss.
        dtype: Its dtype.
    """

    def __init__(self, noise, *, negatives: float = 5, ignore: int | None = None, name="negative_sampling", dtype=None):
        super().__init__(name=name, dtype=dtype)
        self.noise = np.asarray(noise, "float32")
        self.negatives = negatives
        self.ignore = ignore

    def __call__(self, y_true, y_pred, sample_weight=None):
        labels, scores = ops.cast(y_true, "int32"), ops.cast(y_pred, "float32")
        weights = token_weights(labels, self.ignore, sample_weight)
        kept = labels if self.ignore is None else ops.where(labels == self.ignore, 0, labels)
        picked = ops.squeeze(ops.take_along_axis(scores, kept[..., None], axis=-1), axis=-1)
        drawn = ops.matmul(ops.softplus(scores), ops.convert_to_tensor(self.noise)[:, None])[..., 0]
        losses = ops.softplus(-picked) + self.negatives * drawn
        return weighted_mean(losses, weights)

    def get_config(self):
        noise = [float(p) for p in self.noise]
        return {"name": self.name, "noise": noise, "negatives": self.negatives, "ignore": self.ignore}


def alias_table(probabilities):
    """Walker's table: from it, one word is drawn with two random numbers, whatever the vocabulary's size.

    A word is drawn evenly; with its chance it stays, otherwise it becomes its alias.

    Args:
        probabilities: One number per word, with sum 1.

    Returns:
        The chance of each word to stay, float32, and its alias, int32.
    """
    scaled = np.asarray(probabilities, "float64") * len(probabilities)
    chances, aliases = np.ones(len(scaled)), np.arange(len(scaled))
    small = list(np.flatnonzero(scaled < 1))
    large = list(np.flatnonzero(scaled >= 1))
    while small and large:
        poor, rich = small.pop(), large[-1]
        chances[poor], aliases[poor] = scaled[poor], rich
        scaled[rich] -= 1 - scaled[poor]
        if scaled[rich] < 1:
            small.append(large.pop())
    return chances.astype("float32"), aliases.astype("int32")


@register("head", "negative_sampling")
class NegativeSampling(keras.layers.Layer):
    """Scores of words as neighbours, `x_w = h . v_w`, learnt against words drawn at random.

    `loss = -log s(h . v_label) - sum_{n drawn} log s(-h . v_n)`, with `s` the logistic function and words drawn with
    probability `count_w^power / sum`. Called by itself it gives the scores of all words, whose loss is the mean over
    all draws; `word2vec` trains from windows, where only the drawn words are looked at.

    Args:
        vocab_size: How many words V there are.
        counts: How often each word occurs in the corpus, V numbers (fewer are filled up with 0). None draws evenly.
        negatives: How many words are drawn per pair.
        power: What the counts are raised to: 1 draws as often as words occur, 0 evenly.
        pad_id: A target that does not count in the loss, or None.
        seed: The same seed gives the same draws; None for a random one.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not used.

    Returns:
        Float tensor of shape `(B, T, V)`.

    Examples:
        >>> head = NegativeSampling(vocab_size=3, counts=[16, 1, 0])
        >>> tuple(head(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 3)
        >>> [round(float(p), 3) for p in head.noise]
        [0.889, 0.111, 0.0]

    References:
        - [Mikolov et al., 2013](https://arxiv.org/abs/1310.4546), section 2.2
    """

    def __init__(
        self, vocab_size: int, *, counts: list[int] | None = None, negatives: int = 5, power: float = 0.75,
        pad_id: int | None = None, seed: int | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        for name, value in (("vocab_size", vocab_size), ("negatives", negatives)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if counts is not None and (len(counts) > vocab_size or min(counts, default=0) < 0 or not any(counts)):
            raise ValueError(
                f"`counts` are at most {vocab_size} numbers, one per word, none negative and not all 0. "
                f"Received: {len(counts)} numbers with sum {sum(counts)}"
            )
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.counts = counts
        self.negatives = negatives
        self.power = power
        self.pad_id = pad_id
        self.seed = seed
        raised = np.ones(vocab_size)
        if counts is not None:
            found = np.pad(np.asarray(counts, "float64"), (0, vocab_size - len(counts)))
            raised = np.where(found > 0, np.maximum(found, 1) ** power, 0)
        self.noise = raised / raised.sum()  # (V,)
        self.seed_generator = keras.random.SeedGenerator(seed)
        self._table = None

    def build(self, features_shape, mask_shape=None):
        shape = (self.vocab_size, features_shape[-1])
        self.matrix = self.add_weight(shape=shape, initializer="zeros", name="matrix")

    def call(self, features, mask=None):
        return ops.matmul(features, ops.transpose(ops.cast(self.matrix, features.dtype)))  # (B, T, V)

    def draw(self, shape):
        """Words drawn with probability `noise`: int32 of that shape."""
        if self._table is None:
            self._table = alias_table(self.noise)
        chances, aliases = (ops.convert_to_tensor(t) for t in self._table)
        words = keras.random.randint(shape, 0, self.vocab_size, dtype="int32", seed=self.seed_generator)
        stays = keras.random.uniform(shape, seed=self.seed_generator) < ops.take(chances, words)
        return ops.where(stays, words, ops.take(aliases, words))

    def default_loss(self):
        """The mean over all draws, from the scores of all words."""
        return NegativeSamplingLoss(self.noise, negatives=self.negatives, ignore=self.pad_id)

    def default_metrics(self):
        return []

    def example_targets(self, features_shape, rng):
        """Random words, one per position."""
        return rng.integers(0, self.vocab_size, features_shape[:-1])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None):
        return (*features_shape[:-1], self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "counts": self.counts,
            "negatives": self.negatives,
            "power": self.power,
            "pad_id": self.pad_id,
            "seed": self.seed,
        }
