"""The layer that Transformer-shaped models stack. Shapes: B batch, T time, C channels."""

from typing import Literal

import keras

from kerastf.config import create_block


class TransformerLayer(keras.layers.Layer):
    """Self-attention, then a feed-forward, each with a norm and a residual connection.

    Pre-norm: `x = x + attention(norm(x))`, `x = x + feedforward(norm(x))`. Post-norm:
    `x = norm(x + attention(x))`, `x = norm(x + feedforward(x))`.

    Args:
        attention: The attention block: its name, or a dict with its name and options.
        feedforward: The feed-forward block, likewise.
        norm: The norm block, likewise.
        norm_order: `"pre"` or `"post"`.
        causal: Whether position `t` sees positions `<= t` only.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)` or `(B, T, T)`, True = keep.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> layer = TransformerLayer({"name": "multi_head", "num_heads": 2})
        >>> tuple(layer(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(
        self, attention: str | dict, *, feedforward: str | dict = "mlp", norm: str | dict = "layer",
        norm_order: Literal["pre", "post"] = "pre", causal: bool = False, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.supports_masking = True
        self.specs = {"attention": attention, "feedforward": feedforward, "norm": norm}
        self.norm_order = norm_order
        self.causal = causal

    def build(self, x_shape):
        for name, kind in (
            ("attention_norm", "norm"), ("attention", "attention"), ("feedforward_norm", "norm"),
            ("feedforward", "feedforward"),
        ):  # fmt: skip
            block = create_block(kind, self.specs[kind], name=name, dtype=self.dtype_policy)
            block.build(x_shape)
            setattr(self, name, block)

    def call(self, x, mask=None, training=None):
        return self._around(
            x,
            lambda h: self.attention(h, mask=mask, causal=self.causal, training=training),
            self.feedforward,  # Keras hands `training` down to those that take it
        )

    def _around(self, x, attend, feed):
        """The two residual connections with their norms, around whatever `attend` and `feed` do."""
        if self.norm_order == "pre":
            x = x + attend(self.attention_norm(x))  # (B, T, C)
            return x + feed(self.feedforward_norm(x))  # (B, T, C)
        x = self.attention_norm(x + attend(x))  # (B, T, C)
        return self.feedforward_norm(x + feed(x))  # (B, T, C)

    def attention_weights(self, x, mask=None):
        """The attention weights `(B, H, T, T)` for an input of this layer."""
        h = self.attention_norm(x) if self.norm_order == "pre" else x
        return self.attention.attention_weights(h, mask=mask, causal=self.causal)

    def init_state(self, batch_size, max_length):
        """The decoding state of the blocks that have one."""
        state = {"attention": self.attention.init_state(batch_size, max_length)}
        if hasattr(self.feedforward, "init_state"):
            state["feedforward"] = self.feedforward.init_state(batch_size, max_length)
        return state

    def step(self, x, state, index):
        """One token or a whole prompt `(B, T, C)` at position `index`; returns the output and the next state."""
        state = dict(state)

        def attend(h):
            output, state["attention"] = self.attention.step(h, state["attention"], index)
            return output

        def feed(h):
            if "feedforward" not in state:
                return self.feedforward(h)
            output, state["feedforward"] = self.feedforward.step(h, state["feedforward"], index)
            return output

        return self._around(x, attend, feed), state

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), **self.specs, "norm_order": self.norm_order, "causal": self.causal}
