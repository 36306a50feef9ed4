"""From a recipe to its data and its model: what the recipe says, and what it leaves open and the data tell."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import keras

from kerastf import config, data, registry
from kerastf.checkpoint import load_model
from kerastf.create import create_model
from kerastf.schema import options_of
from kerastf.training.folder import RunFolder


def build(recipe, found, base=None):
    """The model of a recipe, for data that were found; not compiled."""
    if base is not None:
        model = _with_head(base, recipe, found)
    else:
        model = create_model(recipe.model["name"], **model_options(recipe, found))
    if recipe.training["lora"] is not None:
        model.enable_lora(recipe.training["lora"])
    return model


def load_data(recipe, base=None):
    """The data of a recipe; a model that is the start of another brings its tokenizer."""
    table = {k: v for k, v in recipe.data.items() if v is not None}
    if base is not None and base.tokenizer is not None:
        table["tokenizer"] = base.tokenizer
    return data.load(table.pop("source"), **table)


def load_start(recipe):
    """The model that a recipe starts from, or None."""
    path = recipe.model.get("start")
    if path is None:
        return None
    path = Path(path)
    return load_model(RunFolder(path).model_path() if path.is_dir() else path, compile=False)


def _with_head(base, recipe, found):
    head = recipe.model.get("head")
    if head is None:
        return base
    head = dict(head) if isinstance(head, Mapping) else {"name": head}
    known = options_of(registry.resolve("head", head["name"]))
    return base.with_head(**{
        "head": head.pop("name"), **{k: v for k, v in found.options.items() if k in known and k != "vocab_size"}, **head
    })  # fmt: skip


def model_options(recipe, found):
    """The options of the model: the recipe's, and what it leaves open and the data say."""
    name = recipe.model["name"]
    entry = registry.find("model", name)
    cls = registry.resolve("model", entry.id)
    given = {k: v for k, v in recipe.model.items() if k != "name"}
    said = {**config.preset_of(entry, name), **given}
    known = options_of(cls)
    options = {k: v for k, v in found.options.items() if k in known and said.get(k) is None}
    if "max_length" in known and said.get("max_length") is None and recipe.data.get("length"):
        options["max_length"] = recipe.data["length"]
    rest = {k: v for k, v in found.options.items() if k not in known}
    head = said.get("head", known["head"].default if "head" in known else None)
    if rest and head is not None:
        head = dict(head) if isinstance(head, Mapping) else {"name": head}
        takes = options_of(registry.resolve("head", head["name"]))
        fitting = {k: v for k, v in rest.items() if k in takes and k not in head}
        if fitting:
            options["head"] = {**head, **fitting}
            given.pop("head", None)
    return {**options, **given}


@contextlib.contextmanager
def precision(policy):
    """Within the block, new models have this precision."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
