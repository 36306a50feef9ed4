"""What a model's file says of its parts, and how the configuration of an earlier version becomes one of today."""

import functools
import inspect
from collections.abc import Mapping
from typing import Any

from kerastf import config, evolution, registry
from kerastf.errors import ConfigError
from kerastf.schema import short


def provenance(model: Any) -> dict[str, dict[str, Any]]:
    """By id: distribution and version of the family and of every block in a slot."""
    entries = [type(model).registry_entry]
    for slot in model.slots:
        entries += [registry.find(config.slot_kind(slot), spec["name"]) for spec in blocks_in(model, slot)]
    return {entry.id: _origin(entry) for entry in entries}


def blocks_in(model: Any, slot: str) -> list[dict[str, Any]]:
    """The blocks in a slot of a model, one per layer or one in all, each as its name and options."""
    depth = model.options["num_layers"] if model.slots[slot] else None
    return config.expand_slot(slot, model.options[slot], depth)[1]


def _origin(entry):
    known = evolution.version_of(registry.resolve(entry.kind, entry.id))
    later = {"config_version": known} if known > 1 else {}  # the first version of a configuration goes without saying
    if entry.plugin is None:
        return {"distribution": "local", "version": "", **later}
    return {"distribution": entry.plugin.distribution, "version": entry.plugin.version, **later}


def of_today(cls: Any, options: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Options that an earlier version saved, as this one would have: the family's own, then those of its blocks.

    Args:
        cls: The family's class.
        options: As the file has them.
        provenance: What the file says of each part.
    """
    found = evolution.upgraded(cls, options, _version(provenance, cls.registry_entry.id))
    found = evolution.renamed(cls.registry_entry, found)
    for slot in cls.slots:
        if slot in found:
            change = functools.partial(_block_of_today, config.slot_kind(slot), provenance)
            found[slot] = evolution.each_block(found[slot], change)
    known = inspect.signature(cls).parameters
    unknown = [name for name in found if name not in known]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
        raise ConfigError(
            f"The model `{cls.registry_entry.id}` has no option `{unknown[0]}` here; a later version may have written "
            f"it. Received: {', '.join(f'{name}={short(found[name])}' for name in unknown)}"
        )
    return found


def _block_of_today(kind, provenance, spec):
    name = spec.pop("name")
    return {"name": name, **evolution.upgraded(registry.resolve(kind, name), spec, _version(provenance, name))}


def _version(provenance, id):
    claim = provenance.get(id)
    return claim.get("config_version", 1) if isinstance(claim, Mapping) else 1
