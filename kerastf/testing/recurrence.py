"""The checks of cells alone: their states, the steps they are cut into, and how their kernels learn."""

import keras
import numpy as np
from keras import ops, tree

from kerastf import compat
from kerastf.blocks.cell import Cell
from kerastf.testing.generic import TOLERANCE
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.subjects import LENGTH, difference, numpy


@check("states", ("cell",), "states keep shape and dtype, Keras runs it, and project, parts and advance equal call")
def states(subject):
    layer = subject.make()
    batch, total = 3, LENGTH
    x = np.stack([subject.inputs(batch=batch, seed=t)["x"] for t in range(total)], axis=1)  # (B, T, C)
    state = _first_state(layer, batch)
    sizes = [(batch, n) for n in tree.flatten(layer.state_size)]
    outputs = []
    for t in range(total):
        _require_sizes(state, sizes, "before" if t == 0 else "after")
        output, state = layer(ops.convert_to_tensor(x[:, t]), state)
        state = state if tree.is_nested(state) else [state]
        outputs.append(numpy(output))
    want = np.stack(outputs, axis=1)  # (B, T, U)
    width = getattr(layer, "output_size", None) or sizes[0][1]
    if want.shape[2:] != (width,):
        raise Broken(f"the output has shape {want.shape[2:]}, and output_size says {width}")
    keras_loop = keras.layers.RNN(layer, return_sequences=True)
    gap = difference(keras_loop(ops.convert_to_tensor(x)), want)
    if gap > TOLERANCE:
        raise Broken(f"keras.layers.RNN gives another result than a loop by hand, by {gap:.2g}")
    swept = layer.sweep(ops.convert_to_tensor(x), _first_state(layer, batch)) if hasattr(layer, "sweep") else None
    if swept is not None and difference(swept[0], want) > 100 * TOLERANCE:  # kernels of a GPU round otherwise
        raise Broken(f"sweep gives another result than a loop by hand, by {difference(swept[0], want):.2g}")
    if hasattr(layer, "project") != hasattr(layer, "advance"):
        raise Broken("project and advance come together: it has only one of them")
    if hasattr(layer, "project"):
        gap = difference(_advanced(layer, x)[0], want)
        if gap > TOLERANCE:
            raise Broken(f"project and then advance differ from call by {gap:.2g}")
        if hasattr(layer, "parts"):
            gap = difference(_in_parts(layer, x), layer.project(ops.convert_to_tensor(x)))
            if gap > TOLERANCE:
                raise Broken(f"the sum of parts differs from project by {gap:.2g}")
        rounded = subject.make(dtype="mixed_bfloat16")
        for leaf in tree.flatten(_advanced(rounded, x[:, :1])[1]):
            if keras.backend.standardize_dtype(leaf.dtype) != "bfloat16":
                raise Broken(f"under mixed_bfloat16 a state after advance is {leaf.dtype}, so a loop would refuse it")


def _first_state(layer, batch):
    if hasattr(layer, "get_initial_state"):
        state = layer.get_initial_state(batch_size=batch)
        return list(state) if tree.is_nested(state) else [state]
    return [ops.zeros((batch, n), dtype=layer.compute_dtype) for n in tree.flatten(layer.state_size)]


def _require_sizes(state, sizes, when):
    found = [tuple(leaf.shape) for leaf in tree.flatten(state)]
    if found != sizes:
        raise Broken(f"{when} a step the states have shapes {found}, and state_size says {sizes}")


def _advanced(layer, x):
    """Outputs and last state, with the inputs projected all at once."""
    projected, state, outputs = layer.project(ops.convert_to_tensor(x)), _first_state(layer, x.shape[0]), []
    for t in range(x.shape[1]):
        output, state = layer.advance(projected[:, t], state)
        outputs.append(output)
    return ops.stack(outputs, axis=1), state


def _in_parts(layer, x):
    """What `project` gives, from one channel and from the others."""
    first, others = layer.parts([1, x.shape[-1] - 1])
    return first(ops.convert_to_tensor(x[..., :1])) + others(ops.convert_to_tensor(x[..., 1:]))


@check("learns", ("cell",), "its recurrent kernel learns after a loop what it learns in one")
def learns(subject):
    layer = subject.make()
    if not (isinstance(layer, Cell) and layer.learns_after()):
        raise NotAsked("its recurrent kernel learns in the loop")
    rng = np.random.default_rng(5)
    state = [rng.normal(size=(3, n)).astype("float32") for n in tree.flatten(layer.state_size)]
    x = ops.convert_to_tensor(subject.inputs(batch=3)["x"])
    read = keras.Variable(layer.loop_inputs(layer.project(x[:, None]))[:, 0], name="read")  # (B, G U) or more
    output, after = layer.advance(read.value, [ops.convert_to_tensor(s) for s in state])
    for name, other in (("call", layer(x, state)[0]), ("its first state", after[0])):
        if difference(output, other) > TOLERANCE:
            raise Broken(f"advance of its loop_inputs differs from {name} by {difference(output, other):.2g}")
    factors = [ops.convert_to_tensor(rng.normal(size=tuple(t.shape)), dtype="float32") for t in (output, *after)]

    def total():
        output, after = layer.advance(read.value, [ops.convert_to_tensor(s) for s in state])
        return sum(ops.sum(t * factor) for t, factor in zip((output, *after), factors, strict=True))

    above, in_the_loop = compat.gradients(total, [read, layer.recurrent_kernel])
    afterwards = state[0].T @ numpy(layer.slope_of_recurrence(ops.convert_to_tensor(above)))
    if difference(afterwards, in_the_loop) > 10 * TOLERANCE:
        gap = difference(afterwards, in_the_loop)
        raise Broken(f"what slope_of_recurrence teaches differs from what the loop teaches by {gap:.2g}")
