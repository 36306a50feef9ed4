"""Weights from elsewhere: folders of Hugging Face and backbones of KerasHub become models of ours, and go back."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from kerastf import compat, config, copying, registry
from kerastf.checkpoint import appearing
from kerastf.convert import hub, tensors, vocabularies, word2vec
from kerastf.convert.base import Converter, architectures
from kerastf.convert.export import export
from kerastf.convert.rules import Rule
from kerastf.errors import ConfigError, FileFormatError, PluginError
from kerastf.slots import block_spec

__all__ = ["Converter", "converter_for", "converter_of", "export", "fill", "foreign_tensors", "from_keras_hub", "load",
           "match", "save", "to_keras_hub"]  # fmt: skip

# Options that a user may set freely: they change no weight of the body.
FREE = {"head", "dropout", "drop_path", "tokenizer", "source_tokenizer", "dtype", "name", "initializer_std", "pad_id",
        "source_pad_id", "start_id", "end_id", "label_smoothing", "preprocessing"}  # fmt: skip


def load(source: "str | Path", id: str | None = None, **options: Any) -> Any:
    """A model with weights from elsewhere.

    The configuration of a folder says the sizes; its tokenizer comes along where its files are there.

    Args:
        source: A folder of Hugging Face, or `"hf:NAME"`, `"hf:NAME@REVISION"` to fetch it; or a file of word2vec.
        id: The model or preset that it should be; None for what it is.
        **options: Options of the model, such as `head` or `dropout`. Another head than the folder's begins anew.

    Returns:
        The model.

    Raises:
        FileFormatError: A file is missing, damaged or malicious; the message names the tensor.
        ConfigError: The model does not fit; the message lists all differences.
    """
    if Path(source).is_file():
        if id not in (None, "word2vec"):
            raise ConfigError(f"A file of vectors is a `word2vec`. Received: {id!r} with weights={str(source)!r}")
        return word2vec.load(source, **options)
    folder = hub.fetch(source)
    foreign = tensors.read_json(folder / "config.json")
    converter = converter_for("hf", foreign.get("model_type"))
    found = converter.options(foreign)
    _require_same(converter, id, found, options, source)
    have = tensors.open_folder(folder)
    _require_possible(found, have)
    head = options.pop("head", None)
    own = converter.head(foreign, have)
    if head is None:
        head = own
    if head is None:
        named = ", ".join(architectures(foreign) or ["nothing"])
        raise ConfigError(
            f"The folder holds {named}, whose head is not known here. Say which you want, such as head='features'; "
            f"with weights: {', '.join(dict.fromkeys(converter.heads.values()))}. Received: {str(source)!r}"
        )
    chosen = {**found, **_files(folder, converter, found, options), **options, "head": head}
    fresh = own is None or block_spec("head", head)["name"] != block_spec("head", own)["name"]
    if not fresh and "tied" in block_spec("head", own):  # whoever names the head only does not give up its matrix
        chosen["head"] = {"tied": block_spec("head", own)["tied"], **block_spec("head", head)}
    return _build(converter, chosen, have, fresh)


def _files(folder, converter, found, options):
    """Options from the other files of a folder; a tokenizer of one's own does not need those of the folder."""
    try:
        return vocabularies.read(folder, converter, found)
    except FileFormatError:
        if "tokenizer" not in options:
            raise
        return {}


class _Misfit(Exception):
    """A weight is not there as it should be."""


def _build(converter, options, have, fresh):
    """The model, each of its weights made from the files when its turn comes."""
    head = block_spec("head", options["head"])["name"]
    rules = {
        r.ours: r
        for r in converter.rules(options, head, converter.prefix_in(have))
        if not (fresh and r.ours.startswith("head/")) and not (r.optional and not any(n in have for n in r.theirs))
    }

    def value(path, shape):
        rule = rules.get(path)
        if rule is None:
            return None
        wanted = rule.shapes(shape, options)
        if any(n not in have or have.shape(n) != w for n, w in zip(rule.theirs, wanted, strict=True)):
            raise _Misfit
        return made(rule)

    def shapes(model):
        return {w.path: tuple(w.shape) for w in model.weights}

    try:
        with (
            _read_ahead(rules.values(), have, options) as made,
            compat.initialised_by(value),
            copying.copies(rules.__contains__),
        ):
            model = config.build_model(converter.family, **options)
    except _Misfit:
        with compat.without_allocation():  # to tell everything that does not fit
            match(converter, options, shapes(config.build_model(converter.family, **options)), have, fresh)
        raise FileFormatError("The tensors do not fit the configuration.") from None
    match(converter, options, shapes(model), have, fresh)
    return model


@contextlib.contextmanager
def _read_ahead(rules: Iterable[Rule], have: Any, options: dict[str, Any]) -> Iterator[Callable[[Rule], np.ndarray]]:
    """Within the block, two threads make the weights in the order of the rules, while the model is built.

    Each is handed out once, so what is in memory is never more than the model and the tensors that are being read. Two
    threads, because fresh memory is what reading costs: the system fills it, page by page, for each by itself.
    """
    whole = [r for r in rules if all(n in have for n in r.theirs)]
    readers = ThreadPoolExecutor(2)
    try:
        coming = {r.ours: readers.submit(lambda r: have.own(r.theirs, r.read(have, options)), r) for r in whole}
        yield lambda rule: coming.pop(rule.ours).result()
    finally:
        readers.shutdown(cancel_futures=True)


def converter_for(origin: str, kind: Any) -> Converter:
    """The converter for a foreign kind of model, a built-in's or a plugin's."""
    wanted = f"{origin}/{kind}"
    entries = [(e, _reads(e)) for e in registry.entries("converter")]
    found = [e for e, kinds in entries if wanted in kinds]
    if not found:
        known = sorted({k for _, kinds in entries for k in kinds})
        raise ConfigError(
            f"No converter reads models of the type {kind!r}. Those that there are: "
            f"{', '.join(k.partition('/')[2] for k in known if k.startswith(origin + '/'))}."
        )
    if len(found) > 1:
        raise PluginError(f"Several converters read {wanted}: {', '.join(e.id for e in found)}. Disable all but one.")
    return registry.resolve("converter", found[0].id)()


def _reads(entry):
    """What a converter reads, without importing a package for it."""
    return entry.manifest.get("supports", ()) if entry.plugin else registry.resolve("converter", entry.id).supports


def _require_same(converter, id, found, options, source):
    """Refuses what the user asked for and the folder is not."""
    problems = []
    asked = dict(options)
    if id is not None:
        entry = registry.find("model", id)
        if entry.id != converter.family:
            raise ConfigError(
                f"The folder holds a model for `{converter.family}`. Received: {id!r} with weights={str(source)!r}"
            )
        asked = {**config.preset_of(entry, id), **options}
    for name, value in asked.items():
        if name not in FREE and name in found and value != found[name]:
            problems.append(f"{name} is {found[name]!r} there, {value!r} was asked for")
        elif name not in FREE and name not in found and name in options:
            default = config.options_of(registry.resolve("model", converter.family)).get(name)
            if default is not None and value != default.default:
                problems.append(f"{name} is {default.default!r} there, {value!r} was asked for")
    if problems:
        raise ConfigError(f"The weights do not fit: {'; '.join(problems)}. Received: weights={str(source)!r}")


def _require_possible(found, have):
    """Refuses sizes that the files cannot hold, before anything is built with them."""
    numbers, names = sum(math.prod(have.shape(n)) for n in have), sum(1 for _ in have)
    problems = [
        f"{name} is {value:,}, and the files hold {limit:,} {what}"
        for name, value in found.items()
        for limit, what in [(names, "tensors") if name == "num_layers" else (numbers, "numbers")]
        if isinstance(value, int) and value > limit
    ]
    if problems:
        raise FileFormatError(f"config.json does not belong to these weights: {'; '.join(problems)}.")


def match(converter, options, shapes, have, fresh_head=False):
    """Which tensors make which weight; nothing is read yet.

    Args:
        converter: The converter.
        options: The model's options, `head` included.
        shapes: By path, the shapes of our weights.
        have: The tensors there.
        fresh_head: Whether the head's weights are not looked for; for `features`, any other head is left out.

    Returns:
        By path of ours: its rule.

    Raises:
        FileFormatError: All that is missing, surplus or of another shape.
    """
    head = block_spec("head", options["head"])["name"]
    prefix = converter.prefix_in(have)
    rules = {r.ours: r for r in converter.rules(options, head, prefix) if r.ours in shapes}
    problems, plan, used = [], {}, set()
    for path, shape in shapes.items():
        rule = rules.get(path)
        if rule is None or (fresh_head and path.startswith("head/")):
            if rule is None and not path.startswith(("head/", "pooler/")):
                problems.append(f"nothing there is our {path}")
            continue
        missing = [n for n in rule.theirs if n not in have]
        used.update(rule.theirs)
        if missing:
            if not (rule.optional and len(missing) == len(rule.theirs)):
                problems += [f"{n} is missing" for n in missing]
            continue
        for name, wanted in zip(rule.theirs, rule.shapes(shape, options), strict=True):
            if have.shape(name) != wanted:
                problems.append(f"{name} has shape {have.shape(name)}, not {wanted}")
        plan[path] = rule
    surplus = [n for n in have if n not in used and not converter.carries_nothing(n)]
    if fresh_head and head == "features":  # a head that is not known here stands outside of the body's prefix
        surplus = [n for n in surplus if n.startswith(prefix)]
    if surplus:
        known = {n for h in converter.head_tables for r in converter.rules(options, h, prefix) for n in r.theirs}
        problems += [f"{n} is not known" for n in surplus if n not in known]
    if problems:
        more = f" (and {len(problems) - 12} more)" if len(problems) > 12 else ""
        raise FileFormatError(f"The tensors do not fit `{converter.family}`: {'; '.join(problems[:12])}{more}.")
    return plan


def fill(model, plan, have):
    """Puts tensors into the weights of a model, as `match` planned it."""
    weights = {w.path: w for w in model.weights}
    for path, rule in plan.items():
        weights[path].assign(rule.read(have, model.options))


def from_keras_hub(backbone: Any, **options: Any) -> Any:
    """A model of ours with the weights of a backbone of KerasHub, which stays as it is.

    Args:
        backbone: A `GPT2Backbone`, `BertBackbone` or `ViTBackbone`, or what a plugin's converter reads.
        **options: Options of our model, such as `head` or `dropout`. Without a head it gives features.

    Raises:
        ConfigError: No converter reads it, or it does not fit.
    """
    converter = converter_for("keras_hub", type(backbone).__name__)
    found = {**converter.options(backbone.get_config()), **converter.ours}
    _require_same(converter, None, found, options, backbone.name)
    chosen = {"head": "features", **found, **options}
    have = tensors.Arrays({w.path: np.asarray(ops.convert_to_numpy(w.value)) for w in backbone.weights})
    model = config.build_model(converter.family, **chosen)
    shapes = {w.path: tuple(w.shape) for w in model.weights}
    fill(model, match(converter, model.options, shapes, have, fresh_head=True), have)
    return model


def to_keras_hub(model: Any) -> Any:
    """A backbone of KerasHub with the weights of a model of ours; its head is left behind.

    Args:
        model: A `gpt`, `bert` or `vit`, or what a plugin's converter writes.

    Raises:
        ConfigError: The model has what theirs has not; the message lists all of it.
    """
    import keras_hub

    converter = converter_of(model, "keras_hub")
    settings = {k: v for k, v in converter.config(model).items() if k not in ("architectures", "model_type")}
    settings["dtype"] = model.dtype_policy.name
    backbone = getattr(keras_hub.models, converter.model_types[0])(**settings)
    weights = {w.path: w for w in backbone.weights}
    for name, _, get in foreign_tensors(converter, model):
        weights[name].assign(get())
    return backbone


def save(model: Any, folder: "str | Path", *, type: str | None = None) -> None:
    """Writes a model as a folder that Hugging Face's transformers load: configuration, weights, tokenizer.

    Args:
        model: A model of ours.
        folder: The folder. Where it is not there, it appears whole or not at all; else its files are replaced.
        type: The type of model there, such as `"roberta"`; None for the first that fits.

    Raises:
        ConfigError: The model has what theirs has not; the message lists all of it.
    """
    converter = converter_of(model, "hf", type)
    foreign = converter.config(model)
    folder = Path(folder)
    with contextlib.nullcontext(folder) if folder.exists() else appearing(folder) as place:
        place.mkdir(exist_ok=True)
        _write(converter, model, foreign, place)


def _write(converter, model, foreign, folder):
    tensors.write(folder / tensors.SINGLE, foreign_tensors(converter, model))
    (folder / tensors.INDEX).unlink(missing_ok=True)
    tensors.write_json(folder / "config.json", foreign)
    vocabularies.write(folder, model)


def foreign_tensors(converter: Converter, model: Any) -> list[tuple[str, tuple[int, ...], Any]]:
    """The tensors there that a model of ours becomes: name, shape, and a function that gives the array."""
    weights = model.learnt_weights()
    planned = []
    for rule in converter.rules(model.options, model.head.registry_entry.id):
        if rule.ours in weights:
            variable = weights[rule.ours]
            for i, pair in enumerate(zip(rule.theirs, rule.shapes(variable.shape, model.options), strict=True)):
                planned.append((*pair, _part(rule, variable, model.options, i)))
    return planned


def _part(rule, variable, options, i):
    return lambda: rule.to_theirs(np.asarray(ops.convert_to_numpy(variable), "float32"), options)[i]


def converter_of(model: Any, origin: str = "hf", type: str | None = None) -> Converter:
    """The converter that writes a model of ours; of several, the first that can."""
    family = model.registry_entry.id
    entries = [e for e in registry.entries("converter") if type is None or f"{origin}/{type}" in _reads(e)]
    found = [registry.resolve("converter", e.id)() for e in entries]
    found = [c for c in found if c.family == family and c.origin == origin]
    errors = []
    for converter in found:
        try:
            converter.config(model)
        except ConfigError as error:
            errors.append(str(error))
        else:
            return converter
    raise ConfigError("\n".join(errors) if errors else f"No converter writes the model `{family}` as {origin}.")
