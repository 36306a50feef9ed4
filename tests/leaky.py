"""A norm that breaks its promise, for tests that must catch it."""

import keras
from keras import ops


class Peeks(keras.layers.Layer):
    """Subtracts the mean over time: every position sees the later ones.

    Args:
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x):
        return x - ops.mean(x, axis=1, keepdims=True)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape
