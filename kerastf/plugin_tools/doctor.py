"""`kerastf plugin doctor`: what is installed, from where, and what is wrong with it."""

import contextlib
import importlib
import importlib.metadata
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlparse
from urllib.request import url2pathname

from kerastf import plugins, registry
from kerastf.errors import UnknownNameError
from kerastf.plugins import Plugin


@dataclass
class Finding:
    """What there is to say of one installed plugin. It prints well.

    Attributes:
        plugin: The plugin, loaded as far as it loads.
        where: The folder it comes from.
        editable: Whether that folder is its source, so that changes there count at once.
        unmet: Requirements that what is installed does not meet, in words.
        problems: What is wrong with it, in words.
    """

    plugin: Plugin
    where: Path
    editable: bool
    unmet: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def sick(self) -> bool:
        """Whether something should be done."""
        return bool(self.problems or self.unmet or self.plugin.state in ("failed", "incompatible"))

    def __str__(self) -> str:
        plugin = self.plugin
        lines = [
            headline(plugin),
            f"  offers {offers(plugin)}",
            f"  installed from {self.where}" + (" (editable: changes there count at once)" if self.editable else ""),
        ]
        if plugin.state in ("loaded", "failed"):
            lines.append(f"  loaded in {plugin.load_seconds:.2f} s")
        lines += [f"  {plugin.incompatibility}"] if plugin.incompatibility else []
        lines += [f"  problem: {text}" for text in [*self.problems, *self.unmet]]
        for target, text in plugin.tracebacks.items():
            lines += [f"  {target} fails to import:", *(f"    {line}" for line in text.splitlines())]
        return "\n".join(lines if self.sick else [*lines, "  nothing is wrong with it"])


def headline(plugin: Plugin) -> str:
    """Namespace, state, distribution and version in columns."""
    return f"{plugin.namespace:<20} {plugin.state:<13} {plugin.distribution} {plugin.version}"


def offers(plugin: Plugin) -> str:
    """The names it offers, each with its kind."""
    return ", ".join(f"{e.kind} {e.id}" for e in plugin.entries) or "nothing usable"


def examine(namespace: str | None = None) -> list[Finding]:
    """Loads the installed plugins, and says of each what it is and what is wrong.

    Args:
        namespace: Only this one; None for all.

    Raises:
        UnknownNameError: No installed plugin has that namespace.
    """
    found = [p for p in plugins.discover().values() if p.namespace]
    chosen = [p for p in found if namespace is None or p.namespace == plugins.normalise(namespace)]
    if namespace is not None and not chosen:
        close = registry.did_you_mean(registry.nearest(namespace, {p.namespace for p in found}))
        raise UnknownNameError(
            f"No installed plugin has the namespace `{namespace}`.{close} Installed plugins: kerastf plugins"
        )
    with contextlib.suppress(ImportError):
        importlib.import_module("keras")  # or the first plugin would be charged with the seconds that Keras takes
    return [_finding(plugin) for plugin in chosen]


def _finding(plugin: Plugin) -> Finding:
    for entry in plugin.entries:
        with contextlib.suppress(ImportError):  # kept, and shown from there
            entry.load()
    _ = plugin.manifest  # notes a problem where it cannot be read
    problems = list(plugin.problems)
    if plugin.entries and not plugin.manifest and not problems:
        problems.append("it has no manifest kerastf.toml, so that listing it shows names only")
    return Finding(plugin, *origin(plugin.distribution), unmet_requirements(plugin.distribution), problems)


def origin(distribution: str) -> tuple[Path, bool]:
    """Where a distribution is: its source folder and True where it is editable, else where it is installed."""
    found = importlib.metadata.distribution(distribution)
    url = json.loads(found.read_text("direct_url.json") or "{}")
    if url.get("dir_info", {}).get("editable"):
        return Path(url2pathname(unquote(urlparse(url["url"]).path))), True
    return Path(str(found.locate_file(""))), False


def unmet_requirements(distribution: str) -> list[str]:
    """The requirements of a distribution, kerastf apart, that what is installed does not meet."""
    from packaging.requirements import InvalidRequirement, Requirement

    unmet = []
    for line in importlib.metadata.requires(distribution) or ():
        try:
            need = Requirement(line)
        except InvalidRequirement:
            continue  # told among the problems of its metadata where it concerns kerastf
        if plugins.normalise(need.name) == "kerastf" or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        try:
            version = importlib.metadata.version(need.name)
        except importlib.metadata.PackageNotFoundError:
            unmet.append(f"it needs {need.name}{need.specifier}, which is not installed")
            continue
        if not need.specifier.contains(version, prereleases=True):
            unmet.append(f"it needs {need.name}{need.specifier}, and {need.name} {version} is installed")
    return unmet
