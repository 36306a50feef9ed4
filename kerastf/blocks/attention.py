"""Attention blocks.

Shapes: B batch, T queries, S keys, C channels, H heads, K key/value heads, D per head, E per value.

Every block answers to one contract: `call(query, context=None, *, mask=None, causal=False)` for whole sequences, with
`positions=None` where it can attend for some positions alone, and `init_state` / `step` for decoding. A subclass of
`Attention` says how queries, keys and values are made and scored; the rest is written once.
"""

import keras
from keras import ops

from kerastf import functional, kernels, shapes
from kerastf.blocks.dense import Dense
from kerastf.blocks.dropout import Dropout
from kerastf.config import block_from, block_spec
from kerastf.registry import register, resolve


class Attention(keras.layers.Layer):
    """What all attention blocks share. A subclass gives `split`, `query_of`, `memory_of`, `scores_of` and `output_of`.

    In self-attention the memory is the query sequence itself, and the decoding state is a cache of its keys and
    values. In cross-attention (`context` given) the memory is computed once, in `init_state`.
    """

    window = None

    def __init__(self, *, dropout: float, position: str | dict | None, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        if num_heads < 1:
            raise ValueError(f"`num_heads` must be at least 1. Received: num_heads={num_heads}")
        self.supports_masking = True
        self.dropout = dropout
        self.position = position
        self.num_heads = num_heads
        self.turn = self.bias_by_position = None
        if position is not None:
            cls = resolve("position", block_spec("position", position)["name"])
            handed = {"rotation", "bias"} & set(cls.supports)
            if not handed:
                raise ValueError(
                    f"An attention takes a position that acts on queries and keys or on scores, such as 'rotary' or "
                    f"'alibi'. Received: position={position!r}"
                )
            if not handed <= self.supports:
                raise ValueError(f"This attention does not take {', '.join(handed)}. Received: position={position!r}")
            block = block_from("position", position, {"num_heads": num_heads}, name="position", dtype=self.dtype_policy)
            if "rotation" in handed:
                self.turn = block
            else:
                self.bias_by_position = block

    def build_drop(self):
        self.drop_weights = Dropout(self.dropout, dtype=self.dtype_policy, name="drop_weights")
        self.drop_output = Dropout(self.dropout, dtype=self.dtype_policy, name="drop_output")
        if self.bias_by_position and not self.bias_by_position.built:  # a learned bias has weights
            self.bias_by_position.build((None,), (None,))

    # --- whole sequences

    def call(self, query, context=None, *, mask=None, causal=False, positions=None, training=None):
        weights, value = self._weights(query, context, mask, causal, positions)
        weights = self.drop_weights(weights, training=training)  # (B, H, T, S)
        output = self.output_of(functional.mean_by(weights, value))  # (B, T, C)
        return self.drop_output(output, training=training)

    def attention_weights(self, query, context=None, *, mask=None, causal=False):
        """The weights `(B, H, T, S)` that `call` would use."""
        return self._weights(query, context, mask, causal)[0]

    def _weights(self, query, context, mask, causal, positions=None):
        q, k, v, mask, places = self._read(query, context, mask, causal, positions)
        if places is None:
            return functional.weigh(self.scores_of(q, k), functional.join_masks(mask)), v
        return self._self_weights(q, k, *places, mask, causal), v

    def _read(self, query, context, mask, causal, positions):
        """Queries, keys and values of whole sequences, turned, the mask, and the positions of queries and keys.

        Those are None where there is a context. With `positions`, queries and mask are theirs alone.
        """
        if context is not None:
            if causal:
                raise ValueError("`causal` is for self-attention: a context has no future. Received: causal=True")
            if positions is not None:
                raise ValueError(
                    f"`positions` are for self-attention: beside a context, hand in the queries you want. "
                    f"Received: positions of shape {tuple(positions.shape)}"
                )
            # (B, T, H, D), (B, S, K, D), (B, S, K, E)
            return self.query_of(query), *self.memory_of(context), mask, None
        q, k, v = self.split(query)
        where = asked = functional.positions(ops.shape(query)[1])  # (T,)
        if positions is not None:
            q, asked = functional.pick(q, positions), ops.cast(positions, where.dtype)  # (B, M, H, D), (B, M)
            mask = functional.pick(mask, positions) if mask is not None and len(mask.shape) == 3 else mask
        return self._turned(q, asked), self._turned(k, where), v, mask, (asked, where)

    def _self_weights(self, q, k, query_positions, key_positions, mask, causal):
        """Weights of self-attention, of queries and keys that are turned already."""
        scores = self.scores_of(q, k)  # (B, H, T, S)
        allowed = None
        if causal or self.window is not None:
            seen = functional.visible(query_positions, key_positions, causal=causal, window=self.window)
            allowed = ("pairs", seen)
        bias = self._bias(query_positions, key_positions)
        return functional.weigh(scores, functional.join_masks(mask, allowed), bias)

    def _bias(self, query_positions, key_positions):
        return self.bias_by_position(query_positions, key_positions) if self.bias_by_position else None

    def _turned(self, x, where):
        return self.turn(x, where) if self.turn else x

    def split(self, x):
        """Queries, keys and values of one sequence."""
        return self.query_of(x), *self.memory_of(x)

    # --- step by step

    def init_state(self, batch_size, max_length, context=None, context_mask=None):
        """The state before the first step.

        Args:
            batch_size: How many rows there are.
            max_length: How many positions will be decoded at most.
            context: `(B, S, C)` for cross-attention; its keys and values are computed here, once.
            context_mask: Boolean `(B, S)`, True = keep.

        Returns:
            A dict of tensors, each batch-first: keys and values `(B K, S, D)`, the heads of a row together.
        """
        if context is not None:
            key, value = self.memory_of(context)
            if context_mask is None:
                context_mask = ops.ones(ops.shape(context)[:2], dtype="bool")
            key, value = (functional.heads_as_rows(x) for x in (key, value))
            return {"context_key": key, "context_value": value, "context_mask": context_mask}
        heads, key_dim, value_dim = self.memory_dims()
        return {
            "key": ops.zeros((batch_size * heads, max_length, key_dim), dtype=self.compute_dtype),
            "value": ops.zeros((batch_size * heads, max_length, value_dim), dtype=self.compute_dtype),
        }

    def step(self, query, state, index):
        """Attends for one token or a whole prompt, given what came before.

        Args:
            query: `(B, T, C)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them, a scalar or one per row.

        Returns:
            The output `(B, T, C)` and the next state.
        """
        if "context_key" in state:
            heads = self.memory_dims()[0]
            k, v = (functional.heads_apart(state[name], heads) for name in ("context_key", "context_value"))
            scores = self.scores_of(self.query_of(query), k)  # (B, H, T, S)
            weights = functional.weigh(scores, functional.join_masks(state["context_mask"]))
            return self.output_of(functional.mean_by(weights, v)), state
        q, k, v = self.split(query)
        where = functional.positions(query.shape[1], index)  # (T,) or (B, T)
        q, k = self._turned(q, where), self._turned(k, where)
        known = self._step_of_one(q, k, v, state, index)
        if known is not None:
            mean, state = known
            return self.output_of(mean), state
        heads = k.shape[2]
        at = index if isinstance(index, int) or len(index.shape) == 0 else ops.repeat(index, heads)
        new = {"key": k, "value": v}
        state = {name: functional.write(state[name], functional.heads_as_rows(x), at) for name, x in new.items()}
        key, value = (functional.heads_apart(state[name], heads) for name in new)  # (B, S, K, D), (B, S, K, E)
        seen = index + query.shape[1] if isinstance(index, int) else key.shape[1]
        key_positions = functional.positions(seen)
        weights = self._self_weights(q, key[:, :seen], where, key_positions, None, causal=True)
        return self.output_of(functional.mean_by(weights, value[:, :seen])), state

    def _step_of_one(self, q, k, v, state, index):
        """What one query per row sees, and the next state, by a backend's own program; None where there is none."""
        return None

    # --- shapes and configuration

    def compute_mask(self, query, previous_mask=None):
        return None

    def get_config(self):
        return {**super().get_config(), "dropout": self.dropout, "position": self.position}


class Projected(Attention):
    """Attention with learned projections of queries, keys, values and output: the family around `multi_head`.

    A subclass gives `aligned(q, k)`: queries and keys, and a scale, so that a score is `scale * q k`.
    """

    def __init__(
        self, num_heads: int, *, num_kv_heads: int | None, head_dim: int | None, dropout: float, bias: bool,
        position: str | dict | None, initializer_std: float, output_std: float | None, **kwargs,
    ):  # fmt: skip
        super().__init__(dropout=dropout, position=position, num_heads=num_heads, **kwargs)
        if num_kv_heads is not None and (num_kv_heads < 1 or num_heads % num_kv_heads):
            raise ValueError(
                f"`num_kv_heads` must divide `num_heads`. Received: num_kv_heads={num_kv_heads}, num_heads={num_heads}"
            )
        if head_dim is not None and head_dim < 1:
            raise ValueError(f"`head_dim` must be at least 1. Received: head_dim={head_dim}")
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.bias = bias
        self.initializer_std = initializer_std
        self.output_std = output_std

    def _step_of_one(self, q, k, v, state, index):
        plain = not (self._scores_differently() or self.window is not None or self.bias_by_position)
        if not plain or not kernels.serves_one_query(q, v):
            return None
        q, aligned, scale = self.aligned(q, k)
        return kernels.attention_of_one(q, k, v, state, index, scale) if aligned is k else None

    def _scores_differently(self):
        return type(self).scores_of is not Projected.scores_of

    def call(self, query, context=None, *, mask=None, causal=False, positions=None, training=None):
        # A subclass's own scores can only be weighed as a whole; so can tensors that stand for shapes alone, by which
        # a layer's cost is counted.
        if self._scores_differently() or keras.backend.is_keras_tensor(query):
            return super().call(query, context, mask=mask, causal=causal, positions=positions, training=training)
        q, k, v, mask, places = self._read(query, context, mask, causal, positions)
        q, k, scale = self.aligned(q, k)
        rules = {"mask": mask, "causal": causal, "window": self.window, "bias": None}
        if places is not None:
            rules["bias"] = self._bias(*places)
        if positions is not None and (causal or self.window is not None):
            seen = functional.visible(*places, causal=causal, window=self.window)  # (B, M, S)
            mask = functional.join_masks(mask, ("pairs", seen))
            rules |= {"mask": ops.squeeze(mask, 1), "causal": False, "window": None}
        if training and self.dropout:
            rules |= {"dropout": self.dropout, "seed": self.drop_weights.seed_generator}
        mean = functional.attention(q, k, v, scale=scale, **rules)  # (B, T, H, E)
        return self.drop_output(self.output_of(mean), training=training)  # (B, T, C)

    def scores_of(self, q, k):
        q, k, scale = self.aligned(q, k)
        return functional.dot_scores(q, k, scale=scale)  # (B, H, T, S)

    def _sizes(self, dim):
        """Heads, key/value heads and width of a head, for C channels."""
        if self.head_dim is None and dim % self.num_heads:
            raise ValueError(
                f"The width must be divisible by the number of heads. Received: dim={dim}, num_heads={self.num_heads}"
            )
        return self.num_heads, self.num_kv_heads or self.num_heads, self.head_dim or dim // self.num_heads

    def build(self, query_shape, context_shape=None):
        dim = query_shape[-1]
        heads, shared, width = self._sizes(dim)
        if context_shape is None:
            self.qkv = self._dense((heads + 2 * shared) * width, query_shape, "qkv")
        else:
            self.query = self._dense(heads * width, query_shape, "query")
            self.key_value = self._dense(2 * shared * width, context_shape, "key_value")
        std = self.initializer_std if self.output_std is None else self.output_std
        self.output_projection = self._dense(dim, (*query_shape[:-1], heads * width), "output", std)
        self.sizes = (heads, shared, width)
        self.build_drop()

    def _dense(self, units, input_shape, name, std=None):
        std = self.initializer_std if std is None else std
        dense = Dense(
            units, use_bias=self.bias, kernel_initializer=keras.initializers.RandomNormal(stddev=std),
            dtype=self.dtype_policy, name=name,
        )  # fmt: skip
        dense.build(input_shape)
        return dense

    def _heads(self, x, heads, source):
        # Rows and positions are asked of what was projected: of a product alone, ONNX's converter gives them wrongly.
        return ops.reshape(x, (*shapes.leading(source, 2), heads, self.sizes[2]))  # (B, T, heads, D)

    def split(self, x):
        heads, shared, width = self.sizes
        h = self.qkv(x)  # (B, T, (H + 2K) D)
        q, k, v = shapes.split(h, [heads * width, shared * width, shared * width])
        return self._heads(q, heads, x), self._heads(k, shared, x), self._heads(v, shared, x)

    def query_of(self, x):
        return self._heads(self.query(x), self.sizes[0], x)  # (B, T, H, D)

    def memory_of(self, context):
        k, v = ops.split(self.key_value(context), 2, axis=-1)  # (B, S, K D) each
        return tuple(self._heads(part, self.sizes[1], context) for part in (k, v))

    def memory_dims(self):
        return self.sizes[1], self.sizes[2], self.sizes[2]

    def output_of(self, mean):
        heads, _, width = self.sizes
        return self.output_projection(ops.reshape(mean, (*shapes.leading(mean, 2), heads * width)))  # (B, T, C)

    def compute_output_shape(self, query_shape, context_shape=None, positions_shape=None):
        _, _, width = self._sizes(query_shape[-1])
        if self.turn:
            self.turn.compute_output_shape((*query_shape[:-1], self.num_heads, width))
        return (*(positions_shape or query_shape[:-1]), query_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "bias": self.bias,
            "initializer_std": self.initializer_std,
            "output_std": self.output_std,
        }


@register("attention", "multi_head", supports=("causal", "cross", "decode", "rotation", "bias", "positions", "weights"))
class MultiHead(Projected):
    """Multi-head scaled dot-product attention, with grouped-query attention as an option.

    `head_h = softmax(Q_h K_h^T / sqrt(D)) V_h`, and the output is `concat(head_1, ..., head_H) W_O`

    Args:
        num_heads: How many heads attend in parallel.
        num_kv_heads: How many key/value heads there are; a divisor of `num_heads`, which is the default. With 1, all
            heads share keys and values.
        head_dim: Width D of a head; by default the width of the input divided by `num_heads`.
        dropout: Fraction dropped from the weights and from the output, in `[0, 1)`.
        bias: Whether the projections have biases.
        position: A position that the attention applies itself: `"rotary"`, `"alibi"`, or None.
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
        >>> block = MultiHead(num_heads=4, num_kv_heads=2)
        >>> tuple(block(keras.ops.ones((2, 5, 32)), causal=True).shape)
        (2, 5, 32)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.2
        - [Ainslie et al., 2023](https://arxiv.org/abs/2305.13245) for grouped queries
    """

    def __init__(
        self, num_heads: int, *, num_kv_heads: int | None = None, head_dim: int | None = None, dropout: float = 0.0,
        bias: bool = True, position: str | dict | None = None, initializer_std: float = 0.02,
        output_std: float | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(
            num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dropout=dropout, bias=bias, position=position,
            initializer_std=initializer_std, output_std=output_std, **kwargs,
        )  # fmt: skip

    def aligned(self, q, k):
        return q, k, self.sizes[2] ** -0.5
