"""From logits to codes by Gumbel-softmax. Shapes: B batch, h and w sides of the grid, K codes, E width of a code."""

import math
from typing import Literal

import keras
from keras import ops


def gumbel_softmax(logits, noise, temperature, *, straight_through=False):
    """A sample from softmax(logits) that gradients flow through.

    `y = softmax((logits + g) / temperature)`, with `g` Gumbel noise; the lower the temperature, the closer to one-hot

    Args:
        logits: Float tensor `(.., K)`.
        noise: Gumbel noise of the same shape; zeros for the most likely code.
        temperature: A positive number.
        straight_through: Whether the value is exactly one-hot, with the gradient of the soft one.

    Returns:
        Float tensor `(.., K)` that sums to 1.

    Examples:
        >>> logits = ops.convert_to_tensor([[0.0, 1.0]])
        >>> gumbel_softmax(logits, ops.zeros((1, 2)), 1.0, straight_through=True).numpy().tolist()
        [[0.0, 1.0]]
    """
    soft = ops.softmax((logits + noise) / temperature, axis=-1)
    if not straight_through:
        return soft
    hard = ops.one_hot(ops.argmax(soft, axis=-1), soft.shape[-1], dtype=soft.dtype)
    return hard + (soft - ops.stop_gradient(soft))  # in brackets, so that it adds exactly nothing


def gumbel_noise(uniform):
    """Gumbel noise `-log(-log(u))` from uniform numbers `u` in `[0, 1)`."""
    uniform = ops.clip(uniform, 1e-7, 1 - 1e-7)
    return -ops.log(-ops.log(uniform))


def temperature_at(step, *, start, end, steps, anneal="cosine"):
    """The temperature after a number of training steps: from `start` to `end`, then `end`.

    With `p = min(step / steps, 1)`: `"linear"` is `start + p (end - start)`, `"exponential"` `start (end / start)^p`,
    `"cosine"` `end + (start - end) (1 + cos(pi p)) / 2`.

    Args:
        step: How many steps were trained, a number or a tensor.
        start: Temperature at step 0.
        end: Temperature from step `steps` on.
        steps: How many steps it takes; 0 for `end` at once.
        anneal: `"cosine"`, `"exponential"` or `"linear"`.

    Returns:
        A float32 scalar.

    Examples:
        >>> [round(float(temperature_at(n, start=1.0, end=0.5, steps=10)), 3) for n in (0, 5, 10, 99)]
        [1.0, 0.75, 0.5, 0.5]
    """
    part = ops.minimum(ops.cast(step, "float32") / max(steps, 1), 1.0) if steps else ops.ones(())
    if anneal == "linear":
        return start + part * (end - start)
    if anneal == "exponential":
        return start * ops.exp(part * math.log(end / start))
    return end + (start - end) * (1 + ops.cos(math.pi * part)) / 2


class GumbelCodes(keras.layers.Layer):
    """Chooses a code for each place and gives its vector: `z = y C`, `y` from `gumbel_softmax`, `C` the codebook.

    In training noise is added, and the temperature falls with every step: the layer counts them itself. In inference
    the most likely code is taken.

    Args:
        num_codes: How many codes K there are.
        code_dim: Width E of a code's vector.
        temperature: Temperature at the first step.
        end_temperature: Temperature after `anneal_steps` steps.
        anneal_steps: How many steps it takes.
        anneal: How it falls: `"cosine"`, `"exponential"` or `"linear"`.
        straight_through: Whether training, too, takes one code, with the gradient of the soft choice.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        logits: Float tensor of shape `(B, h, w, K)`.
        training: Whether codes are drawn with noise, and the step counts.

    Returns:
        Float tensor of shape `(B, h, w, E)`.

    Examples:
        >>> tuple(GumbelCodes(num_codes=8, code_dim=4)(ops.zeros((2, 3, 3, 8))).shape)
        (2, 3, 3, 4)

    References:
        - [Jang et al., 2016](https://arxiv.org/abs/1611.01144)
        - [Maddison et al., 2016](https://arxiv.org/abs/1611.00712)
    """

    def __init__(
        self, num_codes: int, code_dim: int, *, temperature: float = 1.0, end_temperature: float = 1.0,
        anneal_steps: int = 0, anneal: Literal["cosine", "exponential", "linear"] = "cosine",
        straight_through: bool = False, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.num_codes = num_codes
        self.code_dim = code_dim
        self.schedule = {"start": temperature, "end": end_temperature, "steps": anneal_steps, "anneal": anneal}
        self.straight_through = straight_through
        self.seed = keras.random.SeedGenerator()

    def build(self, logits_shape):
        self.codebook = self.add_weight(
            shape=(self.num_codes, self.code_dim), initializer=keras.initializers.RandomNormal(stddev=1.0),
            name="codebook",
        )  # fmt: skip
        self.steps = self.add_weight(
            shape=(), initializer="zeros", dtype="int32", trainable=False, aggregation="only_first_replica",
            name="steps",
        )  # fmt: skip

    @property
    def temperature(self):
        """The temperature of the next training step, a scalar tensor."""
        return temperature_at(self.steps, **self.schedule)

    def call(self, logits, training=None):
        logits = ops.cast(logits, "float32")  # (B, h, w, K)
        if training:
            noise = gumbel_noise(keras.random.uniform(ops.shape(logits), seed=self.seed))
            choice = gumbel_softmax(logits, noise, self.temperature, straight_through=self.straight_through)
            self.steps.assign_add(1)
        else:  # the value is one-hot; the gradient, should one be asked for, that of the softmax
            choice = gumbel_softmax(logits, ops.zeros_like(logits), 1.0, straight_through=True)
        return ops.matmul(ops.cast(choice, self.compute_dtype), ops.cast(self.codebook, self.compute_dtype))

    def vectors(self, codes):
        """The vectors `(.., E)` of codes `(..)`."""
        return ops.take(ops.cast(self.codebook, self.compute_dtype), codes, axis=0)

    def compute_output_shape(self, logits_shape):
        return (*logits_shape[:-1], self.code_dim)

    def get_config(self):
        return {
            **super().get_config(),
            "num_codes": self.num_codes,
            "code_dim": self.code_dim,
            "temperature": self.schedule["start"],
            "end_temperature": self.schedule["end"],
            "anneal_steps": self.schedule["steps"],
            "anneal": self.schedule["anneal"],
            "straight_through": self.straight_through,
        }
