"""Dropout, as Keras has it, with fewer random bits. Shapes: any."""

import keras

from kerastf import functional


class Dropout(keras.layers.Dropout):
    """Keras's dropout for tensors of any shape, by `kerastf.functional.drop`, which is cheaper on TensorFlow.

    Args:
        rate: Fraction that is dropped, in `[0, 1)`.
        seed: Seed of what is dropped; None for a random one.
        **kwargs: Passed to `keras.layers.Dropout` (`name`, `dtype`, ...).

    Call arguments:
        inputs: Float tensor of any shape.
        training: Whether anything is dropped.

    Returns:
        Float tensor of the same shape.

    Examples:
        >>> x = keras.ops.ones((100, 100))
        >>> y = keras.ops.convert_to_numpy(Dropout(0.5, seed=1)(x, training=True))
        >>> sorted({float(n) for n in y.ravel()})
        [0.0, 2.0]
    """

    def __init__(self, rate: float, *, seed: int | None = None, **kwargs):
        super().__init__(rate, seed=seed, **kwargs)

    def call(self, inputs, training=False):
        if self.noise_shape is not None:
            return super().call(inputs, training=training)
        return functional.drop(inputs, self.rate, self.seed_generator) if training and self.rate else inputs
