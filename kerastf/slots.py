"""Slots as data: what a user may write into a slot, and the one form it is kept in.

A slot value is `"rms"`, `{"name": "multi_head", "num_kv_heads": 2}`, a list cycled over depth, or a map from layer
number to value with a `"default"`.
"""

from collections.abc import Mapping
from typing import Any

from kerastf import evolution, registry
from kerastf.errors import ConfigError
from kerastf.plugins import KINDS
from kerastf.schema import options_of, plain, short


def slot_kind(slot: str) -> str:
    """The kind of a slot: its name, or the last word of it (`cross_attention` takes an attention)."""
    return slot if slot in KINDS else slot.rpartition("_")[2]


def block_spec(slot: str, value: Any) -> dict[str, Any]:
    """The canonical `{"name": id, **options}` of one block value, for a slot or a kind."""
    kind = slot_kind(slot)
    if isinstance(value, type):
        return {"name": registry.entry_of(kind, value).id}
    if isinstance(value, str):
        return {"name": registry.find(kind, value).id}
    if isinstance(value, Mapping):
        name = value.get("name")
        if not isinstance(name, str | type):
            raise ConfigError(
                f"The slot `{slot}` takes a dict that says the name: {{'name': ..., ...}}. "
                f"Received: {slot}={short(value)}"
            )
        entry = registry.entry_of(kind, name)
        rest = {str(k): plain(v) for k, v in value.items() if k != "name"}
        return {"name": entry.id, **evolution.renamed(entry, rest)}
    own = getattr(type(value), "registry_entry", None)
    if own is not None:
        defaults = {n: p.default for n, p in options_of(type(value)).items()}
        options = {n: getattr(value, n, d) for n, d in defaults.items()}
        changed = {n: v for n, v in options.items() if v != defaults[n]}
        fix = {"name": own.id, **changed} if changed else own.id
        raise ConfigError(
            f"The slot `{slot}` takes a name, not a layer, because one layer object cannot serve every depth. "
            f"Write {slot}={fix!r}. Received: a {type(value).__name__} object"
        )
    raise ConfigError(f"The slot `{slot}` takes a name or a dict with a name. Received: {slot}={short(value)}")


def expand_slot(slot: str, value: Any, depth: int | None) -> tuple[Any, list[dict[str, Any]]]:
    """Reads a slot value.

    Args:
        slot: The slot's name.
        value: A name, a dict with a name, a list cycled over depth, or a map from layer number to either.
        depth: How many layers there are; None for a slot that takes one block.

    Returns:
        The canonical value, and one block spec per layer (one in all where `depth` is None).
    """
    if isinstance(value, Mapping) and "name" not in value and value and all(map(_is_layer_key, value)):
        if depth is None:
            raise ConfigError(
                f"The slot `{slot}` takes one block, not a map over layers. Received: {slot}={short(value)}"
            )
        return _expand_map(slot, value, depth)
    if isinstance(value, list | tuple):
        if depth is None:
            raise ConfigError(f"The slot `{slot}` takes one block, not a list. Received: {slot}={short(value)}")
        if not value:
            raise ConfigError(f"The slot `{slot}` got an empty list. Received: {slot}=[]")
        specs = [block_spec(slot, v) for v in value]
        return [_brief(s) for s in specs], [dict(specs[i % len(specs)]) for i in range(depth)]
    spec = block_spec(slot, value)
    return _brief(spec), [dict(spec) for _ in range(1 if depth is None else depth)]


def _is_layer_key(key: Any) -> bool:
    return key == "default" or str(key).removeprefix("-").isdigit()


def _expand_map(slot: str, value: Mapping[Any, Any], depth: int) -> tuple[Any, list[dict[str, Any]]]:
    default = block_spec(slot, value["default"]) if "default" in value else None
    layers: list[dict[str, Any] | None] = [default] * depth
    canonical = {"default": _brief(default)} if default else {}
    for key, block in value.items():
        if key == "default":
            continue
        number = int(key)
        if not -depth <= number < depth:
            raise ConfigError(
                f"The slot `{slot}` names layer {number}, and there are {depth} layers (0 to {depth - 1}). "
                f"Received: {slot}={short(value)}"
            )
        layers[number] = block_spec(slot, block)
        canonical[str(number % depth)] = _brief(layers[number] or {})
    missing = [str(i) for i, layer in enumerate(layers) if layer is None]
    if missing:
        raise ConfigError(
            f"The slot `{slot}` says nothing of layer {', '.join(missing)}; add a 'default'. "
            f"Received: {slot}={short(value)}"
        )
    return canonical, [dict(layer) for layer in layers if layer is not None]


def _brief(spec: dict[str, Any]) -> Any:
    return spec["name"] if len(spec) == 1 else spec
