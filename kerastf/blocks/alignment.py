"""Attention of recurrent translators: one alignment, no heads. Shapes: B batch, T queries, S keys, C channels."""

import keras
from keras import ops

from kerastf import functional
from kerastf.blocks.attention import Attention
from kerastf.blocks.dense import Dense
from kerastf.registry import register


class Unprojected(Attention):
    """Attention as the recurrent decoders have it: one head, the values are the memory's own vectors."""

    def __init__(self, *, dropout: float, position: str | dict | None, **kwargs):
        super().__init__(dropout=dropout, position=position, num_heads=1, **kwargs)

    def memory_dims(self):
        return 1, self.key_dim, self.value_dim

    def output_of(self, mean):
        return ops.squeeze(mean, 2)  # (B, T, E)

    def compute_output_shape(self, query_shape, context_shape=None, positions_shape=None):
        return (*(positions_shape or query_shape[:-1]), (context_shape or query_shape)[-1])


@register("attention", "bahdanau", supports=("causal", "cross", "decode", "bias", "positions", "weights"))
class Bahdanau(Unprojected):
    """Additive attention: a small network scores each pair of query and key.

    `score(s, h) = v tanh(W s + U h)`, and the output is the mean of the `h` under `softmax(score)`

    Args:
        units: Width of the scoring network; by default that of the query.
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        position: A position that acts on scores: `"alibi"`, or None.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')` for cross-attention; None attends to `query` itself.
        mask: Boolean, True = keep: `(B, S)` over the keys or `(B, T, S)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        positions: Integer `(B, M)`: in self-attention, the positions that attend; None for all.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C')`, as wide as what is attended to; `(B, M, C')` for positions.

    Examples:
        >>> block = Bahdanau(units=16)
        >>> tuple(block(keras.ops.ones((2, 1, 32)), keras.ops.ones((2, 7, 24))).shape)
        (2, 1, 24)

    References:
        - [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473), section 3.1
    """

    def __init__(
        self, units: int | None = None, *, dropout: float = 0.0, position: str | dict | None = None, **kwargs
    ):  # fmt: skip
        super().__init__(dropout=dropout, position=position, **kwargs)
        if units is not None and units < 1:
            raise ValueError(f"`units` must be at least 1. Received: units={units}")
        self.units = units

    def build(self, query_shape, context_shape=None):
        units = self.units or query_shape[-1]
        memory_shape = context_shape or query_shape
        self.of_query = Dense(units, use_bias=False, dtype=self.dtype_policy, name="query")
        self.of_query.build(query_shape)
        self.of_key = Dense(units, dtype=self.dtype_policy, name="key")
        self.of_key.build(memory_shape)
        self.vector = self.add_weight(shape=(units,), initializer=_uniform(units), name="vector")
        self.key_dim, self.value_dim = units, memory_shape[-1]
        self.build_drop()

    def query_of(self, x):
        return self.of_query(x)[:, :, None]  # (B, T, 1, D)

    def memory_of(self, context):
        return self.of_key(context)[:, :, None], context[:, :, None]  # (B, S, 1, D), (B, S, 1, E)

    def scores_of(self, q, k):
        return functional.additive_scores(q, k, ops.cast(self.vector, q.dtype))  # (B, 1, T, S)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def _uniform(units):
    limit = (3.0 / units) ** 0.5
    return keras.initializers.RandomUniform(-limit, limit)


@register("attention", "luong", supports=("causal", "cross", "decode", "bias", "positions", "weights"))
class Luong(Unprojected):
    """Multiplicative attention: the score is a dot product, plain or through a learned matrix.

    `score(s, h) = s h` (`"dot"`) or `s W h` (`"general"`), and the output is the mean of the `h` under `softmax(score)`

    Args:
        score: `"general"` or `"dot"`; the dot product needs queries and keys of one width.
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        position: A position that acts on scores: `"alibi"`, or None.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')` for cross-attention; None attends to `query` itself.
        mask: Boolean, True = keep: `(B, S)` over the keys or `(B, T, S)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        positions: Integer `(B, M)`: in self-attention, the positions that attend; None for all.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C')`, as wide as what is attended to; `(B, M, C')` for positions.

    Examples:
        >>> block = Luong(score="dot")
        >>> tuple(block(keras.ops.ones((2, 1, 8)), keras.ops.ones((2, 7, 8))).shape)
        (2, 1, 8)

    References:
        - [Luong et al., 2015](https://arxiv.org/abs/1508.04025), section 3.1
    """

    def __init__(
        self, *, score: str = "general", dropout: float = 0.0, position: str | dict | None = None, **kwargs
    ):  # fmt: skip
        super().__init__(dropout=dropout, position=position, **kwargs)
        if score not in ("dot", "general"):
            raise ValueError(f"`score` must be 'dot' or 'general'. Received: score={score!r}")
        self.score = score

    def build(self, query_shape, context_shape=None):
        memory_shape = context_shape or query_shape
        width = memory_shape[-1]
        self.of_query = None
        if self.score == "general":
            self.of_query = Dense(width, use_bias=False, dtype=self.dtype_policy, name="query")
            self.of_query.build(query_shape)
        elif query_shape[-1] != width:
            raise ValueError(
                f"score='dot' needs queries and keys of one width; score='general' does not. "
                f"Received: {query_shape[-1]} and {width} channels"
            )
        self.key_dim = self.value_dim = width
        self.build_drop()

    def query_of(self, x):
        return (self.of_query(x) if self.of_query else x)[:, :, None]  # (B, T, 1, D)

    def memory_of(self, context):
        return context[:, :, None], context[:, :, None]  # (B, S, 1, D) twice

    def scores_of(self, q, k):
        # Nothing scales these scores down, so float16 would overflow.
        return functional.dot_scores(ops.cast(q, "float32"), ops.cast(k, "float32"))  # (B, 1, T, S)

    def get_config(self):
        return {**super().get_config(), "score": self.score}


@register("attention", "none", supports=("causal", "cross", "decode", "positions", "weights"))
class NoAttention(Unprojected):
    """No choice: the last position that may be seen has all the weight.

    `y_t = h_S`, the last kept vector of the context, which is the feature vector of a Seq2Seq without attention. In
    causal self-attention the last visible position is the query's own, so `y = x`.

    Args:
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')`; None takes the last of `query` itself.
        mask: Boolean, True = keep: `(B, S)` over the keys or `(B, T, S)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        positions: Integer `(B, M)`: in self-attention, the positions that attend; None for all.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C')`, as wide as what is attended to; `(B, M, C')` for positions.

    Examples:
        >>> block = NoAttention()
        >>> tuple(block(keras.ops.ones((2, 1, 8)), keras.ops.ones((2, 7, 6))).shape)
        (2, 1, 6)
    """

    def __init__(self, *, dropout: float = 0.0, **kwargs):
        super().__init__(dropout=dropout, position=None, **kwargs)

    def build(self, query_shape, context_shape=None):
        self.key_dim = 1
        self.value_dim = (context_shape or query_shape)[-1]
        self.build_drop()

    def query_of(self, x):
        return x[:, :, None, :1]  # (B, T, 1, 1)

    def memory_of(self, context):
        return context[:, :, None, :1], context[:, :, None]  # (B, S, 1, 1), (B, S, 1, E)

    def scores_of(self, q, k):
        # Later is so much better that the softmax gives the last visible position all the weight.
        later = 1e4 * ops.arange(ops.shape(k)[1], dtype="float32")  # (S,)
        # The query changes nothing, but what made it has a gradient so, of 0: Keras warns where there is none.
        nothing = 0.0 * ops.cast(q[:, None, :, 0], "float32")  # (B, 1, T, 1)
        return nothing + later  # (B, 1, T, S)

    def get_config(self):
        return {k: v for k, v in super().get_config().items() if k != "position"}
