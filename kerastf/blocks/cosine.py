"""Attention by cosine."""

import keras
from keras import ops

from kerastf.blocks.attention import Projected
from kerastf.registry import register


@register("attention", "cosine", supports=("causal", "cross", "decode", "rotation", "bias", "positions", "weights"))
class Cosine(Projected):
    """Multi-head attention by cosine: how alike query and key point, whatever their lengths.

    `head_h = softmax(s_h cos(Q_h, K_h)) V_h`, with one learned scale `s_h` per head, and `W_O` as in `multi_head`

    Args:
        num_heads: How many heads attend in parallel.
        num_kv_heads: How many key/value heads there are; a divisor of `num_heads`, which is the default.
        head_dim: Width D of a head; by default the width of the input divided by `num_heads`.
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        bias: Whether the projections have biases.
        position: A position that the attention applies itself: `"rotary"`, `"alibi"`, or None.
        scale: The scale `s_h` at the start.
        initializer_std: Deviation of the kernels at the start.
        output_std: Deviation of the output kernel at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')` for cross-attention; None attends to `query` itself.
        mask: Boolean, True = keep: `(B, S)` over the keys or `(B, T, S)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        positions: Integer `(B, M)`: in self-attention, the positions that attend; None for all.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`; `(B, M, C)` for positions.

    Examples:
        >>> block = Cosine(num_heads=4)
        >>> tuple(block(keras.ops.ones((2, 5, 32))).shape)
        (2, 5, 32)

    References:
        - [Liu et al., 2021](https://arxiv.org/abs/2111.09883), section 3.2
    """

    def __init__(
        self, num_heads: int, *, num_kv_heads: int | None = None, head_dim: int | None = None, dropout: float = 0.0,
        bias: bool = True, position: str | dict | None = None, scale: float = 10.0, initializer_std: float = 0.02,
        output_std: float | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(
            num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dropout=dropout, bias=bias, position=position,
            initializer_std=initializer_std, output_std=output_std, **kwargs,
        )  # fmt: skip
        if scale <= 0:
            raise ValueError(f"`scale` must be positive. Received: scale={scale}")
        self.scale = scale

    def build(self, query_shape, context_shape=None):
        super().build(query_shape, context_shape)
        self.scales = self.add_weight(
            shape=(self.num_heads, 1, 1), initializer=keras.initializers.Constant(self.scale), name="scales"
        )

    def aligned(self, q, k):
        q, k = (ops.normalize(x, axis=-1) for x in (q, k))
        return q * ops.cast(ops.transpose(self.scales, (1, 0, 2)), q.dtype), k, 1.0  # (1, H, 1) beside (B, T, H, D)

    def get_config(self):
        return {**super().get_config(), "scale": self.scale}
