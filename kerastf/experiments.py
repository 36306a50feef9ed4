"""Experiments by name: another block in a model that keeps its other weights, and two models side by side."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from keras import ops

from kerastf import config, counting
from kerastf.counting import Cost, in_columns, in_units
from kerastf.errors import ConfigError, InputError

Shapes = dict[str, tuple[int, ...]]


@dataclass
class SwapReport:
    """What became of the weights when blocks were swapped. It prints as a few lines.

    Attributes:
        model: Id of the family.
        slots: By slot: what was in it, and what is now.
        kept: By path: the shape of each weight that was taken over.
        begun: By path: the shape of each weight that begins anew.
        dropped: By path: the shape of each weight that found no place.
    """

    model: str
    slots: dict[str, tuple[Any, Any]]
    kept: Shapes
    begun: Shapes
    dropped: Shapes

    def __str__(self) -> str:
        lines = [f"{self.model}: " + "; ".join(f"{s} {_show(a)} -> {_show(b)}" for s, (a, b) in self.slots.items())]
        for words, shapes in (("kept", self.kept), ("begun anew", self.begun), ("dropped", self.dropped)):
            size = sum(math.prod(s) for s in shapes.values())
            alike = dict.fromkeys(re.sub(r"_\d+\b", "_*", path) for path in shapes)  # once for all layers
            names = "" if words == "kept" or not shapes else ": " + ", ".join(alike)
            lines.append(f"  {words:<11} {size:>12,} parameters in {len(shapes)} weights{names}")
        return "\n".join(lines)

    __repr__ = __str__


class Swapped(NamedTuple):
    """What `swap` returns.

    Attributes:
        model: The new model.
        report: What became of the weights.
    """

    model: Any
    report: SwapReport


def swap(model: Any, **slots: Any) -> Swapped:
    """A new model with other blocks in some slots. Every weight that still fits is copied; nothing is shared.

    A weight fits where the new model has one of the same path and shape. The others begin anew. What LoRA learnt is
    merged into the weights. The new model is not compiled.

    Args:
        model: A model of the registry.
        **slots: By slot: a name, `{"name": ..., **options}`, or a list over the layers, as for `create_model`.

    Returns:
        The model, and a report of the weights that were kept, begin anew, or were dropped.

    Raises:
        ConfigError: A slot is unknown, or a block does not fit; all problems stand in the message.
        InputError: The model is not one of the registry.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32)
        >>> other, report = kerastf.swap(model, norm="rms")
        >>> print(report)  # doctest: +ELLIPSIS
        gpt: norm layer -> rms
          kept              89,232 parameters in 33 weights
          begun anew             0 parameters in 0 weights
          dropped              336 parameters in 7 weights: ...
    """
    _require_ours(model)
    unknown = [s for s in slots if s not in type(model).slots]
    if unknown or not slots:
        raise ConfigError(
            f"`{type(model).registry_entry.id}` has the slots {', '.join(type(model).slots)}; `swap` fills one or "
            f"more of them. For other options, create the model anew. Received: {', '.join(unknown) or 'none'}"
        )
    given = {k: v for k, v in model.options.items() if k != "name"}
    new = config.build_model(type(model).registry_entry.id, **{**given, **slots})
    old = model.learnt_weights()
    kept: Shapes = {}
    begun: Shapes = {}
    for weight in new.weights:
        shape = tuple(weight.shape)
        if weight.path in old and tuple(old[weight.path].shape) == shape:
            weight.assign(ops.copy(old[weight.path]))  # JAX would share the array, and training gives it away
            kept[weight.path] = shape
        else:
            begun[weight.path] = shape
    dropped = {path: tuple(w.shape) for path, w in old.items() if path not in kept}
    changed = {slot: (model.options[slot], new.options[slot]) for slot in slots}
    return Swapped(new, SwapReport(type(model).registry_entry.id, changed, kept, begun, dropped))


@dataclass
class Diff:
    """How two models differ. It prints as a table.

    Attributes:
        options: By name: the values in the two, of the options that differ; `None` where one has no such option.
        costs: What a forward pass of one batch costs in each.
    """

    options: dict[str, tuple[Any, Any]]
    costs: tuple[Cost, Cost]

    def __str__(self) -> str:
        first, second = self.costs
        lines = [("", first.model, second.model, "")]
        lines += [(name, _show(a), _show(b), "") for name, (a, b) in self.options.items()]
        lines.append(("inputs", *(_shapes(c.inputs) for c in self.costs), ""))
        sizes = [f"{c.parameters:,}" for c in self.costs]
        flops = [in_units(c.flops) for c in self.costs]
        memory = [in_units(c.activation_bytes, "B", 1024) for c in self.costs]
        lines.append(("parameters", *sizes, _ratio(first, second, "parameters")))
        lines.append(("FLOPs", *flops, _ratio(first, second, "flops")))
        lines.append(("activations", *memory, _ratio(first, second, "activation_bytes")))
        return in_columns(lines, "<<<<")

    __repr__ = __str__


def diff(a: Any, b: Any, *, batch_size: int = 1, length: int | None = None, **options: Any) -> Diff:
    """Two models side by side: options, parameters, arithmetic and memory of a forward pass. Nothing is run.

    Args:
        a: A model of the registry, or the id of one.
        b: The other.
        batch_size: How many rows a batch has.
        length: How long its sequences are; by default each model's `max_length`.
        **options: As for `create_model`, for those that are given by an id.

    Returns:
        What differs; print it, or ask for its `options` and `costs`.

    Examples:
        >>> import kerastf
        >>> a = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32)
        >>> b = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32, norm="rms", feedforward="gated")
        >>> print(kerastf.diff(a, b))
                     gpt            gpt
        norm         layer          rms
        feedforward  mlp            gated
        inputs       tokens 1 x 32  tokens 1 x 32
        parameters   89,568         89,424         1.00x
        FLOPs        6.42 M         6.36 M         0.99x
        activations  278 KiB        302 KiB        1.09x
    """
    costs, settings = [], []
    for model in (a, b):
        if isinstance(model, str):
            found = counting.cost(model, batch_size=batch_size, length=length, **options)
        else:
            _require_ours(model)
            found = counting.cost(model, batch_size=batch_size, length=length)
            found.model = type(model).registry_entry.id
        costs.append(found)
        settings.append({k: v for k, v in found.options.items() if k != "name"})
    names = [n for n in {**settings[0], **settings[1]} if settings[0].get(n) != settings[1].get(n)]
    return Diff({n: (settings[0].get(n), settings[1].get(n)) for n in names}, (costs[0], costs[1]))


def _require_ours(model: Any) -> None:
    if not hasattr(type(model), "registry_entry"):
        raise InputError(f"Only a model of the registry has slots. Received: {type(model).__name__} {model!r}"[:300])


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _shapes(inputs: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in inputs.items())


def _ratio(first: Cost, second: Cost, name: str) -> str:
    a, b = getattr(first, name), getattr(second, name)
    return f"{b / a:.2f}x" if a else ""
