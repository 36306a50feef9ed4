"""Makes plain `keras.saving.load_model` find kerastf's classes, without importing keras for those who do not use it.

Keras imports no package but its own while it loads a file, so every class that a file may name must be known to it
by then. At the moment keras is imported (or at once, where it is already) each entry gets a stand-in under its saved
name; the stand-in imports the real class when a file needs it.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
import typing
from collections.abc import Iterator
from typing import Any

from kerastf import garbage, plugins, registry


class StandIn:
    """What Keras finds under an entry's saved name until the class itself is imported."""

    entry: plugins.Entry

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        return registry.resolve(cls.entry.kind, cls.entry.id).from_config(config)  # type: ignore[attr-defined]

    def get_config(self) -> dict[str, Any]:
        return {}


def register_all(saving: Any) -> None:
    """Tells Keras the saved name of every entry that is not imported yet."""
    for entry in registry.entries():
        if entry.rivals:
            continue
        names = registry.aliases(entry) if entry.value is not None else (entry.name, *registry.aliases(entry))
        for name in names:
            package, saved = registry.saved_name(entry, name)
            if saving.get_registered_object(f"{package}>{saved}") is None:
                stand_in = type("StandIn", (StandIn,), {"entry": entry})
                saving.register_keras_serializable(package, saved)(stand_in)


@contextlib.contextmanager
def _compiled_once() -> Iterator[None]:
    """Within the block, `typing` compiles each annotation in quotes once.

    Why: TensorFlow's modules hold 18,000 of them, 111 of which differ. It saves 0.2 s of the 2.5 that the import takes.
    """
    known = vars(typing)
    if "compile" in known:
        yield
        return
    known["compile"] = functools.cache(compile)  # found before the built-in; what it gives never changes
    try:
        yield
    finally:
        del known["compile"]


class _Loader(importlib.abc.Loader):
    """The loader of keras, undisturbed, with one more step at its end."""

    def __init__(self, loader: Any):
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        with garbage.later(), _compiled_once():
            self.loader.exec_module(module)
            garbage.grow_old()  # within the block: at its end Python would go through all that is young
        register_all(module.saving)

    def __getattr__(self, name: str) -> Any:  # resources, source: all as the real loader has them
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds keras as Python would, and wraps its loader. Stays, because anybody may call `find_spec`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "keras" or path is not None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Called by `import kerastf`."""
    saving = getattr(sys.modules.get("keras"), "saving", None)
    if saving is not None:
        register_all(saving)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
