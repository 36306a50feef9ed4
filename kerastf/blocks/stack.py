"""The layer that Transformer-shaped models stack. Shapes: B batch, T time, C channels."""

import functools
from typing import Literal

import keras

from kerastf import alike, copying, functional
from kerastf.config import block_spec, create_block
from kerastf.errors import InputError
from kerastf.registry import resolve


class TransformerLayer(keras.layers.Layer):
    """Self-attention, attention to a context where asked for, then a feed-forward; each with norm and residual.

    Pre-norm: `x = x + attention(norm(x))`, `x = x + feedforward(norm(x))`. Post-norm:
    `x = norm(x + attention(x))`, `x = norm(x + feedforward(x))`.

    Args:
        attention: The attention block: its name, or a dict with its name and options.
        feedforward: The feed-forward block, likewise.
        norm: The norm block, likewise.
        norm_order: `"pre"` or `"post"`.
        causal: Whether position `t` sees positions `<= t` only.
        cross_attention: An attention block for a context (the decoder of a translator has one), or None.
        drop_path: Stochastic depth: the chance that a row skips a block in training, in `[0, 1)`. The block's output
            is divided by the chance that it stays, so that its mean is kept.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')`, where there is a cross-attention.
        mask: Boolean `(B, T)` or `(B, T, T)`, True = keep.
        context_mask: Boolean `(B, S)` or `(B, T, S)`, True = keep.
        positions: Integer tensor of shape `(B, M)`: the positions whose output is wanted; None for all. What only the
            others need is not computed.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`; `(B, M, C)` for positions.

    Examples:
        >>> layer = TransformerLayer({"name": "multi_head", "num_heads": 2})
        >>> tuple(layer(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Huang et al., 2016](https://arxiv.org/abs/1603.09382) for stochastic depth
    """

    def __init__(
        self, attention: str | dict, *, feedforward: str | dict = "mlp", norm: str | dict = "layer",
        norm_order: Literal["pre", "post"] = "pre", causal: bool = False,
        cross_attention: str | dict | None = None, drop_path: float = 0.0, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if not 0 <= drop_path < 1:
            raise ValueError(f"`drop_path` must be in [0, 1). Received: drop_path={drop_path}")
        self.supports_masking = True
        self.drop_path = drop_path
        self.specs = {
            "attention": attention, "cross_attention": cross_attention, "feedforward": feedforward, "norm": norm,
        }  # fmt: skip
        self.norm_order = norm_order
        self.causal = causal
        self.parts = (
            ("attention", "cross_attention", "feedforward") if cross_attention else ("attention", "feedforward")
        )

    def build(self, x_shape, context_shape=None, context_mask_shape=None, positions_shape=None):
        make = functools.partial(self._make, x_shape, context_shape)
        for name, part in copying.parts(self, (x_shape, context_shape), make).items():
            setattr(self, name, part)
        self.skip = None
        if self.drop_path:  # one draw per row, not per channel
            self.skip = keras.layers.Dropout(
                self.drop_path, noise_shape=(None, 1, 1), dtype=self.dtype_policy, name="skip"
            )

    def _make(self, x_shape, context_shape):
        """The blocks and their norms, by name."""
        made = {}
        for part in self.parts:
            kind = part.rpartition("_")[2]
            norm = create_block("norm", self.specs["norm"], name=f"{part}_norm", dtype=self.dtype_policy)
            norm.build(x_shape)
            block = create_block(kind, self.specs[part], name=part, dtype=self.dtype_policy)
            block.build(*((x_shape, context_shape) if part == "cross_attention" else (x_shape,)))
            made |= {f"{part}_norm": norm, part: block}
        return made

    def call(self, x, context=None, mask=None, context_mask=None, positions=None, training=None):
        tensors = x, context, mask, context_mask, positions
        if not training:
            return self._compute(*tensors, training=training)
        return alike.call(self, functools.partial(self._compute, training=True), *tensors)

    def _compute(self, x, context, mask, context_mask, positions, *, training):
        narrow = positions is not None and self.can_narrow()
        asked = {"positions": positions} if narrow else {}
        found = self._around(
            x,
            {
                "attention": lambda h: self.attention(h, mask=mask, causal=self.causal, training=training, **asked),
                "cross_attention": lambda h: self.cross_attention(h, context, mask=context_mask, training=training),
                "feedforward": lambda h: self.feedforward(h),  # Keras hands `training` down to those that take it
            },
            training,
            positions if narrow else None,
        )
        return found if narrow or positions is None else functional.pick(found, positions)

    def _around(self, x, functions, training=False, positions=None):
        """The residual connections with their norms, around whatever the functions of the parts do.

        With `positions`, what attention gives is of those alone, and so is all that follows.
        """
        for part in self.parts:
            norm = getattr(self, f"{part}_norm")
            pre = self.norm_order == "pre"
            x, h = _beside(norm, x) if pre else (x, x)
            h = functions[part](h)  # (B, T, C)
            if part == "attention" and positions is not None:
                x = functional.pick(x, positions)  # (B, M, C)
            h = self.skip(h, training=training) if self.skip else h
            x = x + h if pre else norm(x + h)  # (B, T, C)
        return x

    def can_narrow(self):
        """Whether some positions can be computed without the others, but for their keys and values.

        A norm or feed-forward that is causal and has no state looks at one position at a time: the contract's check of
        steps proves it.
        """
        attention, feedforward, norm = (
            resolve(kind, block_spec(kind, self.specs[kind])["name"]) for kind in ("attention", "feedforward", "norm")
        )
        alone = all("causal" in cls.supports and not hasattr(cls, "step") for cls in (feedforward, norm))
        return alone and "positions" in attention.supports and "cross_attention" not in self.parts

    def attention_weights(self, x, mask=None):
        """The weights `(B, H, T, T)` of self-attention for an input of this layer."""
        if "weights" not in self.attention.supports:
            raise InputError(f"The attention `{self.attention.registry_entry.id}` has no weights to look at.")
        h = self.attention_norm(x) if self.norm_order == "pre" else x
        return self.attention.attention_weights(h, mask=mask, causal=self.causal)

    def cross_weights(self, x, context, mask=None, context_mask=None):
        """The weights `(B, H, T, S)` of cross-attention for an input of this layer."""
        found = []

        def attend(h):
            found.append(self.cross_attention.attention_weights(h, context, mask=context_mask))
            return self.cross_attention(h, context, mask=context_mask)

        functions = {
            "attention": lambda h: self.attention(h, mask=mask, causal=self.causal),
            "cross_attention": attend,
            "feedforward": self.feedforward,
        }
        self._around(x, functions)
        return found[0]

    def init_state(self, batch_size, max_length, context=None, context_mask=None):
        """The decoding state of the blocks that have one; what depends on the context alone is computed here, once."""
        state = {"attention": self.attention.init_state(batch_size, max_length)}
        if "cross_attention" in self.parts:
            state["cross_attention"] = self.cross_attention.init_state(
                batch_size, max_length, context=context, context_mask=context_mask
            )
        if hasattr(self.feedforward, "init_state"):
            state["feedforward"] = self.feedforward.init_state(batch_size, max_length)
        return state

    def step(self, x, state, index):
        """One token or a whole prompt `(B, T, C)` at position `index`; returns the output and the next state."""
        state = dict(state)

        def stepping(part):
            def advance(h):
                block = getattr(self, part)
                if part not in state:
                    return block(h)
                output, state[part] = block.step(h, state[part], index)
                return output

            return advance

        return self._around(x, {part: stepping(part) for part in self.parts}), state

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, context_shape=None, context_mask_shape=None, positions_shape=None):
        return x_shape if positions_shape is None else (*positions_shape, x_shape[-1])

    def get_config(self):
        return {
            **super().get_config(), **self.specs, "norm_order": self.norm_order, "causal": self.causal,
            "drop_path": self.drop_path,
        }  # fmt: skip


def _beside(norm, x):
    """`x`, and what a norm makes of it; some norms hand on `x` with one gradient for both."""
    return norm.beside(x) if hasattr(norm, "beside") else (x, norm(x))
