"""A plugin of one block. Shapes: B batch, T time, C channels."""

import keras
from keras import ops

from kerastf import register


@register("norm", "unit", supports=("causal",))
class Unit(keras.layers.Layer):
    """Scales each position to length 1, then by a learned gain: `y = g x / sqrt(|x|^2 + epsilon)`.

    Args:
        epsilon: Keeps the division finite.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> [round(float(v), 3) for v in Unit()(keras.ops.array([[[3.0, 4.0]]]))[0, 0]]
        [0.6, 0.8]
    """

    def __init__(self, *, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.epsilon = epsilon

    def build(self, x_shape):
        self.gain = self.add_weight(shape=(x_shape[-1],), initializer="ones", name="gain")

    def call(self, x):
        h = ops.cast(x, "float32")  # (B, T, C)
        length = ops.sqrt(ops.sum(ops.square(h), axis=-1, keepdims=True) + self.epsilon)  # (B, T, 1)
        return ops.cast(h / length, self.compute_dtype) * self.gain  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
