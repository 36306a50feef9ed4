"""Positions on a grid, for images. Shapes: B batch, T time, S keys, C channels, H heads.

The tokens of a grid stand row by row. Tokens before them (a class token, registers) have no place in it.
"""

import keras
from keras import ops

from kerastf import functional
from kerastf.registry import register


def _grid_places(where, grid, prefix):
    """Row, column and whether there is such a place, for positions of a sequence that ends in a grid, row by row."""
    place = where - prefix
    inside = ops.logical_and(place >= 0, place < grid[0] * grid[1])
    place = ops.where(inside, place, 0)
    return place // grid[1], place % grid[1], inside


def _check_grid(grid, prefix):
    if len(grid) != 2 or any(n < 1 for n in grid):
        raise ValueError(f"`grid` must be two positive numbers, height and width. Received: grid={grid}")
    if prefix < 0:
        raise ValueError(f"`prefix` must not be negative. Received: prefix={prefix}")


@register("position", "sinusoidal_2d", supports=("embeddings",))
class Sinusoidal2D(keras.layers.Layer):
    """Sines and cosines of the row in one half of the channels, of the column in the other; without weights.

    `y_n = x_n + scale * [S(row_n), S(column_n)]`, with `S` the sinusoidal code of width C / 2

    Args:
        grid: Height and width of the grid whose places the positions are, row by row.
        prefix: How many tokens stand before the grid (a class token); they have no place, and stay as they are.
        base: Ratio of the wavelengths' range.
        scale: What the code is multiplied by.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`, C a multiple of 4.
        index: Position of the first token, a scalar or one per row.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Sinusoidal2D(grid=[2, 3])
        >>> [round(float(v), 3) for v in block(keras.ops.zeros((1, 6, 4)))[0, 4]]  # row 1, column 1
        [0.841, 0.54, 0.841, 0.54]

    References:
        - [Wang and Liu, 2019](https://arxiv.org/abs/1908.11415), section 3.1
        - [Chen et al., 2021](https://arxiv.org/abs/2104.02057), where a ViT uses it
    """

    def __init__(
        self, grid: list[int], *, prefix: int = 0, base: float = 10000.0, scale: float = 1.0, **kwargs
    ):  # fmt: skip
        super().__init__(**kwargs)
        _check_grid(grid, prefix)
        if base <= 1:
            raise ValueError(f"`base` must be greater than 1. Received: base={base}")
        self.supports_masking = True
        self.grid = list(grid)
        self.prefix = prefix
        self.base = base
        self.scale = scale
        self.built = True

    def call(self, x, index=0):
        self.compute_output_shape(x.shape)
        where = functional.positions(ops.shape(x)[1], index)  # (T,) or (B, T)
        row, column, inside = _grid_places(where, self.grid, self.prefix)
        half = x.shape[-1] // 2
        codes = [functional.sinusoids(place, half, base=self.base) for place in (row, column)]
        code = ops.concatenate(codes, axis=-1) * ops.cast(inside, "float32")[..., None]  # (.., T, C)
        return x + ops.cast(self.scale * code, x.dtype)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        if x_shape[-1] % 4:
            raise ValueError(f"A sinusoidal 2-D position needs a width divisible by 4. Received: dim={x_shape[-1]}")
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "grid": self.grid,
            "prefix": self.prefix,
            "base": self.base,
            "scale": self.scale,
        }


@register("position", "relative_2d", supports=("bias",))
class Relative2D(keras.layers.Layer):
    """A learned bias per head for each step (down, right) from query to key on a grid. The attention adds it.

    `score(t, s) + B_h[row_s - row_t, column_s - column_t]`

    Args:
        grid: Height and width of the grid whose places the positions are, row by row.
        num_heads: How many heads there are.
        prefix: How many tokens stand before the grid (a class token, registers); to them and from them the bias is 0.
        initializer_std: Deviation of the biases at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query_positions: `(T,)` or `(B, T)`.
        key_positions: `(S,)` or `(B, S)`.

    Returns:
        Float32 tensor of shape `(H, T, S)` or `(B, H, T, S)`.

    Examples:
        >>> block = Relative2D(grid=[2, 3], num_heads=4)
        >>> tuple(block(keras.ops.arange(6), keras.ops.arange(6)).shape), tuple(block.table.shape)
        ((4, 6, 6), (15, 4))

    References:
        - [Liu et al., 2021](https://arxiv.org/abs/2103.14030), section 3.2
    """

    def __init__(
        self, grid: list[int], num_heads: int, *, prefix: int = 0, initializer_std: float = 0.02, **kwargs
    ):  # fmt: skip
        super().__init__(**kwargs)
        _check_grid(grid, prefix)
        if num_heads < 1:
            raise ValueError(f"`num_heads` must be at least 1. Received: num_heads={num_heads}")
        self.grid = list(grid)
        self.num_heads = num_heads
        self.prefix = prefix
        self.initializer_std = initializer_std

    @property
    def steps(self):
        """How many different steps there are down and to the right, those back included."""
        return tuple(2 * n - 1 for n in self.grid)

    def build(self, query_positions_shape=None, key_positions_shape=None):
        self.table = self.add_weight(
            shape=(self.steps[0] * self.steps[1], self.num_heads),
            initializer=keras.initializers.TruncatedNormal(stddev=self.initializer_std),
            name="table",
        )

    def call(self, query_positions, key_positions):
        row_t, column_t, inside_t = _grid_places(query_positions, self.grid, self.prefix)
        row_s, column_s, inside_s = _grid_places(key_positions, self.grid, self.prefix)
        step = _differences(row_s, row_t) + self.grid[0] - 1  # (.., T, S), from 0 on
        side = _differences(column_s, column_t) + self.grid[1] - 1
        bias = ops.take(ops.cast(self.table, "float32"), step * self.steps[1] + side, axis=0)  # (.., T, S, H)
        both = ops.logical_and(ops.expand_dims(inside_t, -1), ops.expand_dims(inside_s, -2))  # (.., T, S)
        return ops.moveaxis(bias * ops.cast(both, "float32")[..., None], -1, -3)  # (.., H, T, S)

    def resize_from(self, other, method="bicubic"):
        """Takes the biases of a block for another grid, interpolated."""
        self.table.assign(functional.resize_grid(other.table, other.steps, self.steps, method=method))

    def compute_output_shape(self, query_positions_shape, key_positions_shape):
        batch = query_positions_shape[:-1] or key_positions_shape[:-1]
        return (*batch, self.num_heads, query_positions_shape[-1], key_positions_shape[-1])

    def get_config(self):
        return {
            **super().get_config(),
            "grid": self.grid,
            "num_heads": self.num_heads,
            "prefix": self.prefix,
            "initializer_std": self.initializer_std,
        }


def _differences(keys, queries):
    """`keys_s - queries_t` for every pair: `(.., T, S)`."""
    return ops.expand_dims(keys, -2) - ops.expand_dims(queries, -1)
