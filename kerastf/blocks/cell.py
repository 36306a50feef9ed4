"""Recurrent cells: one step of a recurrent network. Shapes: B batch, T time, C channels, U units, G gates.

A cell is a Keras RNN cell: `call(x, states) -> (output, states)` for one step. Ours also split the step in two, so
that a loop over time does not repeat what needs no loop: `project(x)` is the part of the input, for a whole sequence
in one matrix product, and `advance(projected, states)` the recurrent rest of one step. A cell may also offer
`sweep(x, states)`, a whole sequence at once by a kernel of the hardware, or None where there is no such kernel, and
`parts(widths)`, for inputs of which only some are known before the loop. The recurrent kernel of ours can learn after
the loop, in one product for all steps, from the slope of `loop_inputs(projected)`.
"""

import functools

import keras
from keras import ops

from kerastf import compat, looped, shapes
from kerastf.registry import register


class Cell(keras.layers.Layer):
    """What the cells share: `W x + b` for all gates at once. A subclass gives `num_gates` and `advance`.

    A class whose `advance` does nothing with what `recur` gives but to add it to what `loop_inputs` gives says
    `adds_recurrence`, and its first state is its output.
    """

    num_gates = 1

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        if units < 1:
            raise ValueError(f"`units` must be at least 1. Received: units={units}")
        self.units = units
        self.output_size = units

    @property
    def state_size(self):
        """The width of each state."""
        return [self.units]

    def build(self, x_shape):
        width = self.num_gates * self.units
        self.kernel = self.add_weight(shape=(x_shape[-1], width), initializer="glorot_uniform", name="kernel")
        self.recurrent_kernel = self.add_weight(
            shape=(self.units, width), initializer="orthogonal", name="recurrent_kernel"
        )
        self.bias = self.add_weight(shape=(width,), initializer=self.first_bias, name="bias")

    def first_bias(self, shape, dtype=None):
        """The bias at the start: zeros."""
        return ops.zeros(shape, dtype=dtype)

    def call(self, x, states, training=None):
        return self.advance(self.project(x), states)

    def project(self, x):
        """The input's part of a step: `(..., C)` to `(..., G U)`, for one step or a whole sequence."""
        x = ops.cast(x, self.compute_dtype)
        return ops.matmul(x, self._weight(self.kernel)) + self._weight(self.bias)  # (..., G U)

    def parts(self, widths):
        """For inputs of these widths side by side, a function for each; `project` is the sum of what they give.

        Why: what is known before a loop needs no loop, though another part of the input be found in it.
        """
        kernels = shapes.split(self._weight(self.kernel), widths, axis=0)
        bias = self._weight(self.bias)

        def part(i, x):
            projected = ops.matmul(ops.cast(x, self.compute_dtype), kernels[i])
            return projected if i else projected + bias

        return [functools.partial(part, i) for i in range(len(widths))]

    def advance(self, projected, states):
        """The rest of one step.

        Args:
            projected: What `project` made of the step's input, `(B, G U)`.
            states: The states before the step, a list of `(B, U)`.

        Returns:
            The output `(B, U)` and the states after the step.
        """
        raise NotImplementedError

    def recur(self, h):
        """The product of the last output and the recurrent kernel: `(B, U)` to `(B, G U)`."""
        return ops.matmul(h, looped.weight(self.recurrent()))

    def recurrent(self):
        """The recurrent kernel as a tensor."""
        return self._weight(self.recurrent_kernel)

    def learns_after(self):
        """Whether the recurrent kernel can learn after a loop: whoever wrote `advance` says so, the rest is as here."""
        names = ("advance", "recur", "get_initial_state")
        advance, *others = (next(c for c in type(self).__mro__ if n in vars(c)) for n in names)
        return "adds_recurrence" in vars(advance) and others == [Cell, Cell]

    def loop_inputs(self, projected):
        """What `project` gave, with all else that is added to what `recur` gives; `advance` takes either."""
        return projected

    def slope_of_recurrence(self, above):
        """The slope of what `recur` gives, from that of what `advance` is given by `loop_inputs`."""
        return above

    def _weight(self, variable):
        # By hand, because `project` and `advance` are also called outside of `__call__`, where nothing is cast.
        return ops.cast(variable, self.compute_dtype)

    def get_initial_state(self, batch_size=None):
        """The states before the first step: zeros."""
        return [ops.zeros((batch_size, n), dtype=self.compute_dtype) for n in self.state_size]

    def compute_output_shape(self, x_shape, states_shape=None):
        output = (x_shape[0], self.units)
        return output, [output for _ in self.state_size]

    def get_config(self):
        return {**super().get_config(), "units": self.units}


@register("cell", "simple")
class Simple(Cell):
    """The vanilla recurrent cell: the output is the state.

    `h_t = tanh(W x_t + U h_{t-1} + b)`

    Args:
        units: Width U of the state.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, C)`.
        states: A list of `h`, of shape `(B, U)`.
        training: Not used.

    Returns:
        The output `(B, U)` and the list of next states.

    Examples:
        >>> cell = Simple(units=8)
        >>> output, states = cell(keras.ops.ones((2, 4)), cell.get_initial_state(2))
        >>> tuple(output.shape), len(states)
        ((2, 8), 1)

    References:
        - [Elman, 1990](https://doi.org/10.1207/s15516709cog1402_1)
    """

    adds_recurrence = True

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)

    def advance(self, projected, states):
        h = ops.tanh(projected + self.recur(states[0]))  # (B, U)
        return h, [h]


@register("cell", "lstm")
class LSTM(Cell):
    """Long short-term memory: a second state `c` that gates add to and take from, so that gradients last.

    `i, f, g, o = W x_t + U h_{t-1} + b`, in this order along the last axis;
    `c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)`, `h_t = sigmoid(o) tanh(c_t)`

    PyTorch has the same order and two biases; their sum is the one here.

    Args:
        units: Width U of each state.
        unit_forget_bias: Whether the bias of the forget gate is 1 at the start rather than 0: a new cell remembers.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, C)`.
        states: A list of `h` and `c`, each of shape `(B, U)`.
        training: Not used.

    Returns:
        The output `(B, U)` and the list of next states.

    Examples:
        >>> cell = LSTM(units=8)
        >>> output, states = cell(keras.ops.ones((2, 4)), cell.get_initial_state(2))
        >>> tuple(output.shape), len(states)
        ((2, 8), 2)

    References:
        - [Hochreiter and Schmidhuber, 1997](https://doi.org/10.1162/neco.1997.9.8.1735)
        - [Gers et al., 2000](https://doi.org/10.1162/089976600300015015) for the forget gate
        - [Jozefowicz et al., 2015](https://proceedings.mlr.press/v37/jozefowicz15.html) for its bias of 1
    """

    num_gates = 4
    adds_recurrence = True

    def __init__(self, units: int, *, unit_forget_bias: bool = True, **kwargs):
        super().__init__(units, **kwargs)
        self.unit_forget_bias = unit_forget_bias

    @property
    def state_size(self):
        return [self.units, self.units]

    def first_bias(self, shape, dtype=None):
        """The bias at the start: ones for the forget gate, where so asked for, and zeros."""
        forget = ops.ones if self.unit_forget_bias else ops.zeros
        parts = [ops.zeros((self.units,), dtype), forget((self.units,), dtype), ops.zeros((2 * self.units,), dtype)]
        return ops.concatenate(parts)

    def advance(self, projected, states):
        h, c = states
        i, f, g, o = ops.split(projected + self.recur(h), 4, axis=-1)  # (B, U) each
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(g)  # (B, U)
        h = ops.sigmoid(o) * ops.tanh(c)  # (B, U)
        return h, [h, c]

    def sweep(self, x, states):
        """A whole sequence `(B, T, C)` by cuDNN: the outputs `(B, T, U)` and the last states, or None without it."""
        weights = map(self._weight, (self.kernel, self.recurrent_kernel, self.bias))
        return compat.cudnn_recurrence("lstm", x, states, *weights)

    def get_config(self):
        return {**super().get_config(), "unit_forget_bias": self.unit_forget_bias}


@register("cell", "gru")
class GRU(Cell):
    """Gated recurrent unit, with the reset after the matrix product, as PyTorch and cuDNN have it.

    `r, z = sigmoid(W x_t + U h_{t-1} + b)`, `n = tanh(W_n x_t + b_n + r (U_n h_{t-1} + d))`,
    `h_t = (1 - z) n + z h_{t-1}`; the order along the last axis is r, z, n.

    PyTorch keeps two biases for every gate; their sum is the one here, and only the candidate `n` needs both.

    Args:
        units: Width U of the state.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, C)`.
        states: A list of `h`, of shape `(B, U)`.
        training: Not used.

    Returns:
        The output `(B, U)` and the list of next states.

    Examples:
        >>> cell = GRU(units=8)
        >>> output, states = cell(keras.ops.ones((2, 4)), cell.get_initial_state(2))
        >>> tuple(output.shape), len(states)
        ((2, 8), 1)

    References:
        - [Cho et al., 2014](https://arxiv.org/abs/1406.1078), which resets before the product
        - [Chung et al., 2014](https://arxiv.org/abs/1412.3555)
    """

    num_gates = 3
    adds_recurrence = True

    def __init__(self, units: int, **kwargs):
        super().__init__(units, **kwargs)

    def build(self, x_shape):
        super().build(x_shape)
        self.recurrent_bias = self.add_weight(shape=(self.units,), initializer="zeros", name="recurrent_bias")

    def advance(self, projected, states):
        h = states[0]
        x_r, x_z, x_n, *d = ops.split(projected, projected.shape[-1] // self.units, axis=-1)  # (B, U) each
        d = d[0] if d else self._weight(self.recurrent_bias)
        h_r, h_z, h_n = ops.split(self.recur(h), 3, axis=-1)  # (B, U) each
        r = ops.sigmoid(x_r + h_r)  # (B, U)
        z = ops.sigmoid(x_z + h_z)  # (B, U)
        n = ops.tanh(x_n + r * (h_n + d))  # (B, U)
        h = (1 - z) * n + z * h  # (B, U)
        return h, [h]

    def loop_inputs(self, projected):
        """What `project` gave, and `d` beside it for all steps: `(B, T, 4 U)`."""
        d = ops.broadcast_to(self._weight(self.recurrent_bias), (*ops.shape(projected)[:-1], self.units))
        return ops.concatenate([projected, d], axis=-1)

    def slope_of_recurrence(self, above):
        of_gates, _, of_d = shapes.split(above, [2 * self.units, self.units, self.units])
        return ops.concatenate([of_gates, of_d], axis=-1)

    def sweep(self, x, states):
        """A whole sequence `(B, T, C)` by cuDNN: the outputs `(B, T, U)` and the last states, or None without it."""

        def order(variable):  # Keras has the update gate first
            r, z, n = ops.split(self._weight(variable), 3, axis=-1)
            return ops.concatenate([z, r, n], axis=-1)

        bias = ops.stack([order(self.bias), ops.pad(self._weight(self.recurrent_bias), (2 * self.units, 0))])
        return compat.cudnn_recurrence("gru", x, states, order(self.kernel), order(self.recurrent_kernel), bias)
