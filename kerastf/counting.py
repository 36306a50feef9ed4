"""What a model costs: arithmetic, memory for activations and parameters, layer by layer, without running it."""

import contextlib
import math
import re
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np

from kerastf import arithmetic, compat, config, symbolic
from kerastf.errors import InputError


@dataclass
class LayerCost:
    """What one layer costs by itself, its inner layers not included.

    Attributes:
        path: Names from the model down to the layer, joined by `/`; the model's own is empty.
        layer: Name of its class.
        output: Shape of its (first) output at the last call; None where it was not called.
        parameters: How many weights it has.
        flops: Arithmetic of all its calls.
        activation_bytes: Bytes of the outputs of all its calls.
    """

    path: str
    layer: str
    output: tuple[int, ...] | None = None
    parameters: int = 0
    flops: int = 0
    activation_bytes: int = 0


@dataclass
class Cost:
    """What one forward pass of one batch costs. It prints as a table.

    Attributes:
        model: The id that was asked for, or the name of the model.
        options: The model's options; empty where it is not of a registered family.
        inputs: By name: the shape of each input.
        layers: One `LayerCost` per layer, in the order of the first call.
        missed: Names of layers and operations that could not be followed: their arithmetic is not counted.
    """

    model: str
    options: dict[str, Any]
    inputs: dict[str, tuple[int, ...]]
    layers: list[LayerCost]
    missed: list[str] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        """How many weights the model has."""
        return sum(row.parameters for row in self.layers)

    @property
    def flops(self) -> int:
        """Arithmetic of the pass, two for a multiplication with addition."""
        return sum(row.flops for row in self.layers)

    @property
    def activation_bytes(self) -> int:
        """Bytes of all layers' outputs, each tensor once."""
        return sum(row.activation_bytes for row in self.layers)

    def summary(self) -> dict[str, Any]:
        """All but the layers, as plain values for JSON."""
        return {
            "model": self.model,
            "options": self.options,
            "inputs": {name: list(shape) for name, shape in self.inputs.items()},
            "parameters": self.parameters,
            "flops": self.flops,
            "activation_bytes": self.activation_bytes,
            "missed": self.missed,
        }

    def down_to(self, depth: int) -> list[LayerCost]:
        """The layers down to a depth, each with what lies deeper added to it.

        Args:
            depth: 1 for the model's own layers, 2 for theirs, and so on; what the model itself does is a row too.
        """
        found: dict[str, LayerCost] = {}
        for row in self.layers:
            path = "/".join(row.path.split("/")[:depth])
            if path not in found:
                found[path] = LayerCost(path, row.layer, row.output)
            if path == row.path:
                found[path].layer, found[path].output = row.layer, row.output
            for name in ("parameters", "flops", "activation_bytes"):
                setattr(found[path], name, getattr(found[path], name) + getattr(row, name))
        return [row for row in found.values() if row.parameters or row.flops or row.activation_bytes]

    def table(self, depth: int = 1) -> str:
        """A table of the layers down to a depth."""
        lines = [("layer", "", "output", "parameters", "FLOPs", "activations")]
        for row in self.down_to(depth):
            output = "" if row.output is None else " x ".join(map(str, row.output))
            numbers = f"{row.parameters:,}", in_units(row.flops), in_units(row.activation_bytes, "B", 1024)
            lines.append((row.path or "(the model)", row.layer, output, *numbers))
        totals = f"{self.parameters:,}", in_units(self.flops), in_units(self.activation_bytes, "B", 1024)
        lines.append(("total", "", "", *totals))
        text = [in_columns(lines, "<<<>>>")]
        if self.missed:
            text.append(f"Not counted, because it could not be followed: {', '.join(self.missed)}")
        return "\n".join(text)

    def title(self) -> str:
        """What was counted: the model and its inputs."""
        shapes = ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in self.inputs.items())
        return f"{self.model} on {shapes}"

    def __str__(self) -> str:
        return f"{self.title()}\n\n{self.table()}"

    __repr__ = __str__


def in_columns(lines: list[tuple[str, ...]], marks: str) -> str:
    """Lines of cells as a table of plain text.

    Args:
        lines: Each with as many cells as there are marks.
        marks: `<` for a column that begins at the left, `>` for one that ends at the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ([f"{c:{m}{w}}" for c, m, w in zip(line, marks, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in rows)


def in_units(number: float, unit: str = "", base: int = 1000) -> str:
    """A number in three digits with a unit: `291 G`.

    Args:
        number: The number.
        unit: What follows the prefix.
        base: 1000, or 1024 for bytes.

    Examples:
        >>> in_units(291648307200), in_units(1536, "B", 1024), in_units(0)
        ('292 G', '1.5 KiB', '0')
    """
    prefixes = ["", *"KMGTPE"] if base == 1024 else ["", *"kMGTPE"]
    for prefix in prefixes:
        if number < base or prefix == "E":
            break
        number /= base
    suffix = f"{prefix}{'i' if prefix and base == 1024 else ''}{unit}"
    return f"{number:.3g} {suffix}".rstrip() if number < 1000 else f"{number:.0f} {suffix}".rstrip()


def cost(model: Any, *, batch_size: int = 1, length: int | None = None, inputs: Any = None, **options: Any) -> Cost:
    """Counts what one forward pass costs, from shapes alone: nothing is allocated and nothing is run.

    FLOPs are the arithmetic that depends on the input, two for a multiplication with addition; a loop counts as often
    as it runs. Position tables and causal masks are made from no input, and count nothing. Activations are the outputs
    of all layers, each tensor once: what a training step keeps for the way back, unless the backend fuses or
    recomputes. Weights, gradients, the optimizer, and what a layer makes between two of its own operations are not
    among them.

    Args:
        model: A model, or the id of one, such as `"gpt.gpt2_xl"`.
        batch_size: How many rows a batch has.
        length: How long its sequences are; by default the model's `max_length`.
        inputs: What the model is called with, instead: arrays, or anything else that has a shape and a dtype.
        **options: As for `create_model`, where an id is given.

    Returns:
        The cost; print it, or ask for its `flops`, `activation_bytes`, `parameters`, `layers` or `summary()`.

    Raises:
        InputError: The model cannot take such an input, or does not say what its input is.

    Examples:
        >>> import kerastf
        >>> kerastf.cost("rnn", vocab_size=1000, dim=64, units=128, num_layers=1, length=32)
        rnn on tokens 1 x 32
        <BLANKLINE>
        layer                      output         parameters   FLOPs  activations
        embedding  Token           1 x 32 x 64        64,000       0        8 KiB
        layer_0    RecurrentLayer  1 x 32 x 128       98,816  6.36 M       16 KiB
        head       LanguageModel   1 x 32 x 1000     128,000  8.19 M      125 KiB
        total                                        290,816  14.6 M      149 KiB
    """
    if isinstance(model, str):
        with compat.without_allocation():
            built = config.build_model(model, **options)
        name = model
    else:
        if options:
            raise InputError(f"Options are for a model given by its id. Received: {', '.join(options)}")
        built, name = model, model.name
    given = _inputs(built, batch_size, length) if inputs is None else inputs
    tensors = symbolic.like(given)
    for x in keras.tree.flatten(tensors):
        if None in x.shape:
            raise InputError(f"Every size of an input must be known. Received: shape {tuple(x.shape)}")
    counter = symbolic.run(built, tensors, lambda: _Counter(built, tensors))
    shapes = {n: tuple(x.shape) for n, x in _named(built, tensors)}
    return Cost(name, dict(getattr(built, "options", {})), shapes, counter.finished(), sorted(set(counter.unknown)))


def flops(model: Any, *, batch_size: int = 1, length: int | None = None, **options: Any) -> int:
    """How much arithmetic one forward pass of one batch is, two for a multiplication with addition; `cost` says more.

    Args:
        model: A model, or the id of one, such as `"gpt.gpt2_xl"`.
        batch_size: How many rows a batch has.
        length: How long its sequences are; by default the model's `max_length`.
        **options: As for `create_model`, where an id is given.

    Examples:
        >>> import kerastf
        >>> kerastf.flops("vit.b16")
        33032185257
    """
    return cost(model, batch_size=batch_size, length=length, **options).flops


def _inputs(model: Any, batch_size: int, length: int | None) -> Any:
    """Zeros that the model can be called with, in the form that it wants them in."""
    for name, size in (("batch_size", batch_size), ("length", 1 if length is None else length)):
        if size < 1:
            raise InputError(f"`{name}` must be at least 1. Received: {name}={size}")
    if not getattr(model, "inputs", None):
        raise InputError(f"The model does not say what its input is. Give `inputs`. Received: model={model.name!r}")
    if not hasattr(type(model), "typical_shapes"):
        return keras.tree.map_structure(
            lambda x: keras.KerasTensor(
                (batch_size, *(length if n is None else n for n in x.shape[1:])), dtype=x.dtype
            ),
            model.inputs[0] if len(model.inputs) == 1 else model.input,
        )
    shapes = type(model).typical_shapes(model.options, batch_size, length)
    arrays = {x.name: np.zeros(shapes[x.name], x.dtype) for x in model.inputs if x.name in shapes}
    given = arrays if len(arrays) > 1 else next(iter(arrays.values()))
    model.check_data(given, None)
    return given if isinstance(model.input, dict) or len(arrays) == 1 else list(arrays.values())


def _named(model: Any, tensors: Any) -> list[tuple[str, Any]]:
    if isinstance(tensors, dict):
        return list(tensors.items())
    leaves, known = keras.tree.flatten(tensors), getattr(model, "inputs", None) or ()
    names = [x.name for x in known] if len(known) == len(leaves) else [f"input_{i}" for i in range(len(leaves))]
    return list(zip(names, leaves, strict=True))


class _Counter(symbolic.Listener):
    """Adds up what it hears, for the layer that runs."""

    def __init__(self, model, inputs):
        self.model = model
        self.stack: list[Any] = []
        self.rows: dict[int, LayerCost] = {}
        self.unknown: list[str] = []
        self.times = 1
        self.seen = {id(x): x for x in keras.tree.flatten(inputs)}  # kept, or another tensor might get its id

    def enter(self, layer):
        self.stack.append(layer)
        if id(layer) not in self.rows:
            path = "/".join(inner.name for inner in self.stack[1:])
            self.rows[id(layer)] = LayerCost(path, type(layer).__name__)

    def leave(self, layer, outputs):
        self.stack.pop()
        row = self.rows[id(layer)]
        tensors = [x for x in keras.tree.flatten(outputs) if isinstance(x, keras.KerasTensor)]
        if tensors:
            row.output = tuple(tensors[0].shape)
        for x in tensors:
            if id(x) not in self.seen:  # dropout, for one, returns its input here
                self.seen[id(x)] = x
                row.activation_bytes += self.times * math.prod(x.shape) * _bytes_of(x.dtype)

    def operation(self, operation, args, kwargs, outputs):
        found = arithmetic.flops(operation, args, kwargs, outputs)
        if found is None:
            self.missed(type(operation).__name__)
        else:
            self.rows[id(self.stack[-1])].flops += self.times * found

    def missed(self, what):
        self.unknown.append(what)

    @contextlib.contextmanager
    def repeated(self, count):
        before = self.times
        self.times *= count
        try:
            yield
        finally:
            self.times = before

    def dearest(self, branches):
        before, ends, outputs = self.rows, [], []
        for branch in branches:
            self.rows = {key: replace(row) for key, row in before.items()}
            outputs.append(branch())
            ends.append(self.rows)
        self.rows = max(ends, key=lambda rows: sum(row.flops for row in rows.values()))
        return outputs[0]

    def finished(self):
        """The rows, with each weight in the row of the innermost layer that was called."""
        seen: set[int] = set()

        def walk(layer, row):
            row = self.rows.get(id(layer), row)
            for part in compat.parts_of(layer, recursive=False):
                walk(part, row)
            for weight in layer.weights:
                if id(weight) not in seen:
                    seen.add(id(weight))
                    row.parameters += math.prod(weight.shape)

        walk(self.model, self.rows[id(self.model)])
        return list(self.rows.values())


def _bytes_of(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return max(1, int(bits.group()) // 8) if bits else 1  # a truth value takes a byte
