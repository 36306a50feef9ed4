"""Words from their characters.

Shapes: B batch, T time, W characters of a word, D character width, F filters, C channels.
"""

from typing import Literal

import keras
from keras import ops

from kerastf.registry import register

# Filters of the original: [how many characters one sees, how many there are].
FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


class Highway(keras.layers.Layer):
    """A layer that a gate lets through or carries its input past.

    `g = sigmoid(W_g x + b_g)`, `y = g relu(W x + b) + (1 - g) x`

    The gate's bias starts at -2, so a new layer mostly carries.

    Args:
        activation: Activation of the transformed part.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(..., F)`.

    Returns:
        Float tensor of shape `(..., F)`.

    Examples:
        >>> tuple(Highway()(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Srivastava et al., 2015](https://arxiv.org/abs/1505.00387)
    """

    def __init__(self, *, activation: str = "relu", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activation = activation

    def build(self, x_shape):
        width = x_shape[-1]
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.gate = keras.layers.Dense(
            width, activation="sigmoid", kernel_initializer=initializer,
            bias_initializer=keras.initializers.Constant(-2.0), dtype=self.dtype_policy, name="gate",
        )  # fmt: skip
        self.transform = keras.layers.Dense(
            width, activation=self.activation, kernel_initializer=initializer.clone(), dtype=self.dtype_policy,
            name="transform",
        )  # fmt: skip
        self.gate.build(x_shape)
        self.transform.build(x_shape)

    def call(self, x):
        gate = self.gate(x)  # (..., F)
        return gate * self.transform(x) + (1 - gate) * x

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "activation": self.activation}


@register("embedding", "character_cnn", supports=("characters",))
class CharacterCNN(keras.layers.Layer):
    """A word's vector from its characters, so that a word never seen has one too.

    For each filter width k, `f = max_w activation(W_k [c_w; ...; c_{w+k-1}] + b_k)` over the places w of a word; the
    filters stand side by side, pass the highway layers, and are mapped to the width C where they are not as wide.

    A character is a number from 1 to `num_characters`, and 0 is none: it has the vector 0, and a word of nothing but 0
    is padding. `kerastf.text.WordCharacterTokenizer` writes words so.

    Args:
        dim: Width C of a word's vector.
        filters: A list of `[k, count]`.
        character_dim: Width D of a character's vector.
        num_highway: How many highway layers.
        activation: Of the convolution, `"relu"` or `"tanh"`.
        max_characters: How many characters W a word has, marks and filling included.
        num_characters: How many characters there are: the 256 bytes, and marks for the begin and end of a sentence, the
            begin and end of a word, and the filling of a word.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        tokens: Integer tensor of shape `(B, T, W)`, values in `[0, num_characters]`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = CharacterCNN(dim=6, filters=[[1, 4], [3, 8]])
        >>> tuple(block(keras.ops.ones((2, 5, 50), dtype="int32")).shape)
        (2, 5, 6)

    References:
        - [Kim et al., 2015](https://arxiv.org/abs/1508.06615)
        - [Peters et al., 2018](https://arxiv.org/abs/1802.05365)
    """

    def __init__(
        self, dim: int, *, filters: list[list[int]] = FILTERS, character_dim: int = 16, num_highway: int = 2,
        activation: Literal["relu", "tanh"] = "relu", max_characters: int = 50, num_characters: int = 261, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        sizes = {"dim": dim, "character_dim": character_dim, "num_characters": num_characters}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if num_highway < 0:
            raise ValueError(f"`num_highway` must be at least 0. Received: num_highway={num_highway}")
        self.filters = [[int(n) for n in pair] for pair in filters]
        if not self.filters or any(len(p) != 2 or min(p) < 1 for p in self.filters):
            raise ValueError(
                f"`filters` must be a list of [width, count], at least 1 each. Received: filters={filters}"
            )
        widest = max(width for width, _ in self.filters)
        if max_characters < widest:
            raise ValueError(
                f"`max_characters` must hold the widest filter, {widest}. Received: max_characters={max_characters}"
            )
        self.supports_masking = True
        self.dim = dim
        self.character_dim = character_dim
        self.num_highway = num_highway
        self.activation = activation
        self.max_characters = max_characters
        self.num_characters = num_characters

    @property
    def token_shape(self):
        """The shape of one token: its W characters."""
        return (self.max_characters,)

    @property
    def num_ids(self):
        """How many numbers there are for a character, 0 included."""
        return self.num_characters + 1

    def build(self, tokens_shape):
        self.matrix = self.add_weight(
            shape=(self.num_characters, self.character_dim),
            initializer=keras.initializers.RandomUniform(-1.0, 1.0),
            name="matrix",
        )
        self.convolutions = []
        for width, count in self.filters:
            std = (width * self.character_dim) ** -0.5
            layer = keras.layers.Conv1D(
                count, width, padding="valid", data_format="channels_last",
                kernel_initializer=keras.initializers.RandomUniform(-0.05, 0.05) if self.activation == "relu"
                else keras.initializers.RandomNormal(stddev=std),
                dtype=self.dtype_policy, name=f"filter_{len(self.convolutions)}",
            )  # fmt: skip
            layer.build((None, self.max_characters, self.character_dim))
            self.convolutions.append(layer)
        total = sum(count for _, count in self.filters)
        self.highways = [Highway(dtype=self.dtype_policy, name=f"highway_{i}") for i in range(self.num_highway)]
        for layer in self.highways:
            layer.build((None, total))
        self.project = None
        if total != self.dim:
            initializer = keras.initializers.RandomNormal(stddev=total**-0.5)
            self.project = keras.layers.Dense(
                self.dim, kernel_initializer=initializer, dtype=self.dtype_policy, name="project"
            )
            self.project.build((None, total))

    def call(self, tokens):
        shape = ops.shape(tokens)
        words = ops.reshape(ops.cast(tokens, "int32"), (-1, self.max_characters))  # (B T, W)
        matrix = ops.pad(ops.cast(self.matrix, self.compute_dtype), ((1, 0), (0, 0)))  # the vector of 0 is 0
        x = ops.take(matrix, words, axis=0)  # (B T, W, D)
        activation = keras.activations.get(self.activation)
        # Both activations grow, so the largest may be taken first, which is cheaper.
        found = [activation(ops.max(layer(x), axis=1)) for layer in self.convolutions]
        x = ops.concatenate(found, axis=-1)  # (B T, F)
        for layer in self.highways:
            x = layer(x)
        x = self.project(x) if self.project else x  # (B T, C)
        return ops.reshape(x, (shape[0], shape[1], self.dim))  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, tokens_shape):
        return (*tokens_shape[:-1], self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "filters": self.filters,
            "character_dim": self.character_dim,
            "num_highway": self.num_highway,
            "activation": self.activation,
            "max_characters": self.max_characters,
            "num_characters": self.num_characters,
        }
