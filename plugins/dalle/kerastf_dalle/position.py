"""Learned positions on a grid. Shapes: B batch, T time, C channels."""

import keras
from keras import ops

from kerastf import functional, register


@register("position", "learned_2d", supports=("embeddings",))
class Learned2D(keras.layers.Layer):
    """One learned vector per row and one per column, added up; a vector each for the tokens before the grid.

    `y_n = x_n + P[n]` for `n < prefix`, then `y_n = x_n + R[row_n] + Q[column_n]`, row by row

    Args:
        grid: Height and width of the grid whose places the positions are, row by row.
        prefix: How many tokens stand before the grid: a caption, a class token.
        initializer_std: Deviation of the vectors at the start.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`. Positions after the grid are those of its last place.
        index: Position of the first token, a scalar or one per row.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Learned2D(grid=[2, 3], prefix=1)
        >>> tuple(block(ops.ones((2, 7, 8))).shape), [tuple(w.shape) for w in block.weights]
        ((2, 7, 8), [(2, 8), (3, 8), (1, 8)])

    References:
        - [Ramesh et al., 2021](https://arxiv.org/abs/2102.12092), appendix B.1
    """

    def __init__(self, grid: list[int], *, prefix: int = 0, initializer_std: float = 0.02, **kwargs):
        super().__init__(**kwargs)
        if len(grid) != 2 or any(n < 1 for n in grid):
            raise ValueError(f"`grid` must be two positive numbers, height and width. Received: grid={grid}")
        if prefix < 0:
            raise ValueError(f"`prefix` must not be negative. Received: prefix={prefix}")
        self.supports_masking = True
        self.grid = list(grid)
        self.prefix = prefix
        self.initializer_std = initializer_std

    def build(self, x_shape):
        self.rows = self._table(self.grid[0], x_shape[-1], "rows")
        self.columns = self._table(self.grid[1], x_shape[-1], "columns")
        self.leading = self._table(self.prefix, x_shape[-1], "leading") if self.prefix else None

    def _table(self, count, dim, name):
        initializer = keras.initializers.RandomNormal(stddev=self.initializer_std)
        return self.add_weight(shape=(count, dim), initializer=initializer, name=name)

    def call(self, x, index=0):
        where = functional.positions(ops.shape(x)[1], index)  # (T,) or (B, T)
        place = ops.clip(where - self.prefix, 0, self.grid[0] * self.grid[1] - 1)
        row, column = place // self.grid[1], place % self.grid[1]
        vector = ops.take(self.rows, row, axis=0) + ops.take(self.columns, column, axis=0)  # (.., T, C)
        if self.leading is not None:
            before = ops.take(self.leading, ops.minimum(where, self.prefix - 1), axis=0)
            vector = ops.where((where < self.prefix)[..., None], before, vector)
        return x + ops.cast(vector, x.dtype)  # (B, T, C)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "grid": self.grid,
            "prefix": self.prefix,
            "initializer_std": self.initializer_std,
        }
