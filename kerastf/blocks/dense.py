"""The linear map, as Keras has it, with a gradient for GPUs. Shapes: B batch, T time, C channels, U units."""

import keras
from keras import ops

from kerastf import functional, halves


class Dense(keras.layers.Dense):
    """Keras's `Dense`, whose bias and activation are `functional.add_bias`, cheaper to train on JAX with a GPU.

    Args:
        units: Width U of the output.
        **kwargs: Passed to `keras.layers.Dense` (`activation`, `use_bias`, `kernel_initializer`, `name`, ...).

    Call arguments:
        inputs: Float tensor of shape `(B, T, C)`.
        training: Not used.

    Returns:
        Float tensor of shape `(B, T, U)`.

    Examples:
        >>> tuple(Dense(5)(keras.ops.ones((1, 2, 3))).shape)
        (1, 2, 5)
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)

    def call(self, inputs, training=None):
        x = halves.product(inputs, self.kernel)
        if self.bias is None:
            return self.activation(x)
        return functional.add_bias(x, ops.convert_to_tensor(self.bias, dtype=self.compute_dtype), self.activation)

    def quantize(self, mode=None, type_check=True, config=None):
        super().quantize(mode, type_check=False, config=config)  # Keras's check refuses any subclass
