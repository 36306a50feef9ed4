"""A tiny ELMo: its sizes, and its cell and layers in NumPy."""

import math

import numpy as np
from tensors import numpy

TINY = {"vocab_size": 11, "dim": 4, "units": 6, "num_layers": 2, "dropout": 0.0}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights_at(model, prefix):
    found = {w.path: numpy(w).astype("float64") for w in model.weights}
    return {p.removeprefix(prefix): w for p, w in found.items() if p.startswith(prefix)}


def numpy_cell(weights, x, h, c, cell_clip, projection_clip):
    """One step for one row, one unit at a time."""
    units = len(c)
    sums = weights["bias"] + x @ weights["kernel"] + h @ weights["recurrent_kernel"]
    memory = np.zeros(units)
    shown = np.zeros(units)
    for u in range(units):
        write, keep, fresh, show = (sums[gate * units + u] for gate in range(4))
        memory[u] = c[u] / (1 + math.exp(-keep)) + math.tanh(fresh) / (1 + math.exp(-write))
        memory[u] = max(-cell_clip, min(cell_clip, memory[u]))
        shown[u] = math.tanh(memory[u]) / (1 + math.exp(-show))
    out = np.array([sum(shown[u] * weights["projection_kernel"][u, p] for u in range(units)) for p in range(len(h))])
    return np.array([max(-projection_clip, min(projection_clip, v)) for v in out]), memory


def numpy_layers(model, x):
    """All layers of one sentence of embeddings `(T, C)`."""
    options, sides = model.options, []
    for direction, order in (("forwards", 1), ("backwards", -1)):
        inputs, outputs = x[::order], [x]
        for i in range(options["num_layers"]):
            weights = weights_at(model, f"{direction}_{i}/cell/")
            h, c, rows = np.zeros(options["dim"]), np.zeros(options["units"]), []
            for step in inputs:
                h, c = numpy_cell(weights, step, h, c, options["cell_clip"], options["projection_clip"])
                rows.append(h + step if options["residual"] and i > 0 else h)
            inputs = np.array(rows)
            outputs.append(inputs[::order])
        sides.append(outputs)
    return np.stack([np.concatenate([a, b], axis=-1) for a, b in zip(*sides, strict=True)])
