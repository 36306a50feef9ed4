"""Plugins: what installed packages add through entry points. Nothing is imported before it is used.

Discovery reads package metadata once per process. An `Entry` is one name that a package offers; a `Plugin` is the
package. A plugin that breaks costs its own names only: its traceback is kept, and raised when one of them is used.
"""

import contextlib
import contextvars
import importlib
import importlib.util
import os
import re
import threading
import time
import tomllib
import traceback
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerastf.errors import PluginError

if TYPE_CHECKING:
    import importlib.metadata

KINDS = (
    "model", "attention", "norm", "feedforward", "position", "embedding", "cell", "head", "sampler",
    "converter",
)  # fmt: skip
BUILT_IN = ""
LOCAL = "local"
GROUP = "kerastf."
VARIABLE = "KERASTF_PLUGINS"

# What a manifest may say of a name, and of which form it is.
FACTS = {
    "summary": "a string", "deprecated": "a string", "tags": "a list of strings", "supports": "a list of strings",
    "aliases": "a list of strings", "renamed": "a table of strings", "example": "a table",
    "presets": "a table of tables",
}  # fmt: skip

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def normalise(name: str) -> str:
    """Hyphens and dots are underscores here, and letters are small: `Linear-Attention` is `linear_attention`."""
    return re.sub(r"[-_.]+", "_", name.strip()).lower()


def is_name(text: str) -> bool:
    return bool(_NAME.match(text))


@dataclass
class Entry:
    """One name of one kind and where its code lives.

    Attributes:
        kind: One of `KINDS`.
        namespace: `""` for the built-ins, `"local"` for a script or notebook, else the plugin's.
        name: The name within the namespace.
        target: `"module:Qualified.name"`.
        plugin: The package that offers it; None for local entries.
        rivals: Other packages that claim the same id. Such an id is never resolved.
    """

    kind: str
    namespace: str
    name: str
    target: str
    plugin: "Plugin | None" = None
    value: Any = field(default=None, repr=False)
    rivals: list["Entry"] = field(default_factory=list, repr=False)

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def owner(self) -> str:
        """Who offers this name, in words."""
        if self.plugin:
            return f"{self.plugin.distribution} {self.plugin.version} ({self.target})"
        return self.target

    @property
    def manifest(self) -> dict[str, Any]:
        """What the package's `kerastf.toml` says of this name; empty where it says nothing."""
        if self.plugin is None:
            return {}
        found = self.plugin.manifest.get(self.kind, {})
        found = found.get(self.name, {}) if isinstance(found, dict) else {}
        return found if isinstance(found, dict) else {}

    def load(self) -> Any:
        """Imports the owner and returns the class.

        Raises:
            PluginError: The owner is disabled, incompatible, ambiguous or fails to import.
        """
        if self.plugin is None:
            return self.value
        if self.rivals:
            owners = " and ".join(sorted(e.owner for e in [self, *self.rivals]))
            raise PluginError(
                f"`{self.id}` ({self.kind}) is claimed by {owners}. Neither is used; uninstall one of them."
            )
        self.plugin.require_usable(self)
        if self.value is None:
            self.value = self.plugin.load(self)
        return self.value


class Plugin:
    """An installed package that offers names.

    Attributes:
        distribution: Its name on the package index.
        version: Its version.
        namespace: What stands before the slash in its ids.
        entries: The names it offers.
        problems: What is wrong with its metadata, in words. Such a plugin still works for the rest.
        load_seconds: How long its modules took to import so far.
        tracebacks: By module, or by name within a sound module: the kept traceback of what failed.
        disabled: Whether the user switched it off.
    """

    def __init__(self, distribution: str, version: str, requires: Iterable[str] = ()):
        self.distribution = distribution
        self.version = version
        self.requires = tuple(requires)
        plain = normalise(distribution)
        self.namespace = BUILT_IN if plain == "kerastf" else plain.removeprefix("kerastf_")
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.load_seconds = 0.0
        self.tracebacks: dict[str, str] = {}
        self.disabled = False
        self._lock = threading.RLock()

    @property
    def state(self) -> str:
        """`discovered`, `loaded`, `failed`, `disabled` or `incompatible`."""
        if self.disabled:
            return "disabled"
        if self.incompatibility:
            return "incompatible"
        if self.tracebacks:
            return "failed"
        return "loaded" if any(e.value is not None for e in self.entries) else "discovered"

    @cached_property
    def incompatibility(self) -> str:
        """Why this version of kerastf does not do, or an empty string."""
        from kerastf import __version__

        for line in self.requires:
            if not normalise(line).startswith("kerastf"):
                continue
            from packaging.requirements import InvalidRequirement, Requirement

            try:
                need = Requirement(line)
            except InvalidRequirement:
                self.problems.append(f"its requirement {line!r} cannot be read")
                continue
            if normalise(need.name) != "kerastf" or (need.marker and not need.marker.evaluate()):
                continue
            if not need.specifier.contains(__version__, prereleases=True):
                return f"it needs kerastf{need.specifier}, and kerastf {__version__} is installed"
        return ""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The `kerastf.toml` inside the package, read without importing the package."""
        path = self._manifest_path()
        if path is None:
            return {}
        try:
            found = tomllib.loads(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            self.problems.append(f"its manifest kerastf.toml cannot be read: {error}")
            return {}
        return {kind: self._sound(kind, names) for kind, names in found.items()}

    def _sound(self, kind: str, names: Any) -> dict[str, Any]:
        """What the manifest says of the names of a kind, without what would break those who read it."""
        sound: dict[str, Any] = {}
        for name, facts in names.items() if isinstance(names, dict) else [("", names)]:
            place = f"{kind}.{name}".rstrip(".")
            if not isinstance(facts, dict):
                self.problems.append(f"its manifest kerastf.toml: {place} must be a table. Received: {facts!r}")
                continue
            wrong = [key for key, value in facts.items() if not _has_form(value, FACTS.get(key, ""))]
            self.problems += [
                f"its manifest kerastf.toml: `{key}` of [{place}] must be {FACTS[key]}. Received: {facts[key]!r}"
                for key in wrong
            ]
            sound[name] = {key: value for key, value in facts.items() if key not in wrong}
        return sound

    def _manifest_path(self) -> Path | None:
        for top in dict.fromkeys(e.target.partition(":")[0].partition(".")[0] for e in self.entries):
            try:
                spec = importlib.util.find_spec(top)
            except (ImportError, ValueError, AttributeError):
                continue
            for folder in (spec.submodule_search_locations or ()) if spec else ():
                path = Path(folder) / "kerastf.toml"
                if path.is_file():
                    return path
        return None

    def require_usable(self, entry: Entry) -> None:
        """Raises `PluginError` where this plugin may not be used now."""
        allowed = _allowed.get()
        if self.namespace and allowed is not None and self.namespace not in allowed:
            raise PluginError(
                f"`{entry.id}` ({entry.kind}) comes from the plugin {self.distribution} {self.version}, which is not "
                f"allowed here. Received: plugins={_spell(allowed)}"
            )
        if self.disabled:
            raise PluginError(
                f"`{entry.id}` ({entry.kind}) comes from the plugin {self.distribution} {self.version}, which is "
                f"disabled. Enable it: kerastf.plugins.enable({self.namespace!r}), or the variable {VARIABLE}."
            )
        if self.incompatibility:
            raise PluginError(
                f"`{entry.id}` ({entry.kind}) comes from the plugin {self.distribution} {self.version}, which is "
                f"incompatible: {self.incompatibility}."
            )

    def load(self, entry: Entry) -> Any:
        """Imports the module of `entry` once, however many threads ask; a failure is kept, not repeated."""
        module_name, _, attribute = entry.target.partition(":")
        with self._lock:
            # A module that fails costs all its names; a name that a sound module lacks costs only itself.
            failed = module_name if module_name in self.tracebacks else entry.target
            if failed not in self.tracebacks:
                start = time.perf_counter()
                try:
                    failed = module_name
                    value: Any = importlib.import_module(module_name)
                    failed = entry.target
                    for part in attribute.split("."):
                        value = getattr(value, part)
                    if not isinstance(value, type):
                        raise TypeError(f"{entry.target} is {value!r}, not a class")
                    return value
                except (Exception, SystemExit):
                    self.tracebacks[failed] = traceback.format_exc()
                finally:
                    self.load_seconds += time.perf_counter() - start
            kept = self.tracebacks[failed]
        last = kept.strip().splitlines()[-1]
        raise PluginError(
            f"`{entry.id}` ({entry.kind}) comes from the plugin {self.distribution} {self.version}, which fails to "
            f"import: {last}. The whole traceback: kerastf plugin doctor {self.namespace}"
        )


def _has_form(value: Any, form: str) -> bool:
    whole, _, parts = form.partition(" of ")
    kind: type = {"a string": str, "a list": list, "a table": dict}.get(whole, object)
    inner: type = {"strings": str, "tables": dict}.get(parts, object)
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, kind) and all(isinstance(part, inner) for part in held)


_lock = threading.RLock()
_discovered: dict[str, Plugin] | None = None
_allowed: contextvars.ContextVar[Collection[str] | None] = contextvars.ContextVar("allowed", default=None)


def discover() -> dict[str, Plugin]:
    """Returns the installed plugins by distribution name, kerastf itself included."""
    global _discovered
    if _discovered is None:
        with _lock:
            if _discovered is None:
                import importlib.metadata  # here, because it takes a third of the time of `import kerastf`

                _discovered = _read(importlib.metadata.distributions())
    return _discovered


def rediscover() -> None:
    """Forgets what was found, so that a package installed since is seen. Loaded code stays loaded."""
    global _discovered
    with _lock:
        _discovered = None


def _read(distributions: "Iterable[importlib.metadata.Distribution]") -> dict[str, Plugin]:
    plugins: dict[str, Plugin] = {}
    for distribution in distributions:
        if f"[{GROUP}" not in (distribution.read_text("entry_points.txt") or ""):
            continue  # most packages: their metadata need not be parsed
        name = distribution.name
        if name in plugins:
            continue  # found twice on the path: Python imports the first
        points = [(p.group.removeprefix(GROUP), p.name, p.value) for p in distribution.entry_points
                  if p.group.startswith(GROUP)]  # fmt: skip
        plugins[name] = describe(name, distribution.version, distribution.requires or (), points)
    _mark_rivals(plugins.values())
    _apply_variable(plugins.values(), os.environ.get(VARIABLE))
    return plugins


def describe(
    distribution: str, version: str, requires: Iterable[str], points: Iterable[tuple[str, str, str]]
) -> Plugin:
    """The plugin that a package's metadata describe.

    Args:
        distribution: Its name.
        version: Its version.
        requires: Its requirements, a line each.
        points: Its entry points: kind, name, target.
    """
    plugin = Plugin(distribution, version, requires)
    for kind, name, target in points:
        _add(plugin, kind, name, target)
    return plugin


def _add(plugin: Plugin, kind: str, name: str, target: str) -> None:
    if kind not in KINDS:
        plugin.problems.append(f"it offers `{name}` under an unknown kind `{kind}` (kinds: {', '.join(KINDS)})")
        return
    if plugin.namespace == LOCAL or not is_name(plugin.namespace or "kerastf"):
        plugin.problems.append(f"its namespace `{plugin.namespace}` is reserved or not a name")
        return
    plain = normalise(name)
    if not is_name(plain):
        plugin.problems.append(f"it offers `{name}` ({kind}), which is not a name (a letter, then a-z 0-9 _)")
        return
    target = target.split("[")[0].replace(" ", "")
    if ":" not in target:
        plugin.problems.append(f"`{name}` ({kind}) points to a module, not to a class: {target}")
        return
    plugin.entries.append(Entry(kind, plugin.namespace, plain, target, plugin))


def _mark_rivals(plugins: Iterable[Plugin]) -> None:
    """Two packages that claim one id: neither gets it, so installing one never redirects the other's name."""
    by_id: dict[tuple[str, str], list[Entry]] = {}
    for plugin in plugins:
        for entry in plugin.entries:
            by_id.setdefault((entry.kind, entry.id), []).append(entry)
    for same in by_id.values():
        for entry in same:
            entry.rivals = [other for other in same if other is not entry]
            if entry.rivals and entry.plugin:
                entry.plugin.problems.append(f"`{entry.id}` ({entry.kind}) is claimed by {entry.rivals[0].owner} too")


def _apply_variable(plugins: Iterable[Plugin], value: str | None) -> None:
    if value is None or value.strip() in ("", "all"):
        return
    wanted = set() if value.strip() == "none" else {normalise(ns) for ns in value.split(",")}
    for plugin in plugins:
        plugin.disabled = bool(plugin.namespace) and plugin.namespace not in wanted


def enable(namespace: str) -> None:
    """Switches a plugin on in this process."""
    _switch(namespace, disabled=False)


def disable(namespace: str) -> None:
    """Switches a plugin off in this process: its names raise `PluginError` until it is enabled."""
    _switch(namespace, disabled=True)


def _switch(namespace: str, disabled: bool) -> None:
    found = [p for p in discover().values() if p.namespace and p.namespace == normalise(namespace)]
    if not found:
        names = ", ".join(sorted(p.namespace for p in discover().values() if p.namespace)) or "none"
        raise PluginError(f"No plugin has the namespace `{namespace}`. Installed: {names}.")
    for plugin in found:
        plugin.disabled = disabled


@contextlib.contextmanager
def only(allowed: str | Collection[str]) -> Iterator[None]:
    """Within the block, only these plugins may be used: `"all"`, `"none"`, or namespaces."""
    if isinstance(allowed, str) and allowed not in ("all", "none"):
        allowed = [allowed]
    spaces = None if allowed == "all" else () if allowed == "none" else tuple(map(normalise, allowed))
    token = _allowed.set(spaces)
    try:
        yield
    finally:
        _allowed.reset(token)


def _spell(allowed: Collection[str]) -> str:
    return repr(list(allowed)) if allowed else repr("none")
