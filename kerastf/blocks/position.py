"""Position blocks: how a model knows the order. Shapes: B batch, T time, S keys, C channels, H heads, D per head.

What a block acts on stands in its `supports`: `embeddings` (called with the embeddings and the first position),
`rotation` (called by the attention with queries or keys and their positions), or `bias` (called by the attention with
the positions of queries and keys; its output is added to the scores).
"""

import keras
from keras import ops

from kerastf import functional
from kerastf.registry import register


@register("position", "none", supports=("embeddings",))
class NoPosition(keras.layers.Layer):
    """No position at all: `y = x`. A causal model can still count what it sees.

    Args:
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        index: Position of the first token, a scalar or one per row.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(NoPosition()(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, x, index=0):
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape


@register("position", "learned", supports=("embeddings",))
class Learned(keras.layers.Layer):
    """One learned vector per position: `y_t = x_t + P[t]`.

    Args:
        max_length: How many positions there are.
        initializer_std: Deviation of the vectors at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        index: Position of the first token, a scalar or one per row.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(Learned(max_length=16)(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, max_length: int, *, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        if max_length < 1:
            raise ValueError(f"`max_length` must be at least 1. Received: max_length={max_length}")
        self.supports_masking = True
        self.max_length = max_length
        self.initializer_std = initializer_std

    def build(self, x_shape):
        self.table = self.add_weight(
            shape=(self.max_length, x_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            name="table",
        )

    def call(self, x, index=0):
        length = x.shape[1]
        if isinstance(length, int) and length > self.max_length:  # JAX exports lengths that stand for any number
            raise ValueError(
                f"The input has {length} positions and this model learns {self.max_length}. Cut the input, or build "
                f"the model with max_length={length}. Received: input of shape {tuple(x.shape)}"
            )
        where = functional.positions(ops.shape(x)[1], index)  # (T,) or (B, T)
        return x + ops.take(ops.cast(self.table, x.dtype), where, axis=0)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_length": self.max_length,
            "initializer_std": self.initializer_std,
        }


@register("position", "sinusoidal", supports=("embeddings",))
class Sinusoidal(keras.layers.Layer):
    """Sines and cosines of geometrically spaced wavelengths, without weights; works at any length.

    `P[t, 2i] = sin(t / base^(2i/C))`, `P[t, 2i+1] = cos(t / base^(2i/C))`, and `y_t = x_t + P[t]`

    Args:
        layout: `"interleaved"` as in the equation, or `"concatenated"`: all sines, then all cosines.
        base: Ratio of the wavelengths' range.
        scale: What the code is multiplied by; about the size of the embeddings, so that it does not drown them.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`, C even.
        index: Position of the first token, a scalar or one per row.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> [round(float(v), 3) for v in Sinusoidal()(keras.ops.zeros((1, 2, 4)))[0, 1]]
        [0.841, 0.54, 0.01, 1.0]

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5
    """

    def __init__(
        self, *, layout: str = "interleaved", base: float = 10000.0, scale: float = 1.0, **kwargs
    ):  # fmt: skip
        super().__init__(**kwargs)
        if layout not in ("interleaved", "concatenated"):
            raise ValueError(f"`layout` must be 'interleaved' or 'concatenated'. Received: layout={layout!r}")
        if base <= 1:
            raise ValueError(f"`base` must be greater than 1. Received: base={base}")
        self.supports_masking = True
        self.layout = layout
        self.base = base
        self.scale = scale
        self.built = True

    def call(self, x, index=0):
        self.compute_output_shape(x.shape)
        where = functional.positions(ops.shape(x)[1], index)  # (T,) or (B, T)
        code = functional.sinusoids(where, x.shape[-1], layout=self.layout, base=self.base)  # (.., T, C)
        return x + ops.cast(self.scale * code, x.dtype)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        if x_shape[-1] % 2:
            raise ValueError(f"A sinusoidal position needs an even width. Received: dim={x_shape[-1]}")
        return x_shape

    def get_config(self):
        return {**super().get_config(), "layout": self.layout, "base": self.base, "scale": self.scale}


@register("position", "rotary", supports=("rotation",))
class Rotary(keras.layers.Layer):
    """Rotary position: queries and keys are turned by an angle that grows with their position.

    `q_t k_s` then depends on `t - s` alone: `(R^t q)(R^s k) = q R^(s-t) k`. The attention applies it.

    Args:
        base: Ratio of the wavelengths' range.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Queries or keys, `(B, T, H, D)`, D even.
        where: Their positions, `(T,)` or `(B, T)`.

    Returns:
        Float tensor of shape `(B, T, H, D)`.

    Examples:
        >>> turned = Rotary()(keras.ops.ones((1, 2, 1, 2)), keras.ops.arange(2))
        >>> [round(float(v), 3) for v in turned[0, 1, 0]]
        [-0.301, 1.382]

    References:
        - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
    """

    def __init__(self, *, base: float = 10000.0, **kwargs):
        super().__init__(**kwargs)
        if base <= 1:
            raise ValueError(f"`base` must be greater than 1. Received: base={base}")
        self.base = base
        self.built = True

    def call(self, x, where):
        return functional.rotate(x, where, base=self.base)  # (B, T, H, D)

    def compute_output_shape(self, x_shape, where_shape=None):
        if x_shape[-1] % 2:
            raise ValueError(f"A rotary position needs heads of even width. Received: {x_shape[-1]} channels per head")
        return x_shape

    def get_config(self):
        return {**super().get_config(), "base": self.base}


@register("position", "alibi", supports=("bias",))
class ALiBi(keras.layers.Layer):
    """Attention with linear biases: `score(t, s) - m_h |t - s|`, a fixed slope `m_h` per head. The attention adds it.

    Args:
        num_heads: How many heads there are.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query_positions: `(T,)` or `(B, T)`.
        key_positions: `(S,)` or `(B, S)`.

    Returns:
        Float32 tensor of shape `(H, T, S)` or `(B, H, T, S)`.

    Examples:
        >>> bias = ALiBi(num_heads=2)(keras.ops.arange(2), keras.ops.arange(2))
        >>> [float(b) for b in bias[:, 1, 0]]
        [-0.0625, -0.00390625]

    References:
        - [Press et al., 2021](https://arxiv.org/abs/2108.12409)
    """

    def __init__(self, num_heads: int, **kwargs):
        super().__init__(**kwargs)
        if num_heads < 1:
            raise ValueError(f"`num_heads` must be at least 1. Received: num_heads={num_heads}")
        self.num_heads = num_heads
        self.built = True

    def call(self, query_positions, key_positions):
        distance = ops.abs(ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2))  # (.., T, S)
        slopes = ops.reshape(ops.array(functional.slopes(self.num_heads), "float32"), (self.num_heads, 1, 1))
        return -slopes * ops.cast(ops.expand_dims(distance, -3), "float32")  # (.., H, T, S)

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        batch = query_positions_shape[:-1] or key_positions_shape[:-1]
        return (*batch, self.num_heads, query_positions_shape[-1], key_positions_shape[-1])

    def get_config(self):
        return {**super().get_config(), "num_heads": self.num_heads}
