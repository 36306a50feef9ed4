"""Layers that run a cell over time. Shapes: B batch, T time, C channels, U units."""

import keras
from keras import ops

from kerastf import compat, looped
from kerastf.blocks.cell import Cell
from kerastf.blocks.dropout import Dropout
from kerastf.config import create_block


class _Advance:
    """A cell for `keras.layers.RNN` that takes inputs that are projected already."""

    def __init__(self, cell):
        self.cell = cell
        self.state_size = cell.state_size
        self.output_size = cell.output_size
        self.compute_dtype = cell.compute_dtype

    def get_initial_state(self, batch_size=None):
        return self.cell.get_initial_state(batch_size)

    def call(self, projected, states):
        return self.cell.advance(projected, states)

    __call__ = call


class Recurrent(keras.layers.Layer):
    """Runs a cell over time: `y_t, s_t = cell(x_t, s_{t-1})`.

    Padding keeps the state and gives zeros, so it never changes real positions or the last states, in either
    direction. The input's matrix product is done once for the whole sequence where the cell offers `project` and
    `advance`; a cell that has only `call` works too.

    Args:
        cell: The cell: a dict with its name and options, or the name of one that needs no options.
        reverse: Whether it reads from the last position to the first. Outputs keep the order of the inputs.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)`, True = keep.
        training: Handed to cells that take it.

    Returns:
        Float tensor of shape `(B, T, U)`.

    Examples:
        >>> layer = Recurrent({"name": "gru", "units": 6})
        >>> tuple(layer(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 6)
        >>> outputs, states = layer.run(keras.ops.ones((2, 5, 8)))
        >>> [tuple(s.shape) for s in states]
        [(2, 6)]
    """

    def __init__(self, cell: str | dict, *, reverse: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.spec = cell
        self.reverse = reverse
        self.cell = create_block("cell", cell, name="cell", dtype=self.dtype_policy)
        self.splits = hasattr(self.cell, "project") and hasattr(self.cell, "advance")
        if keras.backend.backend() == "tensorflow" and hasattr(self.cell, "sweep") and compat.has_cudnn():
            self.supports_jit = False  # XLA for TensorFlow cannot hold cuDNN's kernels
        self.loop = keras.layers.RNN(
            _Advance(self.cell) if self.splits else self.cell, return_sequences=True, return_state=True,
            go_backwards=reverse, dtype=self.dtype_policy, name="loop",
        )  # fmt: skip

    @property
    def output_size(self):
        """Width U of the outputs."""
        return getattr(self.cell, "output_size", None) or keras.tree.flatten(self.cell.state_size)[0]

    def build(self, x_shape):
        if not self.cell.built:
            self.cell.build((x_shape[0], x_shape[-1]))
            self.cell.built = True

    def call(self, x, mask=None, training=None):
        return self.run(x, mask=mask, training=training)[0]

    def run(self, x, states=None, mask=None, training=None):
        """Reads a sequence from given states on.

        Args:
            x: Float tensor of shape `(B, T, C)`.
            states: The states to start from, as `init_state` or the last `run` gave them; None for the first.
            mask: Boolean `(B, T)`, True = keep.
            training: Handed to cells that take it.

        Returns:
            The outputs `(B, T, U)`, and the states after the last real position.
        """
        if not self.built:
            self.build(x.shape)
            self.built = True
        if mask is None and compat.has_cudnn() and hasattr(self.cell, "sweep"):
            found = self._sweep(x, states)
            if found is not None:
                return found
        h = self.cell.project(x) if self.splits else x  # (B, T, G U)
        run = self._loop
        if self._learns_after() and (mask is None or states is None):  # outputs tell no state of before the first token
            run = self._loop_and_learn
        outputs, states = run(h, states, mask, training)
        return (outputs if mask is None else ops.where(mask[..., None], outputs, 0)), states

    def _loop(self, x, states, mask, training):
        """Outputs of all steps, in the order of time, and the last states; a step of padding repeats an output."""
        # `call`, because a Keras RNN that is called as a layer would hand its mask on.
        outputs, *states = self.loop.call(x, initial_state=states, mask=mask, training=bool(training))  # (B, T, U)
        return (ops.flip(outputs, axis=1) if self.reverse else outputs), states

    def _learns_after(self):
        learns = self.splits and isinstance(self.cell, Cell) and self.cell.learns_after()
        return learns and looped.pays(self.cell.recurrent_kernel)

    def _loop_and_learn(self, projected, states, mask, training):
        """As `_loop`; the recurrent kernel learns after it."""
        states = self.init_state(ops.shape(projected)[0]) if states is None else states

        def lesson(above):
            return looped.before(states[0], outputs, self.reverse), self.cell.slope_of_recurrence(above)

        x = looped.teach(self.cell.loop_inputs(projected), self.cell.recurrent(), lesson)
        with looped.learning_after():
            outputs, last = self._loop(x, states, mask, training)
        return outputs, last

    def _sweep(self, x, states):
        x = ops.cast(ops.flip(x, axis=1) if self.reverse else x, self.compute_dtype)
        found = self.cell.sweep(x, states or self.init_state(ops.shape(x)[0]))
        if found is None:
            return None
        outputs, states = found
        return (ops.flip(outputs, axis=1) if self.reverse else outputs), states

    def init_state(self, batch_size, max_length=None):
        """The states before the first step.

        Args:
            batch_size: How many rows there are.
            max_length: Not used: the state does not grow.

        Returns:
            A list of tensors, each batch-first.
        """
        return self.loop.get_initial_state(batch_size)

    def step(self, x, state, index=None, mask=None):
        """Reads one token or a whole prompt.

        Args:
            x: Float tensor of shape `(B, T, C)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them. Not used: the state knows.
            mask: Boolean `(B, T)`, True = keep.

        Returns:
            The outputs `(B, T, U)` and the next states.
        """
        if self.reverse:
            raise ValueError("A layer that reads backwards cannot decode step by step. Received: reverse=True")
        if x.shape[1] != 1:
            return self.run(x, state, mask)
        cell = self.loop.cell  # one step needs no loop
        output, new = cell(self.cell.project(x[:, 0]) if self.splits else x[:, 0], state)  # (B, U)
        new = new if keras.tree.is_nested(new) else [new]
        if mask is not None:
            output = ops.where(mask, output, 0)  # (B, U)
            new = keras.tree.map_structure(lambda after, before: ops.where(mask, after, before), list(new), state)
        return output[:, None], list(new)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.output_size)

    def get_config(self):
        return {**super().get_config(), "cell": self.spec, "reverse": self.reverse}


class RecurrentLayer(keras.layers.Layer):
    """What recurrent models stack: a cell over time, then a norm, dropout, and a residual connection where it fits.

    `y = drop(norm(h))` or, with `residual` and as wide an output as input, `y = x + drop(norm(h))`. `h` is the
    output of the cell, or of two cells that read in opposite directions, side by side.

    Args:
        cell: The cell block: its name, or a dict with its name and options.
        norm: The norm block, likewise.
        bidirectional: Whether a second cell reads backwards; the output is then twice as wide.
        residual: Whether the input is added to an output of the same width.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        mask: Boolean `(B, T)`, True = keep.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, U)`, or `(B, T, 2 U)` for two directions.

    Examples:
        >>> layer = RecurrentLayer({"name": "lstm", "units": 6}, bidirectional=True)
        >>> tuple(layer(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 12)
    """

    def __init__(
        self, cell: str | dict, *, norm: str | dict = "none", bidirectional: bool = False, residual: bool = False,
        dropout: float = 0.0, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.supports_masking = True
        self.specs = {"cell": cell, "norm": norm}
        self.bidirectional = bidirectional
        self.residual = residual
        self.dropout = dropout
        # Not `forward`: on the PyTorch backend a layer is a module, and that is a method of its own.
        self.forwards = Recurrent(cell, dtype=self.dtype_policy, name="forwards")
        self.backwards = None
        if bidirectional:
            self.backwards = Recurrent(cell, reverse=True, dtype=self.dtype_policy, name="backwards")
        self.norm = create_block("norm", norm, name="norm", dtype=self.dtype_policy)
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, x_shape):
        self.forwards.build(x_shape)
        if self.backwards:
            self.backwards.build(x_shape)
        self.norm.build(self.compute_output_shape(x_shape))

    def call(self, x, mask=None, training=None):
        h = self.forwards(x, mask=mask, training=training)  # (B, T, U)
        if self.backwards:
            h = ops.concatenate([h, self.backwards(x, mask=mask, training=training)], axis=-1)  # (B, T, 2U)
        return self._finish(x, h, training)

    def _finish(self, x, h, training=False):
        h = self.drop(self.norm(h), training=training)
        return x + h if self.residual and x.shape[-1] == h.shape[-1] else h

    def init_state(self, batch_size, max_length=None):
        """The states of the cell before the first step."""
        return self.forwards.init_state(batch_size, max_length)

    def step(self, x, state, index=None, mask=None):
        """One token or a whole prompt `(B, T, C)`; returns the output and the next states."""
        if self.backwards:
            raise ValueError("A layer that reads backwards cannot decode step by step. Received: bidirectional=True")
        h, state = self.forwards.step(x, state, index, mask)
        return self._finish(x, h), state

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.forwards.output_size * (2 if self.bidirectional else 1))

    def get_config(self):
        return {
            **super().get_config(),
            **self.specs,
            "bidirectional": self.bidirectional,
            "residual": self.residual,
            "dropout": self.dropout,
        }


def gradient_by_distance(layer, x):
    """How strongly the last output depends on each input: the norm of `d h_T / d x_t` by the distance `T - t`.

    Args:
        layer: A `Recurrent`, or any layer from `(B, T, C)` to `(B, T, U)`.
        x: One sequence, a float array `(T, C)`.

    Returns:
        The Frobenius norms as a NumPy array `(T,)`: entry `n` is that of the input `n` steps before the last.

    Examples:
        >>> layer = Recurrent({"name": "gru", "units": 6})
        >>> gradient_by_distance(layer, keras.ops.ones((5, 8))).shape
        (5,)
    """
    units = layer(ops.convert_to_tensor(x)[None]).shape[-1]
    # One copy of the sequence for each unit: row u of the batch then gets the gradient of unit u, all in one pass.
    copies = keras.Variable(ops.repeat(ops.convert_to_tensor(x)[None], units, axis=0), name="copies")  # (U, T, C)
    chosen = ops.eye(units)

    def total():
        last = layer(copies.value)[:, -1]  # (U, U)
        return ops.sum(ops.cast(last, "float32") * chosen)

    found = compat.gradients(total, [copies])[0].astype("float64")  # (U, T, C)
    return (found**2).sum(axis=(0, 2))[::-1] ** 0.5  # (T,)
