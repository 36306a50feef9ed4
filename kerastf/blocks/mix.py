"""The learned mix of a model's layers. Shapes: B batch, L layers, T time, C channels."""

import keras
from keras import ops


class ScalarMix(keras.layers.Layer):
    """One weighted sum of all layers, with a weight per layer that the task learns.

    `y = gamma sum_l softmax(s)_l x_l`; a new mix is the mean.

    Args:
        norm: Whether each `x_l` is brought to mean 0 and deviation 1 over its channels before: layers then count by
            their weights alone. (The original took mean and deviation over all words of a batch, so that a sentence
            depended on its neighbours; here it does not.)
        epsilon: Added to the variance.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, L, T, C)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(ScalarMix()(keras.ops.ones((2, 3, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Peters et al., 2018](https://arxiv.org/abs/1802.05365), equation 1
    """

    def __init__(self, *, norm: bool = False, epsilon: float = 1e-6, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.norm = norm
        self.epsilon = epsilon

    def build(self, x_shape):
        self.scores = self.add_weight(shape=(x_shape[1],), initializer="zeros", name="scores")
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(self, x):
        if self.norm:
            wide = ops.cast(x, "float32")  # squares of half precision overflow
            mean = ops.mean(wide, axis=-1, keepdims=True)
            variance = ops.mean(ops.square(wide - mean), axis=-1, keepdims=True)
            x = ops.cast((wide - mean) * ops.rsqrt(variance + self.epsilon), x.dtype)  # (B, L, T, C)
        weights = ops.cast(self.weights_of_layers(), x.dtype)[:, None, None]  # (L, 1, 1)
        return ops.cast(self.gamma, x.dtype) * ops.sum(weights * x, axis=1)  # (B, T, C)

    def weights_of_layers(self):
        """The weights `softmax(s)`, `(L,)`."""
        return ops.softmax(ops.cast(self.scores, "float32"))

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return (x_shape[0], *x_shape[2:])

    def get_config(self):
        return {**super().get_config(), "norm": self.norm, "epsilon": self.epsilon}
