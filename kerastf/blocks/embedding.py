"""Embedding blocks: tokens to vectors. Shapes: B batch, T time, C channels, V vocabulary, N segments."""

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

    def __init__(self, vocab_size: int, dim: int, *, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        for name, value in (("vocab_size", vocab_size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.dim = dim
        self.initializer_std = initializer_std

    def build(self, tokens_shape):
        self.matrix = self.add_weight(
            shape=(self.vocab_size, self.dim),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
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
        }


class Segment(keras.layers.Layer):
    """One learned vector per segment, added: `y_t = x_t + S[segment_t]`. It tells a second text from the first.

    Args:
        num_segments: How many segments N there are.
        initializer_std: Deviation of the vectors at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        segments: Integer tensor of shape `(B, T)`, values in `[0, N)`; None for segment 0 everywhere.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(Segment(2)(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, num_segments: int, *, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_segments = num_segments
        self.initializer_std = initializer_std

    def build(self, x_shape, segments_shape=None):
        self.table = self.add_weight(
            shape=(self.num_segments, x_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            name="table",
        )

    def call(self, x, segments=None):
        table = ops.cast(self.table, x.dtype)  # (N, C)
        return x + (table[0] if segments is None else ops.take(table, ops.cast(segments, "int32"), axis=0))  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, segments_shape=None):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "num_segments": self.num_segments, "initializer_std": self.initializer_std}
