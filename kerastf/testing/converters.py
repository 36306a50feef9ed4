"""The contract of converters: what is written is read again, bit for bit, and what does not fit is refused."""

import json

import numpy as np

from kerastf import config, convert, registry
from kerastf.convert.tensors import Arrays
from kerastf.errors import ConfigError, FileFormatError
from kerastf.slots import block_spec
from kerastf.testing.report import Broken, check
from kerastf.testing.subjects import shake

CONVERTER = ("converter",)


def _options(subject, head):
    """Options of a small model that the converter should write, with a head."""
    example = dict(registry.find("model", subject.cls.family).manifest.get("example", {}))
    spec = subject.options.get("head")
    if spec is None or block_spec("head", spec)["name"] != head:
        own = registry.find("head", head).manifest.get("example", {})
        known = config.options_of(registry.resolve("model", subject.cls.family))
        spec = {"name": head, **{k: v for k, v in own.items() if k not in known or k == "num_classes"}}
        if head == "classifier":
            spec["pooling"] = "first" if subject.cls.family == "vit" else "pooler"
    return {**example, **subject.cls.ours, **subject.options, "head": spec}


def _models(subject):
    converter = subject.cls()
    for head in dict.fromkeys(converter.heads.values()):
        model = config.build_model(converter.family, **_options(subject, head))
        shake(model, 1)
        yield converter, head, model


def _written(converter, model):
    return {name: get() for name, _, get in convert.foreign_tensors(converter, model)}


def _read(converter, model, arrays):
    """A new model of the same options with what was written."""
    options = {**model.options, "name": None}
    again = config.build_model(converter.family, **options)
    shapes = {w.path: tuple(w.shape) for w in again.weights}
    convert.fill(again, convert.match(converter, again.options, shapes, Arrays(arrays)), Arrays(arrays))
    return again


@check("settings", CONVERTER, "a configuration that is written says the same options when it is read")
def settings(subject):
    for converter, head, model in _models(subject):
        foreign = converter.config(model)
        if json.loads(json.dumps(foreign)) != foreign:
            raise Broken("its configuration is not plain JSON")
        for name, value in converter.options(foreign).items():
            if model.options[name] != value and model.options[name] != {"name": value}:
                raise Broken(f"with the head `{head}`, {name}={model.options[name]!r} came back as {value!r}")


@check("round_trip", CONVERTER, "weights that are written are the same bits when they are read")
def round_trip(subject):
    for converter, head, model in _models(subject):
        arrays = _written(converter, model)
        again = {w.path: np.asarray(w.numpy()) for w in _read(converter, model, arrays).weights}
        used = {r.ours for r in converter.rules(model.options, head)}
        for weight in model.weights:
            if weight.path in used and not np.array_equal(again[weight.path], np.asarray(weight.numpy())):
                raise Broken(f"with the head `{head}`, {weight.path} came back changed")
            if weight.path not in used and not weight.path.startswith("pooler/"):
                raise Broken(f"with the head `{head}`, {weight.path} is not written")


@check("refusals", CONVERTER, "a tensor that is missing, unknown or of another shape is refused by its name")
def refusals(subject):
    converter, _, model = next(iter(_models(subject)))
    arrays = _written(converter, model)
    name = max(arrays, key=lambda n: arrays[n].size)
    cut = {**arrays, name: arrays[name][..., :-1]}
    for what, wrong in [
        ("missing", {n: a for n, a in arrays.items() if n != name}), ("shape", cut),
        ("unknown", {**arrays, "more.weight": arrays[name]}),
    ]:  # fmt: skip
        try:
            _read(converter, model, wrong)
        except FileFormatError as error:
            if (name if what != "unknown" else "more.weight") not in str(error):
                raise Broken(f"the error of a tensor ({what}) does not name it: {error}") from None
        else:
            raise Broken(f"a tensor ({what}) is not refused")
    model.options["norm_order"] = "neither"
    try:
        converter.config(model)
    except ConfigError:
        return
    raise Broken("a model with an option that theirs has not is written")
