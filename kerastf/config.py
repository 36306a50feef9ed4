"""Slots as data, presets, and the validation of a whole model configuration before any layer is built.

A slot value is `"rms"`, `{"name": "multi_head", "num_kv_heads": 2}`, a list cycled over depth, or a map from layer
number to value with a `"default"`. The signature of a class is its schema: parameter names are the options,
annotations the types. What the builder knows (`dim`, `num_heads`, ...) flows into parameters of the same name.
"""

import inspect
import json
import numbers
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerastf import registry
from kerastf.errors import ConfigError, FileFormatError, PluginError, UnknownNameError
from kerastf.plugins import KINDS
from kerastf.registry import did_you_mean, nearest

# What other libraries call an option that stands here under another name.
FOREIGN_OPTIONS = {
    "n_embd": "dim", "hidden_size": "dim", "d_model": "dim", "embed_dim": "dim", "hidden_dim": "dim",
    "embedding_dim": "dim", "width": "dim", "n_layer": "num_layers", "n_layers": "num_layers",
    "num_hidden_layers": "num_layers", "depth": "num_layers", "layers": "num_layers", "n_head": "num_heads",
    "n_heads": "num_heads", "num_attention_heads": "num_heads", "heads": "num_heads", "nhead": "num_heads",
    "block_size": "max_length", "n_positions": "max_length", "n_ctx": "max_length", "context_length": "max_length",
    "max_position_embeddings": "max_length", "max_sequence_length": "max_length", "seq_len": "max_length",
    "sequence_length": "max_length", "max_len": "max_length", "n_inner": "mlp_dim", "intermediate_size": "mlp_dim",
    "intermediate_dim": "mlp_dim", "d_ff": "mlp_dim", "dim_feedforward": "mlp_dim", "ffn_dim": "mlp_dim",
    "layer_norm_eps": "epsilon", "layer_norm_epsilon": "epsilon", "eps": "epsilon", "rms_norm_eps": "epsilon",
    "dropout_rate": "dropout", "rate": "dropout", "resid_pdrop": "dropout", "embd_pdrop": "dropout",
    "attn_pdrop": "dropout", "hidden_dropout_prob": "dropout", "hidden_act": "activation",
    "activation_function": "activation", "act": "activation", "num_labels": "num_classes", "n_classes": "num_classes",
    "classes": "num_classes", "num_key_value_heads": "num_kv_heads", "kv_heads": "num_kv_heads",
    "n_kv_heads": "num_kv_heads", "vocabulary_size": "vocab_size", "n_vocab": "vocab_size", "num_tokens": "vocab_size",
    "normalization": "norm", "norm_layer": "norm", "attn": "attention", "ffn": "feedforward", "mlp": "feedforward",
    "feed_forward": "feedforward", "pos": "position", "position_embedding": "position", "pos_embed": "position",
    "positional_encoding": "position", "norm_first": "norm_order", "pre_norm": "norm_order", "rope_theta": "base",
    "initializer_range": "initializer_std", "window_size": "window", "sliding_window": "window",
    "tie_word_embeddings": "tied", "tie_weights": "tied", "use_bias": "bias", "pad_token_id": "pad_id",
    "eos_token_id": "end_id", "top_k": "k", "top_p": "p", "max_new_tokens": "max_length",
    "num_units": "units", "n_units": "units", "rnn_units": "units", "hidden_units": "units",
}  # fmt: skip

LAYER_OPTIONS = ("name", "dtype", "trainable")


@dataclass
class Plan:
    """A validated configuration.

    Attributes:
        options: The model's options in canonical, JSON-plain form.
        blocks: For each slot, one `{"name": id, **options}` per layer (or just one), facts filled in.
    """

    options: dict[str, Any]
    blocks: dict[str, list[dict[str, Any]]]


@dataclass
class Problems:
    """Collects what is wrong, so that the user reads all of it at once."""

    subject: str
    errors: list[Exception] = field(default_factory=list)

    def add(self, error: Exception | str) -> None:
        self.errors.append(ConfigError(error) if isinstance(error, str) else error)

    def raise_if_any(self) -> None:
        if not self.errors:
            return
        if len(self.errors) == 1:
            raise self.errors[0]
        texts = [str(e) for e in self.errors]
        message = f"{len(texts)} problems in the configuration of `{self.subject}`:\n" + "\n".join(
            f"  {i}. {text}" for i, text in enumerate(texts, 1)
        )
        if any(isinstance(e, ImportError) for e in self.errors):
            raise PluginError(message)
        raise ConfigError(message, texts)


def create_model(id: str, *, config: "str | Path | Mapping[str, Any] | None" = None, **options: Any) -> Any:
    """Builds a model. Later sources win: family defaults, preset, `config`, keywords.

    Args:
        id: A family (`"gpt"`) or a preset (`"gpt.nano"`).
        config: A TOML or JSON file with options, or a dict of them.
        **options: The family's options and slots; `kerastf info gpt` lists them.

    Returns:
        A `keras.Model`.

    Raises:
        ConfigError: Something in the configuration is wrong; all problems stand in the message.
        UnknownNameError: There is no such model, preset or block.
        PluginError: A block belongs to a plugin that is missing, broken, disabled or incompatible.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32, position="rotary", norm="rms")
        >>> model.count_params()
        87696
    """
    entry = registry.find("model", id)
    merged = {**preset_of(entry, id), **read_config(config), **options}
    cls = registry.resolve("model", entry.id)
    plan(cls, merged, subject=id)
    return cls(**merged)


def preset_of(entry: Any, id: str) -> dict[str, Any]:
    """The options of the preset that an id names; none where it names none."""
    preset = registry.split_id(id)[2]
    if preset is None:
        return {}
    known = registry.presets(entry)
    if preset not in known:
        close = [f"{entry.id}.{p}" for p in nearest(preset, known)]
        raise UnknownNameError(
            f"`{entry.id}` has no preset `{preset}`.{did_you_mean(close)} Presets: {', '.join(known) or 'none'}."
        )
    return dict(known[preset])


def read_config(source: "str | Path | Mapping[str, Any] | None") -> dict[str, Any]:
    """Options from a TOML or JSON file, or from a mapping."""
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    try:
        text = path.read_text("utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise FileFormatError(
            f"The configuration cannot be read: {error.strerror}. Received: config={str(path)!r}"
        ) from None
    except (ValueError, tomllib.TOMLDecodeError) as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise FileFormatError(
            f"The configuration is not valid {kind}: {error}. Received: config={str(path)!r}"
        ) from None
    if not isinstance(found, dict):
        raise FileFormatError(f"The configuration must be a table of options. Received: config={str(path)!r}")
    return found


def create_block(kind: str, block: "str | Mapping[str, Any] | type", **facts: Any) -> Any:
    """Builds a block by name.

    Args:
        kind: `"attention"`, `"norm"`, ...
        block: Its id, `{"name": id, **options}`, or a registered class.
        **facts: Options. For options given in `block` too, those win.

    Returns:
        A `keras.layers.Layer` (or a sampler).

    Examples:
        >>> import keras, kerastf
        >>> attention = kerastf.create_block("attention", "multi_head", num_heads=4)
        >>> tuple(attention(keras.ops.ones((2, 5, 32)), causal=True).shape)
        (2, 5, 32)
    """
    registry.require_kind(kind)
    spec = block_spec(kind, block)
    cls = registry.resolve(kind, spec["name"])
    given = {**facts, **{k: v for k, v in spec.items() if k != "name"}}
    problems = Problems(spec["name"])
    check_options(cls, given, f"{kind} `{spec['name']}`", problems)
    problems.raise_if_any()
    return cls(**given)


def block_from(kind: str, block: "str | Mapping[str, Any] | type", facts: Mapping[str, Any], **layer: Any) -> Any:
    """Builds a block whose parameters take the `facts` of the same names, as far as `block` does not set them.

    Args:
        kind: `"attention"`, `"norm"`, ...
        block: Its id, or `{"name": id, **options}`.
        facts: What the builder knows; those that the block has no parameter for are left out.
        **layer: `name`, `dtype`: given to the layer as they are.
    """
    known = options_of(registry.resolve(kind, block_spec(kind, block)["name"]))
    return create_block(kind, block, **{k: v for k, v in facts.items() if k in known and v is not None}, **layer)


def options_of(cls: type) -> dict[str, inspect.Parameter]:
    """The options of a class: the parameters of its constructor, less `self` and `**kwargs`."""
    parameters = inspect.signature(cls.__init__).parameters.values()  # type: ignore[misc]
    return {p.name: p for p in list(parameters)[1:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def check_options(cls: type, given: Mapping[str, Any], subject: str, problems: Problems) -> None:
    """Notes unknown options, wrong types and missing values of one constructor call."""
    known = options_of(cls)
    hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    suggested: set[str] = set()
    for name, value in given.items():
        if name in known:
            expected = mismatch(value, hints.get(name, Any))
            if expected:
                problems.add(f"{subject}: `{name}` must be {expected}. Received: {name}={value!r}")
        elif name not in LAYER_OPTIONS:
            close = [n for n in nearest(name, known, FOREIGN_OPTIONS) if n in known]
            suggested.update(close)
            rest = did_you_mean(close) or f" Options: {', '.join(known) or 'none'}."
            problems.add(f"{subject} has no option `{name}`.{rest} Received: {name}={_short(value)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given and name not in suggested:
            problems.add(f"{subject} needs `{name}`. Received: nothing for `{name}`")


def mismatch(value: Any, hint: Any) -> str:
    """What an annotation expects, in words, where the value is something else; empty where it fits."""
    return "" if _fits(value, hint) else describe_type(hint)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or hint is inspect.Parameter.empty:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is typing.Literal:
        return any(value == a and type(value) is type(a) for a in arguments)
    if origin in (list, tuple):
        return isinstance(value, list | tuple) and all(_fits(v, arguments[0]) for v in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    wanted = origin or hint
    return isinstance(value, wanted) if isinstance(wanted, type) else True


def describe_type(hint: Any) -> str:
    """An annotation in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe_type(a) for a in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin in (list, tuple):
        return "a list of " + describe_type(arguments[0]).removeprefix("an ").removeprefix("a ") + "s"
    words = {int: "an integer", float: "a number", str: "a string", bool: "True or False", dict: "a dict"}
    if hint is None or hint is type(None):
        return "None"
    if hint is Any:
        return "anything"
    return words.get(hint, getattr(hint, "__name__", str(hint)))


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
                f"Received: {slot}={_short(value)}"
            )
        rest = {str(k): plain(v) for k, v in value.items() if k != "name"}
        return {"name": registry.entry_of(kind, name).id, **rest}
    entry = getattr(type(value), "registry_entry", None)
    if entry is not None:
        defaults = {n: p.default for n, p in options_of(type(value)).items()}
        options = {n: getattr(value, n, d) for n, d in defaults.items()}
        changed = {n: v for n, v in options.items() if v != defaults[n]}
        fix = {"name": entry.id, **changed} if changed else entry.id
        raise ConfigError(
            f"The slot `{slot}` takes a name, not a layer, because one layer object cannot serve every depth. "
            f"Write {slot}={fix!r}. Received: a {type(value).__name__} object"
        )
    raise ConfigError(f"The slot `{slot}` takes a name or a dict with a name. Received: {slot}={_short(value)}")


def plain(value: Any) -> Any:
    """The JSON form of an option: NumPy scalars become numbers, tuples lists."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


def slot_kind(slot: str) -> str:
    """The kind of a slot: its name, or the last word of it (`cross_attention` takes an attention)."""
    return slot if slot in KINDS else slot.rpartition("_")[2]


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
                f"The slot `{slot}` takes one block, not a map over layers. Received: {slot}={_short(value)}"
            )
        return _expand_map(slot, value, depth)
    if isinstance(value, list | tuple):
        if depth is None:
            raise ConfigError(f"The slot `{slot}` takes one block, not a list. Received: {slot}={_short(value)}")
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
                f"Received: {slot}={_short(value)}"
            )
        layers[number] = block_spec(slot, block)
        canonical[str(number % depth)] = _brief(layers[number] or {})
    missing = [str(i) for i, layer in enumerate(layers) if layer is None]
    if missing:
        raise ConfigError(
            f"The slot `{slot}` says nothing of layer {', '.join(missing)}; add a 'default'. "
            f"Received: {slot}={_short(value)}"
        )
    return canonical, [dict(layer) for layer in layers if layer is not None]


def _brief(spec: dict[str, Any]) -> Any:
    return spec["name"] if len(spec) == 1 else spec


def plan(cls: Any, options: Mapping[str, Any], subject: str = "") -> Plan:
    """Validates every option and every slot of a model family, and fills the blocks' parameters with shared facts.

    Args:
        cls: The family's class; its `slots`, `needs`, `complete` and `facts` say what it is made of.
        options: The options as given.
        subject: What to call it in messages.

    Returns:
        The canonical options and the filled blocks.

    Raises:
        ConfigError: With all problems at once.
    """
    subject = subject or cls.registry_entry.id
    problems = Problems(subject)
    given = {k: v for k, v in options.items() if k != "provenance"}
    slots: Mapping[str, bool] = cls.slots
    check_options(cls, {k: v for k, v in given.items() if k not in slots}, f"model `{subject}`", problems)
    defaults = {n: p.default for n, p in options_of(cls).items() if p.default is not p.empty}
    full: dict[str, Any] = {
        **defaults,
        **{k: plain(v) if k not in slots else v for k, v in given.items() if k in defaults or k in options_of(cls)},
    }
    if not problems.errors:  # the rest reads the options, so they must be sound first
        full = cls.complete(full)
        for text in cls.problems(full):
            problems.add(text)
    depth = full.get("num_layers")
    depth = depth if isinstance(depth, int) and depth > 0 else 1
    blocks: dict[str, list[dict[str, Any]]] = {}
    for slot, per_layer in slots.items():
        try:
            full[slot], blocks[slot] = expand_slot(slot, full[slot], depth if per_layer else None)
        except (ValueError, LookupError, ImportError) as error:
            problems.add(error)
    if not problems.errors:
        _fill(cls, full, blocks, problems)
    elif blocks:
        _check_given(blocks, problems)
    problems.raise_if_any()
    return Plan(full, blocks)


def _distinct(specs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(s, sort_keys=True, default=repr): s for s in specs}.values())


def _check_given(blocks: Mapping[str, list[dict[str, Any]]], problems: Problems) -> None:
    """With the model's own options unsound, still report unknown options of the blocks."""
    for slot, specs in blocks.items():
        kind = slot_kind(slot)
        for spec in _distinct(specs):
            try:
                cls = registry.resolve(kind, spec["name"])
            except (LookupError, ImportError) as error:
                problems.add(error)
                continue
            found = Problems("")
            given = {k: v for k, v in spec.items() if k != "name"}
            check_options(cls, given, f"{kind} `{spec['name']}`", found)
            problems.errors += [e for e in found.errors if "needs `" not in str(e)]


def _fill(cls: Any, options: dict[str, Any], blocks: dict[str, list[dict[str, Any]]], problems: Problems) -> None:
    facts = {k: v for k, v in cls.facts(options).items() if v is not None and k not in cls.slots}
    needs = {kind: set(flags) for kind, flags in cls.needs.items()}
    if "position" in blocks and "attention" in blocks:
        position = blocks["position"][0]
        handed = _supports("position", position, problems) & {"rotation", "bias"}
        # The attention applies such a position itself, with facts of its own, unless the family wants it added.
        if handed and "embeddings" not in needs.get("position", ()):
            facts["position"] = position
            needs["attention"] = needs.get("attention", set()) | handed
    if "head" in blocks and "embedding" in blocks and _is_tied(blocks["head"][0], facts):
        needs["embedding"] = needs.get("embedding", set()) | {"tied"}
    for slot, specs in blocks.items():
        kind = slot_kind(slot)
        # A position is handed to self-attention; between two sequences it has no meaning.
        known = facts if slot == kind else {k: v for k, v in facts.items() if k != "position"}
        unmet = []
        for spec in _distinct(specs):
            lacking = needs.get(slot, set()) - _supports(kind, spec, problems)
            if lacking:
                problems.add(_unmet(kind, spec, lacking, options))
                unmet.append(spec["name"])
            elif "characters" in _supports(kind, spec, problems) and "characters" not in cls.reads:
                problems.add(
                    f"{kind} `{spec['name']}` reads words as characters, and `{cls.registry_entry.id}` reads tokens. "
                    f"Received: {slot}={_short(options[slot])}"
                )
                unmet.append(spec["name"])
        for spec in specs:
            _fill_one(kind, spec, known)
        for spec in _distinct(s for s in specs if s["name"] not in unmet):
            _try(kind, spec, facts.get("dim"), problems)


def _is_tied(head: dict[str, Any], facts: Mapping[str, Any]) -> bool:
    """Whether a head reads the matrix of the embedding: as it says, else as the family says, else by default."""
    try:
        parameter = options_of(registry.resolve("head", head["name"])).get("tied")
    except (LookupError, ImportError):
        return False
    return parameter is not None and bool(head.get("tied", facts.get("tied", parameter.default)))


def _supports(kind: str, spec: dict[str, Any], problems: Problems) -> set[str]:
    try:
        return set(getattr(registry.resolve(kind, spec["name"]), "supports", ()))
    except (LookupError, ImportError) as error:
        if str(error) not in [str(e) for e in problems.errors]:
            problems.add(error)
        return {"causal", "rotation", "bias", "embeddings"}


def _unmet(kind: str, spec: dict[str, Any], lacking: set[str], options: Mapping[str, Any]) -> str:
    fitting = []
    for entry in registry.entries(kind):
        if lacking <= set(entry.manifest.get("supports", ())):
            fitting.append(f"`{entry.id}`")
    because = ""
    if lacking & {"rotation", "bias"}:
        position = options["position"]
        because = f" that position={position['name'] if isinstance(position, dict) else position!r} asks for"
    return (
        f"{kind} `{spec['name']}` does not support {', '.join(sorted(lacking))}{because}. "
        f"Those that do: {', '.join(fitting) or 'none'}."
    )


def _fill_one(kind: str, spec: dict[str, Any], facts: Mapping[str, Any]) -> None:
    try:
        known = options_of(registry.resolve(kind, spec["name"]))
    except (LookupError, ImportError):
        return
    for name in known:
        if name in facts and name not in spec:
            spec[name] = facts[name]


def _try(kind: str, spec: dict[str, Any], dim: Any, problems: Problems) -> None:
    """Constructs the block once, without weights: its own checks then speak before anything is built."""
    try:
        cls = registry.resolve(kind, spec["name"])
    except (LookupError, ImportError):
        return  # noted already
    given = {k: v for k, v in spec.items() if k != "name"}
    subject = f"{kind} `{spec['name']}`"
    found = Problems("")
    check_options(cls, given, subject, found)
    if not found.errors:
        try:
            block = cls(**given)
            reads_features = kind in ("attention", "norm", "feedforward") or "embeddings" in getattr(
                cls, "supports", ()
            )
            if reads_features and dim and _knows_its_shape(cls):
                block.compute_output_shape((None, None, dim))
        except (ValueError, LookupError) as error:
            found.add(f"{subject}: {error}")
        except ImportError as error:
            found.add(error)
    known = {str(e) for e in problems.errors}
    problems.errors += [e for e in found.errors if str(e) not in known]


def _knows_its_shape(cls: type) -> bool:
    return any("compute_output_shape" in vars(c) for c in cls.__mro__ if not c.__module__.startswith("keras."))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
