"""A plugin as its author has it: the folder with its source, and what is installed of it."""

import contextlib
import importlib.util
import io
import os
import random
import sys
import tomllib
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import keras

from kerastf import plugins, registry
from kerastf.errors import FileFormatError, UnknownNameError
from kerastf.plugin_tools.doctor import origin
from kerastf.plugins import Entry, Plugin
from kerastf.testing.report import NotAsked


class Project:
    """What the checks of `kerastf plugin check` are run on.

    Attributes:
        folder: The folder with its `pyproject.toml`; None where only the installed package is here.
        facts: The `[project]` table of `pyproject.toml`.
        declared: The plugin as `pyproject.toml` describes it; None without a folder.
        plugin: The plugin as it is installed; None where it is not.
        level: `"quick"` or `"full"`.
    """

    kind = "plugin"

    def __init__(self, folder: Path | None, plugin: Plugin | None = None, level: str = "quick"):
        self.folder = folder
        self.level = level
        self.text = _read_pyproject(folder) if folder else {}
        self.facts: dict[str, Any] = self.text.get("project", {})
        self.declared = _declared(self.facts) if folder else None
        self.plugin = plugin or _installed(str(self.facts.get("name", "")))
        self.known: Plugin = self.declared or self.plugin  # type: ignore[assignment]
        self.id = self.known.namespace
        if self.id == plugins.BUILT_IN:
            raise FileFormatError(f"{folder} is kerastf itself, not a plugin. Its blocks: kerastf check NAME")

    @property
    def source(self) -> Path:
        """The folder; a check that needs it is not asked for without."""
        if self.folder is None:
            raise NotAsked("its source is not here: give the folder instead of the name")
        return self.folder

    @property
    def entries(self) -> list[Entry]:
        """What is installed of its names, as far as they may be used."""
        if self.plugin is None:
            raise NotAsked("it is not installed")
        if self.plugin.incompatibility or self.plugin.disabled:
            raise NotAsked(f"it is {self.plugin.state}")
        if not self.plugin.entries:
            raise NotAsked("it offers nothing")
        free = [e for e in self.plugin.entries if not e.rivals]
        if not free:
            raise NotAsked("other packages claim its names")
        return free

    @property
    def classes(self) -> dict[str, tuple[Entry, Any]]:
        """By kind and id: the entry and its class, of those that import."""
        found = {f"{e.kind} `{e.id}`": (e, self.loading.values[e.target]) for e in self.entries
                 if e.target in self.loading.values}  # fmt: skip
        if not found:
            raise NotAsked("nothing of it imports")
        return found

    @cached_property
    def loading(self) -> "Loading":
        """What happened when its modules were imported."""
        return Loading(self.entries)

    @cached_property
    def packages(self) -> list[Path]:
        """The folders of its packages, found without importing them."""
        tops = dict.fromkeys(e.target.partition(":")[0].partition(".")[0] for e in self.entries)
        specs = [importlib.util.find_spec(top) for top in tops]
        return [Path(p) for spec in specs if spec for p in spec.submodule_search_locations or ()]


def locate(where: str, level: str = "quick") -> Project:
    """The plugin in a folder, or the installed plugin of a namespace.

    Raises:
        UnknownNameError: There is neither.
        FileFormatError: The folder's `pyproject.toml` is missing or cannot be read.
    """
    if Path(where).is_dir():
        return Project(Path(where).resolve(), level=level)
    spaces = {p.namespace: p for p in plugins.discover().values() if p.namespace}
    found = spaces.get(plugins.normalise(where))
    if found is None:
        close = registry.did_you_mean(registry.nearest(where, spaces))
        raise UnknownNameError(
            f"There is no folder and no installed plugin `{where}`.{close} Installed plugins: kerastf plugins"
        )
    folder, editable = origin(found.distribution)
    return Project(folder if editable and (folder / "pyproject.toml").is_file() else None, found, level)


def _read_pyproject(folder: Path) -> dict[str, Any]:
    path = folder / "pyproject.toml"
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FileFormatError(
            f"{folder} is not the folder of a package: it has no pyproject.toml. "
            "Begin one: kerastf plugin new NAME --kind KIND"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from None
    if not isinstance(found.get("project"), dict) or not isinstance(found["project"].get("name"), str):
        raise FileFormatError(f"{path} has no [project] table with a name.")
    return found


def _declared(facts: dict[str, Any]) -> Plugin:
    groups = facts.get("entry-points", {})
    points = [(g.removeprefix(plugins.GROUP), n, t) for g, ps in groups.items() for n, t in ps.items()
              if g.startswith(plugins.GROUP)]  # fmt: skip
    return plugins.describe(facts["name"], str(facts.get("version", "")), facts.get("dependencies", ()), points)


def _installed(name: str) -> Plugin | None:
    found = {plugins.normalise(p.distribution): p for p in plugins.discover().values()}
    return found.get(plugins.normalise(name))


class Loading:
    """Imports what a plugin offers, and notes what else that changed.

    Attributes:
        values: By target: the class.
        errors: By id: why it does not import.
        changes: What else the import did, in words.
        seconds: How long it took; None where the modules had been imported before.
    """

    def __init__(self, entries: list[Entry]):
        fresh = not any(e.target.partition(":")[0] in sys.modules for e in entries)
        self.values: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        before, printed = _surroundings(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            for entry in entries:
                try:
                    self.values[entry.target] = registry.resolve(entry.kind, entry.id)
                except (ImportError, ValueError, LookupError) as error:
                    self.errors[entry.id] = str(error)
        self.changes = [words for words, value in _surroundings().items() if value != before[words]]
        if foreign := _foreign_names(entries):
            self.changes.append(f"it registers the Keras object {foreign[0]!r}, which is another's name")
        if printed.getvalue().strip():
            self.changes.append(f"it prints {printed.getvalue().strip().splitlines()[0]!r}")
        plugin = entries[0].plugin
        self.seconds = plugin.load_seconds if fresh and plugin else None


def _surroundings() -> dict[str, Any]:
    """What importing a plugin must leave as it is, by how a change of it reads."""
    return {
        "it registers names of no entry point (under `local`)": set(registry._local),
        "it changes Keras's settings (dtype policy, floatx, image format)": (
            keras.config.dtype_policy().name, keras.config.floatx(), keras.config.image_data_format(),
        ),
        "it changes environment variables": dict(os.environ),
        "it changes the path that modules are found on": list(sys.path),
        "it changes the filters of warnings": list(warnings.filters),
        "it seeds Python's random numbers": random.getstate(),
    }  # fmt: skip


def _foreign_names(entries: list[Entry]) -> list[str]:
    """Names of Keras objects that a plugin's code took, and that are kerastf's, another plugin's or Keras's own."""
    own = {"{}>{}".format(*registry.saved_name(e)) for e in entries}
    tops = {e.target.partition(":")[0].partition(".")[0] for e in entries}
    taken = [n for n, thing in keras.saving.get_custom_objects().items()
             if str(getattr(thing, "__module__", "")).partition(".")[0] in tops]  # fmt: skip
    ours = ("kerastf>", "kerastf.")  # a class under the name of the plugin's own package is its own affair
    return [n for n in taken if n not in own and (n.startswith(ours) or ">" not in n)]
