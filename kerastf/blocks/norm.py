"""Normalisation blocks. Shapes: B batch, T time, C channels.

A norm may also offer `beside(x)`: `x` and what a call makes of it. Layers whose residual connection reads that `x` then
have one gradient for both, which the norm adds up.
"""

import keras
from keras import ops

from kerastf import functional
from kerastf.registry import register


def _exact(layer, name, initializer, x_shape):
    """A weight `(C,)` that is not rounded where the model computes in half precision: a norm computes in float32."""
    return layer.add_weight(shape=(x_shape[-1],), initializer=initializer, name=name, autocast=False)


@register("norm", "layer", supports=("causal",))
class LayerNorm(keras.layers.Layer):
    """Layer normalisation: each position gets mean 0 and deviation 1 over its channels, then a gain and a shift.

    `y = g * (x - mean(x)) / sqrt(var(x) + epsilon) + b`

    Args:
        epsilon: Keeps the division finite.
        bias: Whether there is a shift `b`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> norm = LayerNorm()
        >>> [round(float(v), 3) for v in norm(keras.ops.array([[[1.0, 2.0, 3.0]]]))[0, 0]]
        [-1.225, 0.0, 1.225]

    References:
        - [Ba et al., 2016](https://arxiv.org/abs/1607.06450)
    """

    def __init__(self, *, epsilon: float = 1e-5, bias: bool = True, **kwargs):
        super().__init__(**kwargs)
        if epsilon <= 0:
            raise ValueError(f"`epsilon` must be positive. Received: epsilon={epsilon}")
        self.supports_masking = True
        self.epsilon = epsilon
        self.bias = bias

    def build(self, x_shape):
        self.gain = _exact(self, "gain", "ones", x_shape)
        self.shift = _exact(self, "shift", "zeros", x_shape) if self.bias else None

    def call(self, x):
        return self._normalise(x)  # (B, T, C)

    def beside(self, x):
        """`x` and its normal form, for a residual connection around what reads the latter: `x + f(norm(x))`."""
        if type(self).call is not LayerNorm.call or keras.backend.is_keras_tensor(x):
            return x, self(x)
        return self._normalise(ops.cast(x, self.compute_dtype), beside=True)  # (B, T, C) each

    def _normalise(self, x, **how):
        gain, shift = ops.cast(self.gain, "float32"), ops.cast(self.shift, "float32") if self.bias else None
        return functional.normalise(x, gain, shift, epsilon=self.epsilon, dtype=self.compute_dtype, **how)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon, "bias": self.bias}


@register("norm", "rms", supports=("causal",))
class RMSNorm(keras.layers.Layer):
    """Root-mean-square normalisation: layer normalisation without the mean and without the shift.

    `y = g * x / sqrt(mean(x^2) + epsilon)`

    Args:
        epsilon: Keeps the division finite.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> norm = RMSNorm()
        >>> [round(float(v), 3) for v in norm(keras.ops.array([[[3.0, 4.0]]]))[0, 0]]
        [0.849, 1.131]

    References:
        - [Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467)
    """

    def __init__(self, *, epsilon: float = 1e-5, **kwargs):
        super().__init__(**kwargs)
        if epsilon <= 0:
            raise ValueError(f"`epsilon` must be positive. Received: epsilon={epsilon}")
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, x_shape):
        self.gain = _exact(self, "gain", "ones", x_shape)

    def call(self, x):
        h = ops.cast(x, "float32")
        power = ops.mean(ops.square(h), axis=-1, keepdims=True)  # (B, T, 1)
        h = h * ops.rsqrt(power + self.epsilon) * ops.cast(self.gain, "float32")  # (B, T, C)
        return ops.cast(h, self.compute_dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


@register("norm", "none", supports=("causal",))
class NoNorm(keras.layers.Layer):
    """No normalisation: `y = x`, for models whose norm is a choice.

    Args:
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(NoNorm()(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, x):
        return x

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape
