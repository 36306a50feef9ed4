"""Linear attention. Shapes: B batch, T queries, S keys, C channels, H heads, D per head, N chunks, L chunk length."""

import keras
from keras import ops

from kerastf import register

EPSILON = 1e-6


@register("attention", "linear", supports=("causal", "cross", "decode", "weights"))
class Linear(keras.layers.Layer):
    """Linear attention: a product of positive features instead of a softmax, so sums over keys can be carried along.

    `y_t = phi(q_t) S_t / (phi(q_t) z_t)` with `S_t = S_{t-1} + phi(k_t) v_t^T`, `z_t = z_{t-1} + phi(k_t)` and
    `phi(x) = elu(x) + 1`. Without `causal`, the sums run over all keys.

    Args:
        num_heads: How many heads attend in parallel.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        chunk: Length L of the pieces that the causal form works in.
        initializer_std: Deviation of the kernels at the start.
        output_std: Deviation of the output kernel at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Float tensor of shape `(B, S, C')` for cross-attention; None attends to `query` itself.
        mask: Boolean, True = keep: `(B, S)` over the keys or, at quadratic cost, `(B, T, S)` in full.
        causal: Whether position `t` sees positions `<= t` only.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Linear(num_heads=4)
        >>> tuple(block(keras.ops.ones((2, 5, 32)), causal=True).shape)
        (2, 5, 32)

    References:
        - [Katharopoulos et al., 2020](https://arxiv.org/abs/2006.16236)
    """

    def __init__(
        self,
        num_heads: int,
        *,
        dropout: float = 0.0,
        chunk: int = 64,
        initializer_std: float = 0.02,
        output_std: float | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (("num_heads", num_heads), ("chunk", chunk)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.num_heads = num_heads
        self.dropout = dropout
        self.chunk = chunk
        self.initializer_std = initializer_std
        self.output_std = output_std

    def build(self, query_shape, context_shape=None):
        self.compute_output_shape(query_shape)
        dim = query_shape[-1]
        memory_shape = context_shape or query_shape
        std = self.initializer_std if self.output_std is None else self.output_std
        self.query = self._dense(dim, query_shape, self.initializer_std, "query")
        self.key = self._dense(dim, memory_shape, self.initializer_std, "key")
        self.value = self._dense(dim, memory_shape, self.initializer_std, "value")
        self.output_projection = self._dense(dim, query_shape, std, "output")
        self.drop = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        self.head_dim = dim // self.num_heads

    def _dense(self, units, input_shape, std, name):
        initializer = keras.initializers.RandomNormal(stddev=std)
        dense = keras.layers.Dense(units, kernel_initializer=initializer, dtype=self.dtype_policy, name=name)
        dense.build(input_shape)
        return dense

    def call(self, query, context=None, *, mask=None, causal=False, training=None):
        if causal and context is not None:
            raise ValueError("`causal` is for self-attention: a context has no future. Received: causal=True")
        q, k, v = self._features(query, query if context is None else context)
        if mask is not None and len(mask.shape) == 3:
            mean = _weighted(self._pairs(q, k, mask, causal), v)  # (B, H, T, D)
        else:
            if mask is not None:
                k = k * ops.cast(mask, k.dtype)[:, None, :, None]  # (B, H, S, D)
            mean = _causal(q, k, v, self.chunk) if causal else _normalised(q, *_sums(k, v))  # (B, H, T, D)
        return self.drop(self._joined(mean), training=training)  # (B, T, C)

    def attention_weights(self, query, context=None, *, mask=None, causal=False):
        """The weights `(B, H, T, S)` that the features amount to."""
        q, k, _ = self._features(query, query if context is None else context)
        if mask is not None and len(mask.shape) == 2:
            mask = mask[:, None]
        pairs = self._pairs(q, k, mask, causal)
        return pairs / (ops.sum(pairs, axis=-1, keepdims=True) + EPSILON)

    def _features(self, query, context):
        """Positive features of queries and keys, and values; float32, because sums over a whole sequence grow."""
        q, k, v = (
            self._heads(dense(x)) for dense, x in ((self.query, query), (self.key, context), (self.value, context))
        )
        return ops.elu(q) + 1, ops.elu(k) + 1, v  # (B, H, T, D), (B, H, S, D) twice

    def _heads(self, x):
        x = ops.reshape(ops.cast(x, "float32"), (*ops.shape(x)[:2], self.num_heads, self.head_dim))
        return ops.transpose(x, (0, 2, 1, 3))  # (B, H, T, D)

    def _joined(self, x):
        x = ops.cast(ops.transpose(x, (0, 2, 1, 3)), self.compute_dtype)  # (B, T, H, D)
        return self.output_projection(ops.reshape(x, (*ops.shape(x)[:2], self.num_heads * self.head_dim)))

    def _pairs(self, q, k, mask, causal):
        pairs = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2)))  # (B, H, T, S)
        if causal:
            pairs = pairs * ops.tril(ops.ones(ops.shape(pairs)[-2:]))
        return pairs if mask is None else pairs * ops.cast(mask, pairs.dtype)[:, None]

    def init_state(self, batch_size, max_length, context=None, context_mask=None):
        """The carried sums, of a size that does not depend on the length; for a context they are final."""
        if context is not None:
            k, v = ops.elu(self._heads(self.key(context))) + 1, self._heads(self.value(context))
            if context_mask is not None:
                k = k * ops.cast(context_mask, k.dtype)[:, None, :, None]
            products, total = _sums(k, v)
            return {"context_products": products, "context_total": total}
        heads, width = self.num_heads, self.head_dim
        return {
            "products": ops.zeros((batch_size, heads, width, width)),
            "total": ops.zeros((batch_size, heads, width)),
        }

    def step(self, query, state, index):
        """One token or a whole prompt; the index is not needed, because the state knows no positions."""
        if "context_products" in state:
            q = ops.elu(self._heads(self.query(query))) + 1
            return self._joined(_normalised(q, state["context_products"], state["context_total"])), state
        q, k, v = self._features(query, query)
        mean, products, total = _chunk(q, k, v, state["products"], state["total"])
        return self._joined(mean), {"products": products, "total": total}

    def compute_mask(self, query, previous_mask=None):
        return None

    def compute_output_shape(self, query_shape, context_shape=None):
        if query_shape[-1] % self.num_heads:
            raise ValueError(
                "The width must be divisible by the number of heads. "
                f"Received: dim={query_shape[-1]}, num_heads={self.num_heads}"
            )
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "chunk": self.chunk,
            "initializer_std": self.initializer_std,
            "output_std": self.output_std,
        }


def _sums(k, v):
    """The sum of `k v^T` `(.., D, D)` and of `k` `(.., D)` over the keys."""
    return ops.matmul(ops.swapaxes(k, -1, -2), v), ops.sum(k, axis=-2)


def _normalised(q, products, total):
    return ops.matmul(q, products) / (ops.matmul(q, total[..., None]) + EPSILON)


def _weighted(pairs, v):
    return ops.matmul(pairs, v) / (ops.sum(pairs, axis=-1, keepdims=True) + EPSILON)


def _chunk(q, k, v, products, total):
    """Causal attention within `(.., L, D)`, given the sums of what came before; and the sums after it."""
    pairs = ops.matmul(q, ops.swapaxes(k, -1, -2))  # (.., L, L)
    pairs = pairs * ops.tril(ops.ones(ops.shape(pairs)[-2:]))
    above = ops.matmul(pairs, v) + ops.matmul(q, products)  # (.., L, D)
    below = ops.sum(pairs, axis=-1, keepdims=True) + ops.matmul(q, total[..., None])  # (.., L, 1)
    more_products, more_total = _sums(k, v)
    return above / (below + EPSILON), products + more_products, total + more_total


def _causal(q, k, v, size):
    """All chunks at once: the sums before each chunk are running totals over the chunks."""
    length = ops.shape(q)[2]
    missing = -length % size
    q, k, v = (ops.pad(x, ((0, 0), (0, 0), (0, missing), (0, 0))) for x in (q, k, v))
    q, k, v = (ops.reshape(x, (*ops.shape(x)[:2], -1, size, x.shape[-1])) for x in (q, k, v))  # (B, H, N, L, D)
    # Keys of the filling are features of nothing: zero, so they add nothing to any sum.
    products, total = _sums(k, v)  # (B, H, N, D, D), (B, H, N, D)
    products = ops.cumsum(products, axis=2) - products  # before each chunk
    total = ops.cumsum(total, axis=2) - total
    mean, _, _ = _chunk(q, k, v, products, total)  # (B, H, N, L, D)
    return ops.reshape(mean, (*ops.shape(mean)[:2], -1, mean.shape[-1]))[:, :, :length]  # (B, H, T, D)
