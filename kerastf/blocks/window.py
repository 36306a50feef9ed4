"""Sliding-window attention. Shapes: B batch, T queries, C channels, K key/value heads, D per head, W window."""

from keras import ops

from kerastf import functional
from kerastf.blocks.attention import Projected
from kerastf.registry import register


@register("attention", "window", supports=("causal", "decode", "rotation", "bias", "positions", "weights"))
class Window(Projected):
    """Multi-head attention to the last `window` positions only; its decoding state is a ring of that many keys.

    `head_h,t = softmax(q_t K[t-W+1 .. t]^T / sqrt(D)) V[t-W+1 .. t]`, and `W_O` as in `multi_head`. Without `causal`
    the window reaches as far to the other side.

    Args:
        num_heads: How many heads attend in parallel.
        window: How many positions W a query sees, its own included.
        num_kv_heads: How many key/value heads there are; a divisor of `num_heads`, which is the default.
        head_dim: Width D of a head; by default the width of the input divided by `num_heads`.
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        bias: Whether the projections have biases.
        position: A position that the attention applies itself: `"rotary"`, `"alibi"`, or None.
        initializer_std: Deviation of the kernels at the start.
        output_std: Deviation of the output kernel at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Must be None: a window is a neighbourhood in one sequence.
        mask: Boolean, True = keep: `(B, T)` over the keys or `(B, T, T)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        positions: Integer `(B, M)`: in self-attention, the positions that attend; None for all.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`; `(B, M, C)` for positions.

    Examples:
        >>> import keras
        >>> block = Window(num_heads=4, window=3)
        >>> tuple(block(keras.ops.ones((2, 5, 32)), causal=True).shape)
        (2, 5, 32)

    References:
        - [Beltagy et al., 2020](https://arxiv.org/abs/2004.05150), section 3.1
    """

    def __init__(
        self, num_heads: int, *, window: int = 128, num_kv_heads: int | None = None, head_dim: int | None = None,
        dropout: float = 0.0, bias: bool = True, position: str | dict | None = None, initializer_std: float = 0.02,
        output_std: float | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(
            num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dropout=dropout, bias=bias, position=position,
            initializer_std=initializer_std, output_std=output_std, **kwargs,
        )  # fmt: skip
        if window < 1:
            raise ValueError(f"`window` must be at least 1. Received: window={window}")
        self.window = window

    def build(self, query_shape, context_shape=None):
        if context_shape is not None:
            raise ValueError("A window attends to its own sequence; it takes no `context`. Use 'multi_head' for that.")
        super().build(query_shape)

    def aligned(self, q, k):
        return q, k, self.sizes[2] ** -0.5

    def init_state(self, batch_size, max_length, context=None, context_mask=None):
        state = super().init_state(batch_size, min(self.window, max_length), context, context_mask)
        return {name: functional.heads_apart(x, self.sizes[1]) for name, x in state.items()}  # as `place` wants slots

    def step(self, query, state, index):
        size, length = state["key"].shape[1], query.shape[1]  # W, T
        q, k, v = self.split(query)
        where = functional.positions(length, index)  # (T,) or (B, T)
        k = self._turned(k, where)
        # Position p lives in slot p mod W. Before this step slot s holds the last p < index with p mod W = s;
        # there p is negative where nothing was written yet.
        slots = ops.arange(size, dtype="int32")  # (W,)
        held = _latest(where[..., :1] - 1, slots, size)  # (W,) or (B, W)
        key_positions = ops.concatenate([held, where], axis=-1)  # (W + T,) or (B, W + T)
        key = ops.concatenate([state["key"], k], axis=1)  # (B, W + T, K, D)
        value = ops.concatenate([state["value"], v], axis=1)
        weights = self._self_weights(self._turned(q, where), key, where, key_positions, None, causal=True)
        output = self.output_of(functional.mean_by(weights, value))  # (B, T, C)
        source = _latest(where[..., -1:], slots, size) - where[..., :1]  # which of the T new rows each slot takes
        source = source if len(source.shape) == 2 else source[None]
        state = {
            "key": functional.place(state["key"], k, source),
            "value": functional.place(state["value"], v, source),
        }
        return output, state

    def get_config(self):
        return {**super().get_config(), "window": self.window}


def _latest(position, slots, size):
    """The last position up to `position` that lives in each slot; negative where there is none."""
    return position - ops.mod(position - slots, size)
