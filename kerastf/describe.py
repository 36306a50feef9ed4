"""What an id is: options, presets, parameters, FLOPs, origin, paper."""

import inspect
import re
from dataclasses import dataclass
from typing import Any

from kerastf import config, counting, registry, schema
from kerastf.errors import InputError


@dataclass
class Info:
    """A description that prints well.

    Attributes:
        id: The id.
        kind: Its kind.
        summary: One line.
        origin: The package and version it comes from, and its class.
        supports: What it declares to support.
        options: By name: the type and the default, as text.
        presets: By name: the options of a preset.
        parameters: By preset: how many weights it has.
        flops: By preset: the arithmetic of one forward pass of one row, as `cost` counts it, in words: how much, and of
            what input.
        references: The papers its docstring names.
    """

    id: str
    kind: str
    summary: str
    origin: str
    supports: list[str]
    options: dict[str, str]
    presets: dict[str, dict[str, Any]]
    parameters: dict[str, int]
    flops: dict[str, str]
    references: list[str]

    def __str__(self) -> str:
        lines = [f"{self.kind} {self.id}", f"  {self.summary}", f"  from {self.origin}"]
        if self.supports:
            lines.append(f"  supports {', '.join(self.supports)}")
        lines += ["", "options"] if self.options else ["", "no options"]
        width = max((len(n) for n in self.options), default=0)
        lines += [f"  {name:<{width}}  {text}" for name, text in self.options.items()]
        if self.presets:
            lines += ["", "presets"]
            width = max(map(len, self.flops.values()), default=0)
            for name, options in self.presets.items():
                count = f"{self.parameters[name]:>15,} parameters" if name in self.parameters else " " * 26
                work = f"  {self.flops.get(name, ''):<{width}}" if self.flops else ""
                lines.append(f"  {name:<12}{count}{work}  " + ", ".join(f"{k}={v}" for k, v in options.items()))
            if len(self.parameters) < len(self.presets):
                lines.append("  (the others take a vocab_size of your own)")
        if self.references:
            lines += ["", "papers", *[f"  {r}" for r in self.references]]
        return "\n".join(lines)

    __repr__ = __str__


def info(id: str, kind: str | None = None) -> Info:
    """Describes a block or a model.

    Args:
        id: The id, such as `"gpt"`, `"gpt.nano"` or `"multi_head"`.
        kind: Its kind, where several kinds have that name.

    Examples:
        >>> import kerastf
        >>> print(kerastf.info("rms"))
        norm rms
          Root mean square 1 over the channels, then a gain.
          from kerastf 0.1.0 (kerastf.blocks.norm:RMSNorm)
          supports causal
        <BLANKLINE>
        options
          epsilon  a number, 1e-05 by default
        <BLANKLINE>
        papers
          Zhang and Sennrich, 2019: https://arxiv.org/abs/1910.07467
    """
    entry = find(id, kind)
    cls = registry.resolve(entry.kind, entry.id)
    wanted = registry.split_id(id)[2]
    presets = registry.presets(entry)
    if wanted is not None:
        presets = {wanted: config.preset_of(entry, id)}
    costs = {p: _costs(f"{entry.id}.{p}") for p, o in presets.items() if _is_whole(cls, o)}
    return Info(
        id=entry.id,
        kind=entry.kind,
        summary=entry.manifest.get("summary") or (inspect.getdoc(cls) or "").partition("\n")[0],
        origin=entry.owner,
        supports=sorted(getattr(cls, "supports", ())),
        options=option_texts(cls),
        presets=presets,
        parameters={p: parameters for p, (parameters, _) in costs.items()},
        flops={p: text for p, (_, text) in costs.items() if text},
        references=_references(cls),
    )


def _is_whole(cls: type, preset: dict[str, Any]) -> bool:
    """Whether a preset needs no vocabulary of the user's to have a size."""
    return "vocab_size" in preset or "vocab_size" not in config.options_of(cls)


def find(id: str, kind: str | None) -> Any:
    """The entry of an id whose kind may be left open."""
    if kind is not None:
        return registry.find(kind, id)
    namespace, name, _ = registry.split_id(id)
    bare = name if namespace is None else f"{namespace}/{name}"
    found = [e for e in registry.entries() if e.id in (bare, f"local/{bare}")]
    if len({e.kind for e in found}) == 1:
        return found[0]
    if found:
        kinds = ", ".join(e.kind for e in found)
        raise registry.UnknownNameError(
            f"`{id}` is the name of several kinds: {kinds}. Say which: kind={found[0].kind!r}"
        )
    close = registry.nearest(bare, [e.id for e in registry.entries()], registry.FOREIGN_NAMES)
    raise registry.UnknownNameError(
        f"There is no block or model `{id}`.{registry.did_you_mean(close)} What there is: kerastf list"
    )


def option_texts(cls: type) -> dict[str, str]:
    """By option: what it takes and its default, in words."""
    import typing

    hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    slots = getattr(cls, "slots", {})
    found = {}
    for name, parameter in config.options_of(cls).items():
        text = (
            f"slot: one {config.slot_kind(name)} block" if name in slots else schema.describe_type(hints.get(name, Any))
        )
        if slots.get(name):
            text += " per layer"
        if parameter.default is not parameter.empty:
            text += f", {parameter.default!r} by default"
        found[name] = text
    return found


def _references(cls: type) -> list[str]:
    section = re.search(r"^References:\n(.*)", inspect.getdoc(cls) or "", re.S | re.M)
    return [f"{name}: {link}" for name, link in re.findall(r"\[(.+?)\]\((.+?)\)", section.group(1))] if section else []


def preset_texts(entry: Any, preset: str, vocab_size: int = 10_000) -> tuple[str, str]:
    """How many weights a preset has and how much arithmetic one forward pass is, in words.

    Args:
        entry: The model's entry.
        preset: Name of the preset.
        vocab_size: What is counted with where the preset leaves the vocabulary open.
    """
    options = registry.presets(entry)[preset]
    open_size = not _is_whole(registry.resolve("model", entry.id), options)
    count, text = _costs(f"{entry.id}.{preset}", **({"vocab_size": vocab_size} if open_size else {}))
    return f"{count:,}" + (f" with {vocab_size:,} tokens" if open_size else ""), text


def _costs(id: str, **options: Any) -> tuple[int, str]:
    """Parameters, and arithmetic in words; no words for a plugin's family that does not say what its input is."""
    try:
        cost = counting.cost(id, **options)
    except InputError:
        return count_parameters(id, **options), ""
    return cost.parameters, flops_text(cost)


def flops_text(cost: "counting.Cost") -> str:
    """The arithmetic of a forward pass, and of what input: `293 GFLOPs for 1024 tokens`."""
    number, _, prefix = counting.in_units(cost.flops).partition(" ")
    if "images" in cost.inputs:
        size = "{} x {} pixels".format(*cost.inputs["images"][1:3])
    elif "source" in cost.inputs:
        size = f"{cost.inputs['source'][1]} tokens on each side"
    else:
        name = "tokens" if "tokens" in cost.inputs else next(iter(cost.inputs))
        size = f"{cost.inputs[name][1]} {name}"
    return f"{number} {prefix}FLOPs for {size}"


def count_parameters(id: str, **options: Any) -> int:
    """How many weights a model has, counted on a model that is built without allocating them.

    Args:
        id: A model, such as `"gpt.gpt2_xl"`.
        **options: As for `create_model`.

    Examples:
        >>> import kerastf
        >>> kerastf.count_parameters("gpt.gpt2")
        124439808
    """
    from kerastf import compat

    with compat.without_allocation():
        model = config.build_model(id, **options)
    total = 0
    for variable in model.weights:  # also those that its head does not train, as BERT's pooler may be
        size = 1
        for n in variable.shape:
            size *= n
        total += size
    return total
