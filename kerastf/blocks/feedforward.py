"""Feed-forward blocks: the same small network at every position. Shapes: B batch, T time, C channels, M hidden."""

import keras

from kerastf import functional
from kerastf.blocks.dense import Dense
from kerastf.blocks.dropout import Dropout
from kerastf.registry import register


class _FeedForward(keras.layers.Layer):
    """What the feed-forward blocks share: sizes, dropout and the two projections."""

    gates = False  # whether one half of the first projection, activated, is a gate of the other

    def __init__(
        self, mlp_dim: int | None = None, *, activation: str = "gelu", dropout: float = 0.0, bias: bool = True,
        initializer_std: float = 0.02, output_std: float | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if mlp_dim is not None and mlp_dim < 1:
            raise ValueError(f"`mlp_dim` must be at least 1. Received: mlp_dim={mlp_dim}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.dropout = dropout
        self.bias = bias
        self.initializer_std = initializer_std
        self.output_std = output_std
        self.activate = functional.activation_of(activation)

    def build(self, x_shape):
        dim = x_shape[-1]
        hidden = self.mlp_dim or self.default_hidden(dim)
        units, activation = (2 * hidden, None) if self.gates else (hidden, self.activate)
        self.expand = self._dense(units, self.initializer_std, "expand", activation=activation)
        self.expand.build(x_shape)
        std = self.initializer_std if self.output_std is None else self.output_std
        self.contract = self._dense(dim, std, "contract")
        self.contract.build((*x_shape[:-1], hidden))
        self.drop = Dropout(self.dropout, dtype=self.dtype_policy, name="drop")

    def _dense(self, units, std, name, **kwargs):
        return Dense(
            units, use_bias=self.bias, kernel_initializer=keras.initializers.RandomNormal(stddev=std),
            dtype=self.dtype_policy, name=name, **kwargs,
        )  # fmt: skip

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "mlp_dim": self.mlp_dim,
            "activation": self.activation,
            "dropout": self.dropout,
            "bias": self.bias,
            "initializer_std": self.initializer_std,
            "output_std": self.output_std,
        }


@register("feedforward", "mlp", supports=("causal",))
class MLP(_FeedForward):
    """Two linear maps with an activation between: `y = W2 act(W1 x + b1) + b2`.

    Args:
        mlp_dim: Width M of the hidden layer; `4 * C` by default.
        activation: Name of a Keras activation, or `"gelu_tanh"` for the tanh form of GELU.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        bias: Whether the linear maps have biases.
        initializer_std: Deviation of the first kernel at the start.
        output_std: Deviation of the second kernel at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = MLP(16)
        >>> tuple(block(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3
    """

    def default_hidden(self, dim):
        return 4 * dim

    def call(self, x, training=None):
        return self.drop(self.contract(self.expand(x)), training=training)  # (B, T, C)


@register("feedforward", "gated", supports=("causal",))
class Gated(_FeedForward):
    """A gated feed-forward: `y = W2 (act(Wg x) * (Wv x))`. SwiGLU with `"silu"`, GEGLU with `"gelu"`.

    Args:
        mlp_dim: Width M of the hidden layer; by default two thirds of `4 * C`, rounded up to a multiple of 8, which
            gives about as many weights as an `mlp` has.
        activation: Name of a Keras activation, or `"gelu_tanh"`.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        bias: Whether the linear maps have biases.
        initializer_std: Deviation of the first kernel at the start.
        output_std: Deviation of the second kernel at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Gated(16, activation="silu")
        >>> tuple(block(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Shazeer, 2020](https://arxiv.org/abs/2002.05202)
    """

    gates = True

    def default_hidden(self, dim):
        return -(-8 * dim // 24) * 8

    def call(self, x, training=None):
        gate, value = keras.ops.split(self.expand(x), 2, axis=-1)  # (B, T, M) each
        return self.drop(self.contract(self.activate(gate) * value), training=training)  # (B, T, C)
