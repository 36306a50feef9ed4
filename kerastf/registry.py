"""The registry: finds blocks and models by id, without importing what it does not need.

An id is `[namespace/]name`, and for a model a preset may follow after a dot: `gpt`, `gpt.nano`,
`linear_attention/linear`. Bare names belong to the built-ins, then to the running script or notebook (`local`);
a bare name never reaches a plugin, so installing a package never changes what a name means.
"""

import contextlib
import contextvars
import difflib
import fnmatch
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from kerastf import evolution, plugins
from kerastf.errors import PluginError, RegistrationError, UnknownNameError
from kerastf.plugins import BUILT_IN, KINDS, LOCAL, Entry, is_name, normalise

T = TypeVar("T", bound=type)

# Names that other libraries give to what stands here under another one.
FOREIGN_NAMES = {
    "mha": "multi_head", "multiheadattention": "multi_head", "multi_head_attention": "multi_head",
    "multihead": "multi_head", "self_attention": "multi_head", "dot_product": "multi_head", "gqa": "multi_head",
    "sliding_window": "window", "local": "window", "additive": "bahdanau", "concat": "bahdanau", "dot": "luong",
    "general": "luong", "layernorm": "layer", "layer_norm": "layer", "layer_normalization": "layer", "ln": "layer",
    "rmsnorm": "rms", "rms_norm": "rms", "rms_normalization": "rms", "ffn": "mlp", "dense": "mlp",
    "swiglu": "gated", "geglu": "gated", "glu": "gated", "rope": "rotary", "sinusoid": "sinusoidal",
    "sine": "sinusoidal", "absolute": "learned", "lm_head": "language_model", "lm": "language_model",
    "causal_lm": "language_model", "classification": "classifier", "token_classifier": "tagger", "ner": "tagger",
    "nucleus": "top_p", "topk": "top_k", "topp": "top_p", "multinomial": "random", "argmax": "greedy",
    "gpt2": "gpt.gpt2", "gpt_2": "gpt.gpt2", "gpt_nano": "gpt.nano", "gpt2_xl": "gpt.gpt2_xl",
    "gpt2_medium": "gpt.gpt2_medium", "gpt2_large": "gpt.gpt2_large", "mingpt": "gpt.mini", "nanogpt": "gpt.nano",
    "embedding": "token", "vanilla": "simple", "elman": "simple", "simple_rnn": "simple", "tanh": "simple",
    "identity": "none", "lstm_cell": "lstm", "gru_cell": "gru", "vanilla_rnn": "rnn.simple", "char_rnn": "rnn.lstm",
}  # fmt: skip

_lock = threading.RLock()
_local: dict[tuple[str, str], Entry] = {}
# What a file being loaded says of the packages it needs: id -> {"distribution": ..., "version": ...}.
_claims: contextvars.ContextVar[Mapping[str, Any] | None] = contextvars.ContextVar("claims", default=None)


def require_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UnknownNameError(
            f"There is no kind `{kind}`.{did_you_mean(nearest(kind, KINDS))} Kinds: {', '.join(KINDS)}."
        )


def split_id(text: str) -> tuple[str | None, str, str | None]:
    """Splits `[namespace/]name[.preset]`; hyphens become underscores.

    Returns:
        The namespace or None, the name, and the preset or None.
    """
    if not isinstance(text, str):
        raise UnknownNameError(f"An id is a string such as 'gpt.nano'. Received: {text!r}")
    namespace, slash, rest = text.strip().rpartition("/")
    name, dot, preset = rest.partition(".")
    parts = [re.sub("-", "_", part) for part in (namespace, name, preset)]
    sound = (not slash or is_name(parts[0].lower())) and is_name(parts[1].lower())
    if not sound or (dot and not re.fullmatch(r"[a-z0-9_]+", parts[2].lower())):
        raise UnknownNameError(f"An id reads [namespace/]name[.preset] in a-z 0-9 _. Received: {text!r}")
    return parts[0] if slash else None, parts[1], parts[2] if dot else None


def entries(kind: str | None = None) -> list[Entry]:
    """Every entry that is known, built-ins first, in the order of its id. Imports nothing."""
    if kind is not None:
        require_kind(kind)
    found = [e for e in _all() if kind is None or e.kind == kind]
    return sorted(found, key=lambda e: (KINDS.index(e.kind), e.namespace != BUILT_IN, e.id))


def _all() -> list[Entry]:
    found = [e for p in plugins.discover().values() for e in p.entries]
    with _lock:
        return [*found, *_local.values()]


def find(kind: str, id: str) -> Entry:
    """Returns the entry of that kind and id.

    Raises:
        UnknownNameError: There is none; the message names the nearest.
        PluginError: A file being loaded says that the id comes from a package that is not installed.
    """
    require_kind(kind)
    namespace, name, _ = split_id(id)
    spaces = [BUILT_IN, LOCAL] if namespace is None else [namespace]
    same = {e.namespace: e for e in _all() if e.name == name and e.kind == kind}
    for space in spaces:
        if space in same:
            return _told(same[space])
    known = entries(kind)
    for entry in known:
        if entry.namespace in spaces and name in aliases(entry):
            evolution.warn_once(f"The {kind} `{id}` is called `{entry.id}` now.")
            return _told(entry)
    raise _missing(kind, id, namespace, name, known)


def aliases(entry: Entry) -> tuple[str, ...]:
    """Earlier names of an entry, from its package's manifest. A name that somebody else has now is never one."""
    found = entry.manifest.get("aliases", ())
    return tuple(found) if isinstance(found, list | tuple) else ()


def _told(entry: Entry) -> Entry:
    if entry.manifest.get("deprecated"):
        evolution.warn_once(f"{entry.kind} `{entry.id}` is deprecated. {entry.manifest['deprecated']}")
    return entry


def _missing(kind: str, id: str, namespace: str | None, name: str, known: list[Entry]) -> Exception:
    claim = (_claims.get() or {}).get(id)
    if isinstance(claim, Mapping) and namespace not in (None, LOCAL):
        distribution, version = claim.get("distribution"), claim.get("version")
        return PluginError(
            f"The file needs the {kind} block `{id}`, and no installed package offers it. The file says it comes from "
            f"{distribution} {version}. If you trust that package: pip install {distribution}=={version}"
        )
    if namespace == LOCAL:
        return UnknownNameError(
            f"There is no {kind} `{id}` here. Names under `local` live in one script or notebook: run the code that "
            f"registers it (`@kerastf.register({kind!r})`) first."
        )
    other = [e.kind for e in entries() if e.id == id and e.kind != kind]
    if other:
        return UnknownNameError(
            f"There is no {kind} `{id}`; `{id}` is a {other[0]}. What there is: kerastf list --kind {kind}"
        )
    installed = {e.namespace for e in entries()}
    if namespace is not None and namespace not in installed:
        close = [f"{n}/{name}" for n in nearest(namespace, [n for n in installed if n])]
        if kind == "model" and any(e.name == namespace and name in presets(e) for e in known):
            close = [f"{namespace}.{name}"]
        hint = did_you_mean(close)
        return UnknownNameError(
            f"There is no {kind} `{id}`: no installed plugin has the namespace `{namespace}`.{hint} "
            f"Installed plugins: kerastf plugins"
        )
    same = [e.id for e in known if e.name == name]
    close = same or nearest(name, [e.id for e in known], FOREIGN_NAMES)
    preset = split_id(id)[2]
    if preset:
        close = [f"{c}.{preset}" for c in close if any(e.id == c and preset in presets(e) for e in known)] or close
    return UnknownNameError(
        f"There is no {kind} `{id}`.{did_you_mean(close)} What there is: kerastf list --kind {kind}"
    )


def resolve(kind: str, id: str | type) -> type:
    """Returns the class behind an id, importing only the package that owns it."""
    entry = entry_of(kind, id)
    cls = entry.load()
    if "registry_entry" not in vars(cls):  # an entry point to a class without the decorator
        register(kind, entry.name, supports=getattr(cls, "supports", ()))(cls)
    return cls


def entry_of(kind: str, value: str | type) -> Entry:
    """The entry behind an id or behind a class that is registered under that kind."""
    if not isinstance(value, type):
        return find(kind, value)
    target = _target(value)
    found = [e for e in entries(kind) if e.target == target]
    if not found:
        raise UnknownNameError(
            f"The class {value.__name__} is not registered as {kind}. Put @kerastf.register({kind!r}) above it."
        )
    return found[0]


def register(kind: str, name: str | None = None, *, supports: Iterable[str] = ()) -> Callable[[T], T]:
    """Makes a class known under a name. Works in a notebook; an installed package names it in an entry point too.

    Args:
        kind: What it is: `"attention"`, `"norm"`, ...
        name: The name; by default the class's own in small letters (`MyBlock` is `my_block`).
        supports: What it can do, as far as its kind asks (`"causal"`, `"decode"`, ...).

    Returns:
        A decorator that returns the class itself.

    Examples:
        >>> import keras, kerastf
        >>> @kerastf.register("norm")
        ... class Halve(keras.layers.Layer):
        ...     def call(self, x):
        ...         return x / 2
        >>> kerastf.list_blocks("local/*")
        ['local/halve']
    """
    require_kind(kind)

    def decorate(cls: T) -> T:
        if not isinstance(cls, type):
            raise RegistrationError(f"Only a class can be registered. Received: {cls!r}")
        plain = normalise(name) if name else _snake(cls.__name__)
        if not is_name(plain):
            raise RegistrationError(f"`{name}` is not a name: a letter, then a-z 0-9 _. Received: name={name!r}")
        cls.supports = frozenset(supports)  # type: ignore[attr-defined]
        adopt(_packaged(kind, plain, cls) or _add_local(kind, plain, cls), cls)
        return cls

    return decorate


def _packaged(kind: str, name: str, cls: type) -> Entry | None:
    """The entry point that points to this class; None where the class belongs to a script or notebook."""
    target = _target(cls)
    top = cls.__module__.partition(".")[0]
    for plugin in plugins.discover().values():
        for entry in plugin.entries:
            if entry.target == target and entry.kind == kind and entry.name == name:
                return entry
        if any(e.target.partition(":")[0].partition(".")[0] == top for e in plugin.entries):
            raise RegistrationError(
                f"{target} belongs to the package {plugin.distribution}, which has no entry point for it. Add to its "
                f'pyproject.toml: [project.entry-points."kerastf.{kind}"] {name} = "{target}"'
            )
    return None


def _add_local(kind: str, name: str, cls: type) -> Entry:
    with _lock:
        rivals = [e for e in entries(kind) if e.name == name and e.namespace in (BUILT_IN, LOCAL)]
        for rival in rivals:
            if rival.target != _target(cls):
                raise RegistrationError(
                    f"The {kind} `{name}` exists already: {rival.owner}. {_target(cls)} needs another name: "
                    f'@kerastf.register({kind!r}, "other_name")'
                )
        entry = Entry(kind, LOCAL, name, _target(cls), value=cls)
        _local[kind, name] = entry
    return entry


def adopt(entry: Entry, cls: type) -> None:
    """Notes the class's own entry on it, and tells Keras its saved name where Keras is there."""
    cls.registry_entry = entry  # type: ignore[attr-defined]
    if entry.kind != "model":  # a model's file holds the versions of all its parts
        evolution.keep_version(cls)
    if entry.plugin is None:
        entry.value = cls
    saving = getattr(sys.modules.get("keras"), "saving", None)
    if saving is not None and hasattr(cls, "get_config"):
        saving.register_keras_serializable(*saved_name(entry))(cls)


def saved_name(entry: Entry, name: str | None = None) -> tuple[str, str]:
    """The package and the name under which Keras finds the class of an entry in a file, or one of its aliases."""
    return f"kerastf.{entry.namespace}" if entry.namespace else "kerastf", f"{entry.kind}.{name or entry.name}"


@contextlib.contextmanager
def claims(provenance: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, a missing id is explained by what the file says of its package."""
    token = _claims.set(provenance)
    try:
        yield
    finally:
        _claims.reset(token)


def list_blocks(pattern: str = "*", kind: str | None = None) -> list[str]:
    """Lists the ids of blocks. Imports nothing.

    Args:
        pattern: A shell pattern for the id, such as `"*linear*"`.
        kind: Only this kind.

    Examples:
        >>> import kerastf
        >>> kerastf.list_blocks("*soidal", kind="position")
        ['sinusoidal']
    """
    found = [e.id for e in entries(kind) if e.kind != "model"]
    return [id for id in dict.fromkeys(found) if fnmatch.fnmatchcase(id, pattern)]


def list_models(pattern: str = "*") -> list[str]:
    """Lists the ids of models: each preset, and each family that has none. Imports nothing.

    Args:
        pattern: A shell pattern for the id, such as `"gpt*"`.

    Examples:
        >>> import kerastf
        >>> kerastf.list_models("gpt.m*")
        ['gpt.micro', 'gpt.mini']
    """
    found: list[str] = []
    for entry in entries("model"):
        found += [f"{entry.id}.{preset}" for preset in presets(entry)] or [entry.id]
    return [id for id in dict.fromkeys(sorted(found)) if fnmatch.fnmatchcase(id, pattern)]


def presets(entry: Entry) -> dict[str, dict[str, Any]]:
    """The named configurations of a model family, from its package's manifest."""
    found = entry.manifest.get("presets", {})
    return found if isinstance(found, dict) else {}


def nearest(name: str, choices: Iterable[str], foreign: Mapping[str, str] = {}) -> list[str]:
    """The choices that `name` may have meant, best first; at most three."""
    choices = list(choices)
    plain = normalise(name)
    known_as = foreign.get(plain) or foreign.get(plain.replace("_", ""))
    if known_as is not None:
        return [known_as]
    close = difflib.get_close_matches(plain, choices, n=3, cutoff=0.6)
    tails = [c for c in choices if plain and (plain in c or c.rpartition("/")[2] in plain.split("_"))]
    return list(dict.fromkeys(close + tails))[:3]


def did_you_mean(names: Iterable[str]) -> str:
    quoted = [f"`{n}`" for n in names]
    return f" Did you mean {' or '.join(quoted)}?" if quoted else ""


def _target(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
