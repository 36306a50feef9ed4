"""From ids, presets, files and keywords to a model; a whole configuration is validated before any layer is built.

What the builder knows (`dim`, `num_heads`, ...) flows into the blocks' parameters of the same name.
"""

import contextvars
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerastf import building, evolution, garbage, registry
from kerastf.errors import FileFormatError, UnknownNameError
from kerastf.registry import did_you_mean, nearest
from kerastf.schema import Problems, check_options, options_of, plain, short
from kerastf.slots import block_spec, expand_slot, slot_kind

# What an embedding that declares it reads instead of tokens.
READS = {"characters": "words as characters", "images": "images", "vectors": "ready-made vectors"}


@dataclass
class Plan:
    """A validated configuration.

    Attributes:
        options: The model's options in canonical, JSON-plain form.
        blocks: For each slot, one `{"name": id, **options}` per layer (or just one), facts filled in.
    """

    options: dict[str, Any]
    blocks: dict[str, list[dict[str, Any]]]


# Of the model that is about to be built: its class, its options as given, and its plan.
_planned: contextvars.ContextVar[list[tuple[Any, Mapping[str, Any], Plan]]] = contextvars.ContextVar("planned")


def build_model(id: str, *, config: "str | Path | Mapping[str, Any] | None" = None, **options: Any) -> Any:
    """A model with weights as they begin; `kerastf.create_model` is this and weights from elsewhere.

    Args:
        id: A family (`"gpt"`) or a preset (`"gpt.nano"`).
        config: A TOML or JSON file with options, or a dict of them.
        **options: The family's options and slots.
    """
    entry = registry.find("model", id)
    merged = {**preset_of(entry, id), **evolution.renamed(entry, {**read_config(config), **options})}
    with garbage.later():
        cls = registry.resolve("model", entry.id)
        token = _planned.set([(cls, merged, plan(cls, merged, subject=id))])
        try:
            with building.quickly():
                return cls(**merged)
        finally:
            _planned.reset(token)


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
    facts = evolution.renamed(registry.find(kind, spec["name"]), facts)
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
    defaults = {n: p.default for n, p in options_of(cls).items() if p.default is not p.empty}
    for planned, merged, found in _planned.get([]):
        expected = {**defaults, **merged}
        if planned is cls and all(expected.get(k, ...) is x for k, x in options.items()):
            _planned.get().clear()  # the model takes its plan over
            return found
    subject = subject or cls.registry_entry.id
    problems = Problems(subject)
    given = {k: v for k, v in options.items() if k != "provenance"}
    slots: Mapping[str, bool] = cls.slots
    check_options(cls, {k: v for k, v in given.items() if k not in slots}, f"model `{subject}`", problems)
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
            supports = _supports(kind, spec, problems)
            foreign = [words for flag, words in READS.items() if flag in supports and flag not in cls.reads]
            if kind == "embedding" and foreign:
                problems.add(
                    f"{kind} `{spec['name']}` reads {foreign[0]}, and `{cls.registry_entry.id}` reads "
                    f"{' or '.join(cls.reads)}. Received: {slot}={short(options[slot])}"
                )
                unmet.append(spec["name"])
            elif kind == "head" and "two_directions" in supports and "two_directions" not in cls.gives:
                problems.add(
                    f"{kind} `{spec['name']}` reads a forward and a backward reader side by side, and "
                    f"`{cls.registry_entry.id}` has one. Received: {slot}={short(options[slot])}"
                )
                unmet.append(spec["name"])
            elif lacking := needs.get(slot, set()) - supports:
                problems.add(_unmet(kind, spec, lacking, options))
                unmet.append(spec["name"])
            elif kind == "attention" and "causal_only" in supports and "causal_only" not in cls.gives:
                problems.add(
                    f"{kind} `{spec['name']}` sees the past only, and positions of `{cls.registry_entry.id}` see both "
                    f"sides. Received: {slot}={short(options[slot])}"
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
