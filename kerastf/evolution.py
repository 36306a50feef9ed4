"""How names, options and saved configurations may change while older code and older files keep working.

A package says in its manifest what was renamed: `aliases` of an entry, `renamed` options, and `deprecated` with a
sentence. A class whose configuration changed otherwise counts `config_version` up and gives `upgrade`:

    config_version = 2

    @classmethod
    def upgrade(cls, config, from_version): ...   # one step: from `from_version` to the next
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from kerastf.errors import ConfigError

_told: set[str] = set()


def warn_once(text: str) -> None:
    """A `FutureWarning` that each process shows once."""
    if text not in _told:
        _told.add(text)
        warnings.warn(text, FutureWarning, stacklevel=4)


def renamed(entry: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options under the names they have today; each old name is told once.

    Raises:
        ConfigError: An option is given under its old and its new name.
    """
    table = entry.manifest.get("renamed", {})
    found: dict[str, Any] = {}
    for name, value in options.items():
        today = table.get(name, name) if isinstance(table, Mapping) else name
        if today != name:
            if today in options:
                raise ConfigError(
                    f"{entry.kind} `{entry.id}`: `{name}` is the old name of `{today}`. Give one of them. "
                    f"Received: {name}={value!r}, {today}={options[today]!r}"
                )
            warn_once(f"The option `{name}` of {entry.kind} `{entry.id}` is called `{today}` now.")
        found[today] = value
    return found


def version_of(cls: type) -> int:
    """The version of a class's configuration."""
    return getattr(cls, "config_version", 1)


def upgraded(cls: Any, config: Mapping[str, Any], version: int) -> dict[str, Any]:
    """A configuration that an earlier version wrote, as this one writes it, step by step.

    Raises:
        ConfigError: A later version wrote it.
    """
    found, today, entry = dict(config), version_of(cls), cls.registry_entry
    if version > today:
        owner = f"{entry.plugin.distribution} {entry.plugin.version}" if entry.plugin else "the class here"
        raise ConfigError(
            f"{entry.kind} `{entry.id}` was saved with version {version} of its configuration, and {owner} knows "
            f"version {today}. Install a later one."
        )
    while version < today:
        found = dict(cls.upgrade(found, version))
        version += 1
    return found


def keep_version(cls: Any) -> None:
    """Makes a layer's own configuration carry its version, so that plain Keras files of an earlier one load, too."""
    if version_of(cls) == 1 or "_keeps_version" in vars(cls) or not hasattr(cls, "from_config"):
        return
    get_config, from_config = cls.get_config, cls.from_config.__func__

    def with_version(self: Any) -> dict[str, Any]:
        return {**get_config(self), "config_version": version_of(cls)}

    def upgrade_first(kind: Any, config: Mapping[str, Any], *args: Any) -> Any:
        plain = {k: v for k, v in config.items() if k != "config_version"}
        above = kind.__mro__[: kind.__mro__.index(cls)]
        if any("_keeps_version" in vars(other) for other in above):  # which upgraded it before it called here
            return from_config(kind, plain, *args)
        return from_config(kind, upgraded(cls, plain, config.get("config_version", 1)), *args)

    cls.get_config, cls.from_config, cls._keeps_version = with_version, classmethod(upgrade_first), True


def each_block(value: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A slot's value with every block in it changed, whatever its form: a name, a dict, a list or a map over layers."""
    if isinstance(value, str):
        found = change({"name": value})
        return found["name"] if set(found) == {"name"} else found
    if isinstance(value, Mapping) and "name" in value:
        return change(dict(value))
    if isinstance(value, Mapping):
        return {key: each_block(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [each_block(inner, change) for inner in value]
    return value
