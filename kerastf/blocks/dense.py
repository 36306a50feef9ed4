"""The linear map, as Keras has it, with a gradient for GPUs. Shapes: B batch, T time, C channels, U units."""

import keras
from keras import ops

from kerastf import halves, kernels


class Dense(keras.layers.Dense):
    """Keras's `Dense`, whose bias is added by `kerastf.kernels.add_bias`, which is cheaper to train on JAX with a GPU.

    Args:
        units: Width U of the output.
        **kwargs: Passed to `keras.layers.Dense` (`use_bias`, `kernel_initializer`, `name`, `dtype`, ...).

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
        if self.bias is not None:
            x = kernels.add_bias(x, ops.convert_to_tensor(self.bias, dtype=self.compute_dtype))
        return x if self.activation is None else self.activation(x)

    def quantize(self, mode=None, type_check=True, config=None):
        super().quantize(mode, type_check=False, config=config)  # Keras's check refuses any subclass
