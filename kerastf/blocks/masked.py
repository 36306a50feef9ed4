"""Heads that BERT is pre-trained with: what stands under the masks, and whether one text follows the other.

Shapes: B batch, T time, M masked positions, C channels, V vocabulary.
"""

import keras
from keras import ops

from kerastf import functional, products
from kerastf.blocks.losses import RowCrossEntropy, TokenAccuracy, TokenCrossEntropy
from kerastf.blocks.norm import LayerNorm
from kerastf.registry import register


@register("head", "masked_language_model", supports=("positions",))
class MaskedLanguageModel(keras.layers.Layer):
    """Scores for the token at each masked position: `logits = norm(act(W x + b)) E^T + c`.

    `E` is by default the embedding's own matrix. Only the features at the given positions are projected onto the
    vocabulary: with 15 % of the tokens masked, that is a seventh of the work and of the memory. Without positions,
    there are scores for every position.

    Args:
        vocab_size: How many tokens V there are.
        tied: Whether the matrix is the embedding's. A head that is used without a model makes its own.
        activation: Name of a Keras activation, or `"gelu_tanh"`.
        epsilon: Of the norm.
        ignore: A target that does not count in the loss and the metrics, or None.
        initializer_std: Deviation of the kernels at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not needed: what does not count says so by its target.
        positions: Integer tensor of shape `(B, M)`, the positions to score; None for all.

    Returns:
        Float tensor of shape `(B, M, V)`; `(B, T, V)` without positions.

    Examples:
        >>> head = MaskedLanguageModel(vocab_size=10)
        >>> x = keras.ops.ones((2, 5, 8))
        >>> tuple(head(x).shape), tuple(head(x, positions=keras.ops.array([[1], [4]])).shape)
        ((2, 5, 10), (2, 1, 10))

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1
    """

    reads = "positions"

    def __init__(
        self, vocab_size: int, *, tied: bool = True, activation: str = "gelu", epsilon: float = 1e-12,
        ignore: int | None = -1, initializer_std: float = 0.02, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if vocab_size < 1:
            raise ValueError(f"`vocab_size` must be at least 1. Received: vocab_size={vocab_size}")
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.tied = tied
        self.activation = activation
        self.epsilon = epsilon
        self.ignore = ignore
        self.initializer_std = initializer_std
        self.activate = functional.activation_of(activation)
        self.read_matrix = None

    def tie(self, embedding):
        """Takes the matrix from an embedding block from now on. The embedding goes on owning it."""
        self.read_matrix = lambda: embedding.matrix  # a closure: Keras would track the layer a second time

    def build(self, features_shape, mask_shape=None, positions_shape=None):
        dim = features_shape[-1]
        initializer = keras.initializers.RandomNormal(stddev=self.initializer_std)
        self.transform = keras.layers.Dense(
            dim, kernel_initializer=initializer, dtype=self.dtype_policy, name="transform"
        )
        self.transform.build(features_shape)
        self.norm = LayerNorm(epsilon=self.epsilon, dtype=self.dtype_policy, name="norm")
        self.norm.build(features_shape)
        self.matrix = None
        if self.read_matrix is None:
            initializer = keras.initializers.RandomNormal(stddev=self.initializer_std)
            self.matrix = self.add_weight(shape=(self.vocab_size, dim), initializer=initializer, name="matrix")
        self.shift = self.add_weight(shape=(self.vocab_size,), initializer="zeros", name="shift")

    def call(self, features, mask=None, positions=None):
        x = features if positions is None else functional.pick(features, positions)  # (B, M, C)
        x = self.norm(self.activate(self.transform(x)))  # (B, M, C)
        matrix = self.matrix if self.read_matrix is None else self.read_matrix()  # (V, C)
        return products.product(x, ops.cast(matrix, x.dtype), transpose_b=True) + self.shift  # (B, M, V)

    def default_loss(self):
        """Cross-entropy of the masked tokens; targets that are `ignore` do not count."""
        return TokenCrossEntropy(self.ignore)

    def default_metrics(self):
        return [TokenAccuracy(self.ignore)]

    def target_spec(self, features_shape, positions_shape=None):
        """Shape of the targets, how many labels there are, and the label that is ignored."""
        return (
            self.compute_output_shape(features_shape, positions_shape=positions_shape)[:-1],
            self.vocab_size,
            self.ignore,
        )

    def example_targets(self, features_shape, rng):
        """Random tokens, one per position."""
        return rng.integers(0, self.vocab_size, features_shape[:-1])

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None, positions_shape=None):
        where = features_shape[:-1] if positions_shape is None else positions_shape
        return (*where, self.vocab_size)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "tied": self.tied,
            "activation": self.activation,
            "epsilon": self.epsilon,
            "ignore": self.ignore,
            "initializer_std": self.initializer_std,
        }


@register("head", "pretraining", supports=("pooled", "positions"))
class Pretraining(keras.layers.Layer):
    """BERT's two tasks at once: the masked tokens, and whether the second text follows the first.

    `masked_tokens` is what `masked_language_model` gives; `next_sentence = W pooled + b`, where class 1 says that the
    second text is the real next. The loss is the sum of both cross-entropies.

    Args:
        vocab_size: How many tokens V there are.
        tied: Whether the vocabulary's matrix is the embedding's.
        activation: Name of a Keras activation, or `"gelu_tanh"`.
        epsilon: Of the norm.
        ignore: A target of a masked token that does not count in the loss and the metrics, or None.
        initializer_std: Deviation of the kernels at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        features: Float tensor of shape `(B, T, C)`.
        mask: Not needed.
        pooled: Float tensor of shape `(B, C)`, the pooler's; the features of the first position where there is none.
        positions: Integer tensor of shape `(B, M)`, the masked positions; None for all positions.

    Returns:
        A dict: `masked_tokens`, float `(B, M, V)`, and `next_sentence`, float `(B, 2)`.

    Examples:
        >>> head = Pretraining(vocab_size=10)
        >>> {name: tuple(x.shape) for name, x in head(keras.ops.ones((2, 5, 8))).items()}
        {'masked_tokens': (2, 5, 10), 'next_sentence': (2, 2)}

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1
    """

    reads = "positions"

    def __init__(
        self, vocab_size: int, *, tied: bool = True, activation: str = "gelu", epsilon: float = 1e-12,
        ignore: int | None = -1, initializer_std: float = 0.02, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.supports_masking = True
        self.initializer_std = initializer_std
        self.masked_tokens = MaskedLanguageModel(
            vocab_size, tied=tied, activation=activation, epsilon=epsilon, ignore=ignore,
            initializer_std=initializer_std, dtype=self.dtype_policy, name="masked_tokens",
        )  # fmt: skip
        self.tied = tied

    def tie(self, embedding):
        """Takes the vocabulary's matrix from an embedding block from now on."""
        self.masked_tokens.tie(embedding)

    def build(self, features_shape, mask_shape=None, pooled_shape=None, positions_shape=None):
        self.masked_tokens.build(features_shape)
        self.next_sentence = keras.layers.Dense(
            2, kernel_initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            dtype=self.dtype_policy, name="next_sentence",
        )  # fmt: skip
        self.next_sentence.build((features_shape[0], features_shape[-1]))

    def call(self, features, mask=None, pooled=None, positions=None):
        pooled = features[:, 0] if pooled is None else pooled  # (B, C)
        return {
            "masked_tokens": self.masked_tokens(features, positions=positions),  # (B, M, V)
            "next_sentence": self.next_sentence(pooled),  # (B, 2)
        }

    def default_loss(self):
        """One cross-entropy for each task; Keras adds them."""
        return {
            "masked_tokens": self.masked_tokens.default_loss(),
            "next_sentence": RowCrossEntropy(),
        }

    def default_metrics(self):
        return {
            "masked_tokens": self.masked_tokens.default_metrics(),
            "next_sentence": [keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        }

    def target_spec(self, features_shape, positions_shape=None):
        """By name: shape of the targets, how many labels there are, and the label that is ignored."""
        return {
            "masked_tokens": self.masked_tokens.target_spec(features_shape, positions_shape),
            "next_sentence": (features_shape[:1], 2, None),
        }

    def example_targets(self, features_shape, rng):
        """Random tokens, one per position, and random answers, one per row."""
        hidden = self.masked_tokens.example_targets(features_shape, rng)
        return {"masked_tokens": hidden, "next_sentence": rng.integers(0, 2, features_shape[:1])}

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, features_shape, mask_shape=None, pooled_shape=None, positions_shape=None):
        return {
            "masked_tokens": self.masked_tokens.compute_output_shape(features_shape, positions_shape=positions_shape),
            "next_sentence": (features_shape[0], 2),
        }

    def get_config(self):
        inner = self.masked_tokens.get_config()
        names = ("vocab_size", "tied", "activation", "epsilon", "ignore", "initializer_std")
        return {**super().get_config(), **{n: inner[n] for n in names}}


class Asked(keras.layers.Layer):
    """The positions whose features a head reads that is given `positions`: the first, which a pooler reads, and those.

    Args:
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`.
        positions: Integer tensor of shape `(B, M)`; None where all are asked for.

    Returns:
        The positions `(B, 1 + M)`, and where among those the given ones stand, `(B, M)`; None twice for all.

    Examples:
        >>> asked, places = Asked()(keras.ops.zeros((1, 9), "int32"), positions=keras.ops.array([[4, 7]]))
        >>> keras.ops.convert_to_numpy(asked).tolist()
        [[0, 4, 7]]
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, tokens, positions=None):
        if positions is None:
            return None, None
        first = ops.zeros_like(tokens[:, :1], dtype=positions.dtype)
        asked = ops.concatenate([first, positions], axis=1)  # (B, 1 + M)
        return asked, ops.cumsum(ops.ones_like(positions), axis=1)  # (B, M): 1, 2, ..
