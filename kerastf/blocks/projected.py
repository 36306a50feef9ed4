"""The cell of large language models: an LSTM whose output is narrower than its memory.

Shapes: B batch, C channels, U units, P projection.
"""

from keras import ops

from kerastf.blocks.cell import LSTM, Cell
from kerastf.registry import register


@register("cell", "projected_lstm")
class ProjectedLSTM(Cell):
    """Long short-term memory with a wide memory, a narrow output, and bounds on both.

    `i, f, g, o = W x_t + U h_{t-1} + b`, in this order along the last axis;
    `c_t = clip(sigmoid(f) c_{t-1} + sigmoid(i) tanh(g))`, `h_t = clip(P (sigmoid(o) tanh(c_t)))`

    `clip` cuts at `-cell_clip, cell_clip` and at `-projection_clip, projection_clip`. The recurrent kernel `U` reads
    the narrow `h`, which is what makes a memory of thousands of units affordable.

    Args:
        units: Width U of the memory `c`.
        projection: Width P of the output `h`; None for U.
        cell_clip: Bound of the memory; None for none.
        projection_clip: Bound of the output; None for none.
        unit_forget_bias: Whether the bias of the forget gate is 1 at the start rather than 0.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, C)`.
        states: A list of `h`, of shape `(B, P)`, and `c`, of shape `(B, U)`.
        training: Not used.

    Returns:
        The output `(B, P)` and the list of next states.

    Examples:
        >>> import keras
        >>> cell = ProjectedLSTM(units=8, projection=3, cell_clip=3.0, projection_clip=3.0)
        >>> output, states = cell(keras.ops.ones((2, 4)), cell.get_initial_state(2))
        >>> tuple(output.shape), [tuple(s.shape) for s in states]
        ((2, 3), [(2, 3), (2, 8)])

    References:
        - [Sak et al., 2014](https://arxiv.org/abs/1402.1128) for the projection
        - [Jozefowicz et al., 2016](https://arxiv.org/abs/1602.02410), and
          [Peters et al., 2018](https://arxiv.org/abs/1802.05365), whose language models have it
    """

    num_gates = 4
    adds_recurrence = True

    def __init__(
        self, units: int, *, projection: int | None = None, cell_clip: float | None = None,
        projection_clip: float | None = None, unit_forget_bias: bool = True, **kwargs,
    ):  # fmt: skip
        super().__init__(units, **kwargs)
        if projection is not None and projection < 1:
            raise ValueError(f"`projection` must be at least 1. Received: projection={projection}")
        for name, value in (("cell_clip", cell_clip), ("projection_clip", projection_clip)):
            if value is not None and value <= 0:
                raise ValueError(f"`{name}` must be more than 0, or None. Received: {name}={value}")
        self.projection = projection
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.unit_forget_bias = unit_forget_bias
        self.output_size = units if projection is None else projection

    @property
    def state_size(self):
        return [self.output_size, self.units]

    def build(self, x_shape):
        width = self.num_gates * self.units
        self.kernel = self.add_weight(shape=(x_shape[-1], width), initializer="glorot_uniform", name="kernel")
        self.recurrent_kernel = self.add_weight(
            shape=(self.output_size, width), initializer="orthogonal", name="recurrent_kernel"
        )
        self.bias = self.add_weight(shape=(width,), initializer=self.first_bias, name="bias")
        self.projection_kernel = self.add_weight(
            shape=(self.units, self.output_size), initializer="glorot_uniform", name="projection_kernel"
        )

    first_bias = LSTM.first_bias

    def advance(self, projected, states):
        h, c = states
        i, f, g, o = ops.split(projected + self.recur(h), 4, axis=-1)  # (B, U) each
        c = _clip(ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g), self.cell_clip)  # (B, U)
        h = ops.matmul(ops.sigmoid(o) * ops.tanh(c), self._weight(self.projection_kernel))  # (B, P)
        h = _clip(h, self.projection_clip)
        return h, [h, c]

    def compute_output_shape(self, x_shape, states_shape=None):
        output = (x_shape[0], self.output_size)
        return output, [output, (x_shape[0], self.units)]

    def get_config(self):
        return {
            **super().get_config(),
            "projection": self.projection,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "unit_forget_bias": self.unit_forget_bias,
        }


def _clip(x, bound):
    return x if bound is None else ops.clip(x, -bound, bound)
