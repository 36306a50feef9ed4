"""Recipes: a training as data. A TOML file, or a model's name and some settings, become one checked description.

Seven tables: `[model]` (its name and options), `[data]`, `[optimizer]`, `[schedule]`, `[training]`, `[[callbacks]]`
and `[expect]`. All problems of a recipe come in one error, before anything is read or built.
"""

import contextlib
import dataclasses
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kerastf import checkpoint, config, registry
from kerastf.data.loading import check as check_data
from kerastf.data.loading import task_options
from kerastf.data.tasks import TASKS
from kerastf.errors import ConfigError, FileFormatError
from kerastf.registry import did_you_mean, nearest
from kerastf.schema import Problems, check_options, options_of, plain, short
from kerastf.slots import slot_kind
from kerastf.training.callbacks import check_callbacks, only_numbers
from kerastf.training.toml import write_toml

SECTIONS = ("model", "data", "optimizer", "schedule", "training", "callbacks", "expect")
TASK_OF_HEAD = {
    "classifier": "classification", "tagger": "tagging", "span": "span", "pretraining": "masked_pairs",
}  # fmt: skip
TASK_OF_FAMILY = {
    "gpt": "language", "rnn": "language", "conv_lm": "language", "bert": "masked", "vit": "images",
    "seq2seq": "translation", "conv_s2s": "translation", "transformer": "translation", "elmo": "bidirectional",
    "word2vec": "word_vectors",
}  # fmt: skip
# Tasks whose rows are all as long as `length`, whatever the texts are.
FULL_ROWS = ("language", "masked")
# Options of every optimizer that have no default, and are numbers.
NUMBERS = (
    "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "ema_overwrite_frequency", "loss_scale_factor",
    "gradient_accumulation_steps",
)  # fmt: skip
LARGER_IS_BETTER = ("accuracy", "bleu", "f1", "chrf")


@dataclass(kw_only=True)
class Data:
    """What is learnt from; the options of the task stand beside these."""

    source: str
    task: str | None = None
    tokenizer: str | dict | None = None
    batch_size: int = 32
    seed: int = 0


@dataclass(kw_only=True)
class Optimizer:
    """A Keras optimizer; its further options stand beside these."""

    name: str = "adamw"
    rate: float = 1e-3
    accumulate: int = 1
    average: float | None = None


@dataclass(kw_only=True)
class Schedule:
    """How the learning rate moves: `warmup` steps up to the rate, then as the name says, down to `end`."""

    name: Literal["constant", "cosine", "inverse_square_root"] = "constant"
    warmup: int = 0
    end: float = 0.0


@dataclass(kw_only=True)
class Training:
    """How long, how exact, how often to look and to save."""

    steps: int = 1000
    seed: int = 0
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16", "bfloat16"] = "float32"
    evaluate_every: int | None = None
    save_every: int | None = None
    keep: int = 2
    patience: int | None = None
    monitor: str = "val_loss"
    lora: int | None = None
    devices: str = "auto"
    deterministic: bool = True
    jit_compile: bool | Literal["auto"] = "auto"


@dataclass(kw_only=True)
class Expect:
    """What a finished run should reach."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None


TABLES: dict[str, type] = {
    "data": Data, "optimizer": Optimizer, "schedule": Schedule, "training": Training, "expect": Expect,
}  # fmt: skip
# At least these, where a number is given.
LEAST = {
    "batch_size": 1, "accumulate": 1, "warmup": 0, "steps": 1, "evaluate_every": 1, "save_every": 1, "keep": 1,
    "patience": 1, "lora": 1, "seed": 0,
}  # fmt: skip


@dataclass
class Recipe:
    """A checked training, as plain data.

    Attributes:
        tables: By section, every setting, defaults filled in.
        name: What the run is called.
    """

    tables: dict[str, Any]
    name: str

    def __getattr__(self, section: str) -> Any:
        try:
            return self.__dict__["tables"][section]
        except KeyError:
            raise AttributeError(section) from None

    @property
    def family(self) -> str:
        return registry.find("model", self.model["name"]).id

    def to_toml(self) -> str:
        """The recipe as a file that `read` takes."""
        return write_toml(self.tables)


def read(source: "str | Path | Mapping[str, Any]", settings: Iterable[str] = ()) -> Recipe:
    """A recipe from a TOML file, a model's name or a mapping, with settings that win over it.

    Args:
        source: A `.toml` file, a model such as `"gpt.nano"`, or a mapping of tables.
        settings: Texts such as `"training.steps=500"` or `"model.norm=rms"`; the value is TOML, or a plain word.

    Returns:
        The recipe, checked.

    Raises:
        FileFormatError: The file is missing or is no TOML.
        ConfigError: Something in it is wrong; all problems stand in the message.

    Examples:
        >>> from kerastf import training
        >>> recipe = training.read_recipe("gpt.nano", ["data.source=embedded:corpus", "training.steps=200"])
        >>> recipe.data["task"], recipe.training["steps"], recipe.optimizer["name"]
        ('language', 200, 'adamw')
    """
    return check(*gather(source, settings))


def gather(source, settings=()):
    """The tables of a recipe with settings in them, not checked yet, and its name."""
    tables, name = _open(source)
    for setting in settings:
        _set(tables, setting)
    return tables, name


def _open(source):
    if isinstance(source, Mapping):
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in source.items()}, "training"
    path = Path(source)
    if path.suffix != ".toml":
        return {"model": {"name": str(source)}}, str(source)
    try:
        return tomllib.loads(path.read_text("utf-8")), path.stem
    except OSError as error:
        raise FileFormatError(f"The recipe cannot be read: {error.strerror}. Received: {str(path)!r}") from None
    except ValueError as error:
        raise FileFormatError(f"The recipe is not valid TOML: {error}. Received: {str(path)!r}") from None


def _set(tables, setting):
    key, equals, value = setting.partition("=")
    section, _, name = key.strip().partition(".")
    if not equals or not name:
        raise ConfigError(f"A setting looks like training.steps=500. Received: {setting!r}")
    try:
        value = tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        value = value.strip()  # a plain word
    table = tables.setdefault(section, {})
    if isinstance(table, list):
        raise ConfigError(f"`{section}` is a list of tables: write it in a recipe file. Received: {setting!r}")
    if not isinstance(table, dict):
        raise ConfigError(f"`{section}` must be a table. Received: {section}={short(table)}")
    *path, last = name.split(".")
    for part in path:
        inner = table.get(part, {})
        if not isinstance(inner, str | Mapping):
            raise ConfigError(f"`{part}` is {short(inner)}, which has no options. Received: {setting!r}")
        # model.attention.window=8 where the recipe has attention = "local"
        table[part] = table = {"name": inner} if isinstance(inner, str) else dict(inner)
    table[last] = value


def check(tables: Mapping[str, Any], name: str = "training") -> Recipe:
    """A recipe from tables, with defaults filled in and all problems told at once."""
    problems = Problems(name)
    for section in tables:
        if section not in SECTIONS:
            close = did_you_mean(nearest(section, SECTIONS)) or f" Tables: {', '.join(SECTIONS)}."
            problems.add(f"A recipe has no table `{section}`.{close} Received: {section}={short(tables[section])}")
    model = tables.get("model", {})
    if not isinstance(model, Mapping):
        problems.add(f"`model` must be a table. Received: model={short(model)}")
    found: dict[str, Any] = {"model": dict(model) if isinstance(model, Mapping) else {}}
    for section, cls in TABLES.items():
        given = tables.get(section)
        if given is not None and not isinstance(given, Mapping):
            problems.add(f"`{section}` must be a table. Received: {section}={short(given)}")
            continue
        if given is not None or section != "expect":
            found[section] = _table(section, cls, dict(given or {}), problems)
    found["callbacks"] = check_callbacks(tables.get("callbacks", []), problems)
    if isinstance(model, Mapping):
        _check_model(found, problems)
    if not problems.errors:
        _check_together(found, problems)
    problems.raise_if_any()
    return Recipe({s: found[s] for s in SECTIONS if s in found}, name)


def _table(section, cls, given, problems):
    known = options_of(cls)
    own = {k: v for k, v in given.items() if k in known}
    rest = {k: v for k, v in given.items() if k not in known}
    if section not in ("data", "optimizer"):  # those two hand the rest on, to be checked there
        own, rest = given, {}
    before = len(problems.errors)
    check_options(cls, own, f"[{section}]", problems)
    for key, value in own.items():
        least = LEAST.get(key)
        if least is not None and isinstance(value, int) and value < least:
            problems.add(f"[{section}]: `{key}` must be at least {least}. Received: {key}={value}")
    if len(problems.errors) > before:
        return {**own, **rest}
    return plain({**dataclasses.asdict(cls(**own)), **rest})


def _check_model(found, problems):
    model = found["model"]
    start, name = model.get("start"), model.get("name")
    if start is not None:
        extra = sorted(set(model) - {"start", "head", "name"})
        if extra:
            problems.add(
                "A model that starts from a file has its options from there; only its head may be another. "
                f"Received: {', '.join(f'{k}={short(model[k])}' for k in extra)}"
            )
        elif found.get("data", {"task": ""}).get("task") is None:
            _choose_task_of_start(found, problems)
        return
    if not isinstance(name, str):
        problems.add(f"[model]: `name` must be a model such as 'gpt.nano'. Received: name={name!r}")
        return
    try:
        entry = registry.find("model", name)
        cls = registry.resolve("model", entry.id)
        given = {**config.preset_of(entry, name), **{k: v for k, v in model.items() if k != "name"}}
        planned = config.plan(cls, {**given, **stand_ins(cls, given)}, subject=name)
    except ConfigError as error:
        problems.errors += [ConfigError(p) for p in error.problems]
    except (LookupError, ImportError) as error:
        problems.add(error)
    else:
        _choose_task(found, entry.id, given, problems)
        _check_length(found.get("data", {}), planned, given, problems)


def _choose_task_of_start(found, problems):
    """The task of the run that a model starts from, or the one that the saved model is for."""
    from kerastf.training.folder import RunFolder

    path, head = found["model"]["start"], found["model"].get("head")
    try:
        folder = RunFolder(path)
        if folder.path.is_dir() and head is None:
            found["data"]["task"] = folder.recipe().data["task"]
            return
        saved = checkpoint.inspect(folder.model_path() if folder.path.is_dir() else folder.path)
        options = {**saved.options, **({} if head is None else {"head": head})}
        _choose_task(found, registry.find("model", saved.model).id, options, problems)
    except (ValueError, LookupError, ImportError) as error:
        problems.add(f"[model]: `start`: {error}")


def _check_length(data, planned, given, problems):
    """Refuses rows that are longer than the positions that a model learns."""
    task = data.get("task")
    if task not in TASKS or given.get("max_length") is None:
        return
    limits = [
        spec["max_length"] for slot, specs in planned.blocks.items() if slot_kind(slot) == "position"
        for spec in specs if spec.get("max_length") is not None
    ]  # fmt: skip
    length = data.get("length")
    if length is None and task in FULL_ROWS:
        length = task_options(task)["length"]
    longest = max((n for n in (length if isinstance(length, list) else [length]) if isinstance(n, int)), default=0)
    if limits and longest > min(limits):
        problems.add(
            f"[data]: `length` must be at most the {min(limits)} positions that the model has: set it, or "
            f"`max_length` of [model]. Received: length={length}"
        )


def stand_ins(cls: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """For options that the data will give, values to check the rest with."""
    known = options_of(cls)
    values = {
        "vocab_size": 10_000, "source_vocab_size": 10_000, "target_vocab_size": 10_000, "image_size": [32, 32],
        "channels": 3, "num_classes": 10, "counts": [1] * 10_000,
    }  # fmt: skip
    open_ones = {n: p for n, p in known.items() if n not in given and p.default in (p.empty, None)}
    found = {n: values[n] for n in open_ones if n in values}
    if "tokenizer" in given or "source_tokenizer" in given:
        found = {n: v for n, v in found.items() if "vocab" not in n}
    head = given.get("head")
    if head is not None and "head" in known:
        head = dict(head) if isinstance(head, Mapping) else {"name": head}
        with contextlib.suppress(LookupError, ImportError, TypeError):  # told elsewhere
            if "num_classes" in options_of(registry.resolve("head", head.get("name"))):
                found["head"] = {"num_classes": values["num_classes"], **head}
    return found


def _choose_task(found, family, options, problems):
    if found.get("data", {"task": ""}).get("task") is not None:
        return
    known = options_of(registry.resolve("model", family))
    head = options.get("head", known["head"].default if "head" in known else None)
    head = head.get("name") if isinstance(head, Mapping) else head
    task = TASK_OF_HEAD.get(head) if family != "vit" else None
    found["data"]["task"] = task or TASK_OF_FAMILY.get(family)
    if found["data"]["task"] is None:
        problems.add(f"[data]: `task` is needed for the model `{family}`. Received: nothing for `task`")


def _check_together(found, problems):
    training, schedule, optimizer = found["training"], found["schedule"], found["optimizer"]
    training["evaluate_every"] = training["evaluate_every"] or max(1, training["steps"] // 10)
    training["save_every"] = training["save_every"] or training["evaluate_every"]
    if schedule["name"] == "constant" and (schedule["warmup"] or schedule["end"]):
        problems.add(
            "[schedule]: a constant rate has no warmup and no end. "
            f"Received: warmup={schedule['warmup']}, end={schedule['end']}"
        )
    if schedule["end"] < 0 or 0 < optimizer["rate"] < schedule["end"]:
        problems.add(
            "[schedule]: `end` is a rate between 0 and the optimizer's. "
            f"Received: end={schedule['end']}, rate={optimizer['rate']}"
        )
    if schedule["name"] == "inverse_square_root" and schedule["warmup"] < 1:
        problems.add("[schedule]: inverse_square_root needs `warmup` of at least 1. Received: warmup=0")
    if schedule["warmup"] >= training["steps"] and schedule["warmup"]:
        problems.add(
            f"[schedule]: `warmup` must be less than the {training['steps']} steps. "
            f"Received: warmup={schedule['warmup']}"
        )
    if not 0 < optimizer["rate"] < math.inf:
        problems.add(f"[optimizer]: `rate` must be a positive number. Received: rate={optimizer['rate']}")
    if optimizer["average"] is not None and not 0 < optimizer["average"] < 1:
        problems.add(f"[optimizer]: `average` must be in (0, 1). Received: average={optimizer['average']}")
    if "expect" in found and (found["expect"]["at_most"] is None) == (found["expect"]["at_least"] is None):
        problems.add("[expect]: give one of `at_most` and `at_least`.")
    try:
        check_data(**{k: v for k, v in found["data"].items() if v is not None})
    except (ValueError, LookupError, ImportError) as error:
        problems.add(f"[data]: {error}")
    if problems.errors:
        return
    import keras

    try:
        further = {k: v for k, v in optimizer.items() if k not in options_of(Optimizer)}
        cls = type(keras.optimizers.get(optimizer["name"]))
        if only_numbers(cls, further, "[optimizer]", problems, also=NUMBERS):
            make_optimizer(found)
    except (TypeError, ValueError) as error:
        problems.add(f"[optimizer]: {error}")
    if schedule["name"] != "constant" and any(c["name"] == "ReduceLROnPlateau" for c in found["callbacks"]):
        problems.add(
            f"callback `ReduceLROnPlateau` needs a constant rate. Received: [schedule] name={schedule['name']!r}"
        )


def make_optimizer(tables: Mapping[str, Any]):
    """The Keras optimizer that a recipe's tables say, with its schedule."""
    import keras

    from kerastf.training.optimizers import InverseSquareRoot

    options, schedule = dict(tables["optimizer"]), tables["schedule"]
    name, rate = options.pop("name"), options.pop("rate")
    accumulate, average = options.pop("accumulate"), options.pop("average")
    steps, warmup, end = tables["training"]["steps"], schedule["warmup"], schedule["end"]
    moving: Any = rate
    if schedule["name"] == "cosine":
        moving = keras.optimizers.schedules.CosineDecay(
            0.0 if warmup else rate, steps - warmup, alpha=end / rate, warmup_target=rate if warmup else None,
            warmup_steps=warmup,
        )  # fmt: skip
    elif schedule["name"] == "inverse_square_root":
        moving = InverseSquareRoot(1, warmup_steps=warmup, scale=rate * warmup**0.5)
    if accumulate > 1:
        options["gradient_accumulation_steps"] = accumulate
    if average is not None:
        options |= {"use_ema": True, "ema_momentum": average}
    optimizer = keras.optimizers.get(name)
    return type(optimizer)(learning_rate=moving, name=name, **options)  # Keras would number it in each process


def better(metric: str, new: float, old: "float | None") -> bool:
    """Whether a value of a metric is better than the best so far."""
    if old is None:
        return True
    return new > old if larger_is_better(metric) else new < old


def larger_is_better(metric: str) -> bool:
    """Whether a metric grows as a model gets better; a loss falls."""
    return any(word in metric for word in LARGER_IS_BETTER)
