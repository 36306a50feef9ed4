"""What a saved file may name, checked before Keras sees it, because Keras imports what it reads."""

import importlib
from collections.abc import Iterator
from typing import Any

from kerastf import keras_hook, plugins
from kerastf.errors import FileFormatError
from kerastf.schema import short

# Keras's own objects that stand in a compiled model. Its layers and models are not among them: some read files.
PUBLIC = (
    "activations", "constraints", "dtype_policies", "initializers", "losses", "metrics", "optimizers",
    "optimizers.schedules", "quantizers", "random", "regularizers",
)  # fmt: skip
POLICIES = ("DTypePolicy", "FloatDTypePolicy")  # which stand in `keras` itself
VALUES = ("__tensor__", "__numpy__", "__bytes__", "__slice__", "__ellipsis__")
# Ours that nobody imports in order to build a model.
OURS = ("kerastf.training.optimizers", "kerastf.metrics.perplexity")


def require_known(config: Any, file: str) -> None:
    """Refuses a configuration that names what Keras would have to import, or what a plugin offers that is not allowed.

    Args:
        config: The whole configuration, as JSON has it.
        file: The file's name, for messages.

    Raises:
        FileFormatError: An object is neither Keras's own nor registered here.
        PluginError: An object belongs to a plugin that may not be used now.
    """
    for place, spec in _objects(config):
        name, module = spec["class_name"], spec.get("module")
        if name in VALUES:
            continue
        name = spec["config"] if name == "function" else name
        registered = name if spec["class_name"] == "function" else spec.get("registered_name", name)
        if not isinstance(name, str) or not all(isinstance(x, str | None) for x in (module, registered)):
            raise FileFormatError(f"{file}: {place} is not an object of Keras. Received: {short(spec)}")
        if module in OURS:
            importlib.import_module(str(module))
        if not _known(name, module or "", registered):
            asked = f"{module}.{name}" if module else name
            raise FileFormatError(
                f"{file} names {asked} ({place}), which is neither Keras's own nor registered here. If it is yours, "
                f"run the code that registers it first: keras.saving.register_keras_serializable"
            )


def _objects(config: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each dict that Keras would make an object of, with where it stands."""
    left = [("", config)]  # a list, not a recursion: a file may be as deep as it likes
    while left:
        place, value = left.pop()
        if isinstance(value, dict):
            if "class_name" in value and "config" in value:
                yield place or "the model", value
            left += [(f"{place}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            left += [(place, inner) for inner in value]


def _known(name: str, module: str, registered: str | None) -> bool:
    import keras

    found = keras.saving.get_registered_object(registered)
    if found is not None:
        _is_allowed(found, getattr(found, "__module__", ""))
        return True
    if name.startswith("__"):
        return False
    if module.partition(".")[0] == "keras":
        part = keras
        for step in module.split(".")[1:]:
            part = getattr(part, step, None)
        listed = name in POLICIES if module == "keras" else module.removeprefix("keras.") in PUBLIC
        return listed and hasattr(part, name) and name not in ("deserialize", "get", "serialize")
    # A function of Keras by its name alone; else what a plugin registers while its blocks are imported. Keras itself
    # imports no module of either.
    return module == "builtins" or _is_allowed(None, module)


def _is_allowed(found: Any, module: str) -> bool:
    """Whether an object, or what a module holds, is a plugin's or ours; raises where it is one that may not be used."""
    stands_in = isinstance(found, type) and issubclass(found, keras_hook.StandIn)
    entry = found.entry if stands_in else getattr(found, "registry_entry", None)
    known = [entry] if entry else [e for p in plugins.discover().values() for e in p.entries]
    own = [e for e in known if e is entry or e.target.partition(":")[0].partition(".")[0] == module.partition(".")[0]]
    if own and own[0].plugin:
        own[0].plugin.require_usable(own[0])
    return bool(own)
