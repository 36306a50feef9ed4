"""Embedding blocks: what a model reads, as vectors.

What a block reads stands in its `supports`: tokens `(B, T)` where nothing else is said, `images` `(B, H, W, D)`, or
`vectors` `(B, N, D)`. Shapes: B batch, T time, C channels, V vocabulary, P side of a patch, N patches, D inputs.
"""

from typing import Literal

import keras
from keras import ops

from kerastf import functional, lookups
from kerastf.blocks.dense import Dense
from kerastf.registry import register


@register("embedding", "token", supports=("tied",))
class Token(keras.layers.Layer):
    """One learned vector per token: `y_t = E[token_t]`. A tied head reads the same matrix `E`.

    Args:
        vocab_size: How many tokens there are.
        dim: Width C of a vector.
        initializer_std: Deviation of the vectors at the start.
        initializer: Whether they are drawn from a `"normal"` or a `"uniform"` distribution.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`, values in `[0, V)`.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Token(vocab_size=10, dim=4)
        >>> tuple(block(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 4)
    """

    def __init__(
        self, vocab_size: int, dim: int, *, initializer_std: float = 0.02,
        initializer: Literal["normal", "uniform"] = "normal", **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        for name, value in (("vocab_size", vocab_size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        self.supports_masking = True
        self.vocab_size = vocab_size
        self.dim = dim
        self.initializer_std = initializer_std
        self.initializer = initializer

    def build(self, tokens_shape):
        bound = self.initializer_std * 3**0.5
        self.matrix = self.add_weight(
            shape=(self.vocab_size, self.dim),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std)
            if self.initializer == "normal"
            else keras.initializers.RandomUniform(-bound, bound),
            name="matrix",
        )

    def call(self, tokens):
        return lookups.rows(self.matrix, tokens)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, tokens_shape):
        return (*tokens_shape, self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "dim": self.dim,
            "initializer_std": self.initializer_std,
            "initializer": self.initializer,
        }


@register("embedding", "patch", supports=("images",))
class Patch(keras.layers.Layer):
    """Cuts an image into patches and maps each to a vector: `y_n = W flatten(patch_n) + b`.

    Patches are taken row by row; a patch is flattened row by row, channels last. This is a convolution whose stride is
    its kernel's size.

    Args:
        dim: Width C of a vector.
        patch_size: Side P of a patch in pixels, or its height and width.
        kernel_std: Deviation of the kernel at the start; None for `1 / sqrt(inputs)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        images: Float tensor of shape `(B, H, W, D)`, H and W multiples of P.

    Returns:
        Float tensor of shape `(B, N, C)` with `N = H / P * W / P`.

    Examples:
        >>> block = Patch(dim=8, patch_size=4)
        >>> tuple(block(keras.ops.ones((2, 8, 12, 3))).shape)
        (2, 6, 8)

    References:
        - [Dosovitskiy et al., 2020](https://arxiv.org/abs/2010.11929), section 3.1
    """

    def __init__(
        self, dim: int, patch_size: int | list[int] = 16, *, kernel_std: float | None = None, **kwargs
    ):  # fmt: skip
        super().__init__(**kwargs)
        if dim < 1:
            raise ValueError(f"`dim` must be at least 1. Received: dim={dim}")
        self.supports_masking = True
        self.dim = dim
        self.patch_size = patch_size
        self.kernel_std = kernel_std
        self.sides = functional.pair("patch_size", patch_size)

    def build(self, images_shape):
        self.compute_output_shape(images_shape)
        self.project = _linear(self, self.sides[0] * self.sides[1] * images_shape[-1])

    def call(self, images):
        return self.project(functional.patches(images, self.sides))  # (B, N, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, images_shape):
        if len(images_shape) != 4:
            raise ValueError(
                f"Patches are cut from images of shape (batch, height, width, channels). "
                f"Received: shape {tuple(images_shape)}"
            )
        rows, columns = functional.patch_grid(images_shape[1:3], self.sides)
        count = None if rows is None or columns is None else rows * columns
        return (images_shape[0], count, self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            "dim": self.dim,
            "patch_size": self.patch_size,
            "kernel_std": self.kernel_std,
        }


@register("embedding", "vector", supports=("vectors",))
class Vector(keras.layers.Layer):
    """Maps ready-made vectors, such as the frames of a video or patches, to the width of the model: `y_n = W x_n + b`.

    Args:
        dim: Width C of the output.
        kernel_std: Deviation of the kernel at the start; None for `1 / sqrt(inputs)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        vectors: Float tensor of shape `(B, N, D)`.

    Returns:
        Float tensor of shape `(B, N, C)`.

    Examples:
        >>> tuple(Vector(dim=8)(keras.ops.ones((2, 5, 3))).shape)
        (2, 5, 8)
    """

    def __init__(self, dim: int, *, kernel_std: float | None = None, **kwargs):
        super().__init__(**kwargs)
        if dim < 1:
            raise ValueError(f"`dim` must be at least 1. Received: dim={dim}")
        self.supports_masking = True
        self.dim = dim
        self.kernel_std = kernel_std

    def build(self, vectors_shape):
        self.project = _linear(self, vectors_shape[-1])

    def call(self, vectors):
        return self.project(vectors)  # (B, N, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, vectors_shape):
        return (*vectors_shape[:-1], self.dim)

    def get_config(self):
        return {**super().get_config(), "dim": self.dim, "kernel_std": self.kernel_std}


def _linear(block, inputs):
    """The linear map of a block from vectors of some width to its own."""
    std = inputs**-0.5 if block.kernel_std is None else block.kernel_std
    dense = Dense(
        block.dim, kernel_initializer=keras.initializers.TruncatedNormal(stddev=std), dtype=block.dtype_policy,
        name="project",
    )  # fmt: skip
    dense.build((None, None, inputs))
    return dense


class ExtraTokens(keras.layers.Layer):
    """Learned vectors that join the sequence of every row: a class token, registers.

    Args:
        count: How many there are.
        after: How many tokens of the sequence stand before them.
        initializer_std: Deviation of the vectors at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.

    Returns:
        Float tensor of shape `(B, T + count, C)`.

    References:
        - [Darcet et al., 2023](https://arxiv.org/abs/2309.16588) for registers
    """

    def __init__(self, count: int = 1, *, after: int = 0, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.count = count
        self.after = after
        self.initializer_std = initializer_std

    def build(self, x_shape):
        self.table = self.add_weight(
            shape=(self.count, x_shape[-1]),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_std),
            name="table",
        )

    def call(self, x):
        shape = (ops.shape(x)[0], self.count, x.shape[-1])
        extra = ops.broadcast_to(ops.cast(self.table, x.dtype)[None], shape)  # (B, count, C)
        return ops.concatenate([x[:, : self.after], extra, x[:, self.after :]], axis=1)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        length = None if x_shape[1] is None else x_shape[1] + self.count
        return (x_shape[0], length, x_shape[2])

    def get_config(self):
        return {
            **super().get_config(),
            "count": self.count,
            "after": self.after,
            "initializer_std": self.initializer_std,
        }


class Segment(keras.layers.Layer):
    """One learned vector per segment, added: `y_t = x_t + S[segment_t]`. It tells a second text from the first.

    Args:
        num_segments: How many segments N there are.
        initializer_std: Deviation of the vectors at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        segments: Integer tensor of shape `(B, T)`, values in `[0, N)`; None for segment 0 everywhere.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> tuple(Segment(2)(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)
    """

    def __init__(self, num_segments: int, *, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_segments = num_segments
        self.initializer_std = initializer_std

    def build(self, x_shape, segments_shape=None):
        self.table = self.add_weight(
            shape=(self.num_segments, x_shape[-1]),
            initializer=keras.initializers.RandomNormal(stddev=self.initializer_std),
            name="table",
        )

    def call(self, x, segments=None):
        table = ops.cast(self.table, x.dtype)  # (N, C)
        return x + (table[0] if segments is None else ops.take(table, ops.cast(segments, "int32"), axis=0))  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape, segments_shape=None):
        return x_shape

    def get_config(self):
        return {**super().get_config(), "num_segments": self.num_segments, "initializer_std": self.initializer_std}
