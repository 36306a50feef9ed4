"""Embedding blocks: tokens to vectors. Shapes: B batch, T time, C channels, V vocabulary."""

from typing import Literal

import keras
from keras import ops

from kerastf.registry import register


@register("embedding", "token", supports=("tied",))
class Token(keras.layers.Layer):
    """One learned vector per token: `y_t = E[token_t]`. A tied head reads the same matrix `E`.

    Args:
        vocab_size: How many tokens there are.
        dim: Width C of a vector.
        initializer_std: Deviation of the vectors at the start.
        initializer: Whether they are drawn from a `"normal"` or a `"uniform"` distribution.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`, values in `[0, V)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Token(vocab_size=10, dim=4)
        >>> tuple(block(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 4)
    """

    def __init__(
        self, vocab_size: int, dim: int, *, initializer_std: float = 0.02,
        initializer: Literal["normal", "uniform"] = "normal", **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        for name, value in (("vocab_size", vocab_size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.dim = dim
        self.initializer_std = initializer_std
        self.initializer = initializer

    def build(self, tokens_shape):
        bound = self.initializer_std * 3**0.5
        self.matrix = self.add_weight(
            shape=(self.vocab_size, self.dim),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std)
            if self.initializer == "normal"
            else keras.initializers.RandomUniform(-bound, bound),
            name="matrix",
        )

    def call(self, tokens):
        return ops.take(self.matrix, ops.cast(tokens, "int32"), axis=0)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, tokens_shape):
        return (*tokens_shape, self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "dim": self.dim,
            "initializer_std": self.initializer_std,
            "initializer": self.initializer,
        }
