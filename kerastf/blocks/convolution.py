"""Convolution over time. Shapes: B batch, T time, S source, C channels, D embedding width, K kernel size."""

import keras
from keras import ops

from kerastf.blocks.dropout import Dropout
from kerastf.config import create_block
from kerastf.registry import register

ROOT_HALF = 0.5**0.5  # the sum of two terms of variance 1 has variance 2; this scales it back


@register("feedforward", "gated_conv", supports=("causal",))
class GatedConv(keras.layers.Layer):
    """A convolution over time with a gated linear unit.

    `[a_t; b_t] = W [x_{t-K+1}; ...; x_t] + b`, and `y_t = a_t * sigmoid(b_t)`

    Without `causal` the K inputs stand around `t` instead, one more before than after where K is even. Beyond the ends,
    and where the mask is False, inputs are zeros, so that padding never changes real positions. There is no residual
    connection here: what stands around it, such as `TransformerLayer`, has one.

    Args:
        kernel_size: How many positions K one output sees.
        dropout: Fraction dropped from the input, in `[0, 1)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)`, True = keep, or None.
        causal: Whether position `t` sees positions `<= t` only; as a feed-forward it does.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = GatedConv(kernel_size=3)
        >>> tuple(block(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Dauphin et al., 2016](https://arxiv.org/abs/1612.08083)
        - [Gehring et al., 2017](https://arxiv.org/abs/1705.03122), sections 3.2 and 3.5
    """

    def __init__(self, kernel_size: int = 3, *, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        if kernel_size < 1:
            raise ValueError(f"`kernel_size` must be at least 1. Received: kernel_size={kernel_size}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.kernel_size = kernel_size
        self.dropout = dropout

    def build(self, x_shape):
        dim = x_shape[-1]
        # The gate halves what passes, so variance is kept by four times the usual one; dropout adds to it.
        std = (4 * (1 - self.dropout) / (self.kernel_size * dim)) ** 0.5
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")
        self.conv = keras.layers.Conv1D(
            2 * dim, self.kernel_size, padding="valid", data_format="channels_last",
            kernel_initializer=keras.initializers.RandomNormal(stddev=std), dtype=self.dtype_policy, name="conv",
        )  # fmt: skip
        self.conv.build((None, None, dim))
        self.dim = dim

    def call(self, x, mask=None, causal=True, training=None):
        x = self.drop(x, training=training)  # (B, T, C)
        if mask is not None:
            x = x * ops.cast(mask, x.dtype)[..., None]
        more = self.kernel_size - 1
        before = more if causal else (more + 1) // 2
        return self._gated(ops.pad(x, ((0, 0), (before, more - before), (0, 0))))  # (B, T, C)

    def _gated(self, x):
        """The outputs of a window that slides over `(B, K - 1 + T, C)`."""
        value, gate = ops.split(self.conv(x), 2, axis=-1)  # (B, T, C) each
        return value * ops.sigmoid(gate)

    def init_state(self, batch_size, max_length=None):
        """The last K - 1 inputs, zeros before the first step. They do not grow with `max_length`."""
        return {"window": ops.zeros((batch_size, self.kernel_size - 1, self.dim), dtype=self.compute_dtype)}

    def step(self, x, state, index=None):
        """Reads one token or a whole prompt `(B, T, C)`; returns the output and the next state.

        Args:
            x: `(B, T, C)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them. Not used: the state is all that is seen.
        """
        window = ops.concatenate([state["window"], ops.cast(x, self.compute_dtype)], axis=1)  # (B, K - 1 + T, C)
        return self._gated(window), {"window": window[:, x.shape[1] :]}

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "kernel_size": self.kernel_size, "dropout": self.dropout}


class ConvAttention(keras.layers.Layer):
    """How a convolutional decoder looks at the source, between the convolution and its residual connection.

    `q_t = (W h_t + g_t) sqrt(1/2)`, `c_t = sqrt(m) attention(q_t, context)`, `y_t = (h_t + U c_t) sqrt(1/2)`

    The query joins the layer's state `h` with the embedding `g` of the token before; `m` is how many source tokens
    there are, which makes up for the variance that a mean over them loses.

    Args:
        attention: The attention block: its name, or a dict with its name and options.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor `h` of shape `(B, T, C)`.
        embedded: Float tensor `g` of shape `(B, T, D)`.
        context: Float tensor of shape `(B, S, D)`.
        context_mask: Boolean `(B, S)`, True = keep, or None.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> layer = ConvAttention({"name": "luong", "score": "dot"})
        >>> x, embedded, context = (keras.ops.ones(s) for s in ((2, 5, 8), (2, 5, 4), (2, 7, 4)))
        >>> tuple(layer(x, embedded, context).shape)
        (2, 5, 8)

    References:
        - [Gehring et al., 2017](https://arxiv.org/abs/1705.03122), sections 3.3 and 3.4
    """

    def __init__(self, attention: str | dict, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.spec = attention
        self.read_maps = None

    def share(self, other):
        """Takes the maps `W` and `U` from another such layer from now on, which goes on owning them."""
        self.read_maps = lambda: other.maps()  # a closure: Keras would track the layer a second time

    def maps(self):
        """The maps `W` and `U`."""
        return (self.to_query, self.from_mean) if self.read_maps is None else self.read_maps()

    def build(self, x_shape, embedded_shape, context_shape):
        self.attention = create_block("attention", self.spec, name="attention", dtype=self.dtype_policy)
        self.attention.build(embedded_shape, context_shape)
        if self.read_maps is None:
            mean_shape = self.attention.compute_output_shape(embedded_shape, context_shape)
            self.to_query = dense(embedded_shape[-1], x_shape, self.dtype_policy, "to_query")
            self.from_mean = dense(x_shape[-1], mean_shape, self.dtype_policy, "from_mean")

    def call(self, x, embedded, context, context_mask=None, training=None):
        mean = self.attention(self._query(x, embedded), context, mask=context_mask, training=training)  # (B, T, D)
        return self._joined(x, mean * self._length_root(context, context_mask))

    def attention_weights(self, x, embedded, context, context_mask=None):
        """The weights `(B, H, T, S)` that `call` would use."""
        return self.attention.attention_weights(self._query(x, embedded), context, mask=context_mask)

    def _query(self, x, embedded):
        return (self.maps()[0](x) + embedded) * ROOT_HALF  # (B, T, D)

    def _joined(self, x, mean):
        return (x + self.maps()[1](mean)) * ROOT_HALF  # (B, T, C)

    def _length_root(self, context, mask):
        kept = ops.ones_like(context[..., 0]) if mask is None else mask  # (B, S)
        count = ops.sum(ops.cast(kept, "float32"), axis=-1)  # (B,)
        return ops.cast(ops.sqrt(ops.maximum(count, 1.0)), self.compute_dtype)[:, None, None]

    def init_state(self, batch_size, max_length, context, context_mask=None):
        """The decoding state: what depends on the context alone is computed here, once."""
        attention = self.attention.init_state(batch_size, max_length, context=context, context_mask=context_mask)
        return {"attention": attention, "length_root": self._length_root(context, context_mask)}

    def step(self, x, embedded, state, index):
        """One token or a whole prompt at position `index`; returns the output and the next state."""
        mean, attention = self.attention.step(self._query(x, embedded), state["attention"], index)
        return self._joined(x, mean * state["length_root"]), {**state, "attention": attention}

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, embedded_shape=None, context_shape=None, context_mask_shape=None):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "attention": self.spec}


def dense(units, input_shape, dtype, name):
    """A linear map that keeps the variance of its input: deviation `1 / sqrt(inputs)`."""
    std = input_shape[-1] ** -0.5
    initializer = keras.initializers.RandomNormal(stddev=std)
    layer = keras.layers.Dense(units, kernel_initializer=initializer, dtype=dtype, name=name)
    layer.build(input_shape)
    return layer
