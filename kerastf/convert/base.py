"""What a converter is: data that say which of their tensors and settings is which of ours, both ways."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from kerastf import config as build
from kerastf.convert.rules import Rule, table
from kerastf.errors import ConfigError, FileFormatError
from kerastf.text.base import short

# How they name activations, and how we do. The first of several is what is written.
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "linear": "linear",
}  # fmt: skip


SIDES = ("image_size", "patch_size")  # one number, or height and width
MAY_BE_MISSING = ("mlp_dim", "pad_id", "source_pad_id", "start_id", "end_id")


@dataclass(frozen=True)
class Field:
    """One setting of their configuration that is an option of ours.

    Attributes:
        theirs: Its name there.
        ours: Its name here.
        default: What it is there where the file does not say.
        values: Theirs as ours, where they differ; the first that fits is written.
    """

    theirs: str
    ours: str
    default: Any = None
    values: Mapping[Any, Any] | None = None


# What the encoders there (BERT, ViT, ...) have in common.
ENCODER_FIELDS = (
    Field("hidden_size", "dim", 768),
    Field("num_hidden_layers", "num_layers", 12),
    Field("num_attention_heads", "num_heads", 12),
    Field("intermediate_size", "mlp_dim", 3072),
    Field("hidden_act", "activation", "gelu", ACTIVATIONS),
    Field("layer_norm_eps", "epsilon", 1e-12),
)


class Converter:
    """Reads and writes the models of one foreign family.

    A subclass is data. Where data do not reach, it overrides `head_of`, `tables`, `read_more` or `write_more`.

    Attributes:
        family: Id of our model.
        origin: `"hf"` for folders of Hugging Face, `"keras_hub"` for backbones of KerasHub.
        model_types: What their configurations call it.
        fields: Settings that are options of ours.
        also: Further settings to write, by the option that they have the value of.
        needs: Settings that must have these values, or be missing.
        ours: Options that a model of ours must have to be written.
        prefixes: What may stand before the names of the body's tensors; the first is written, and the last for a body
            without head.
        body: Table of rules for what is there once (see `rules.table`); `{body}` is the prefix.
        layer: Table of rules for each layer; `{i}` is its number.
        heads: By their class: the head of ours. The first class with a head is written.
        head_tables: By head of ours: its table of rules.
        pooler: Table of rules for what is read where it is there, and written with some heads only.
        pooler_heads: Those heads.
        ignored: Patterns of tensors that carry nothing.
    """

    family: ClassVar[str] = ""
    origin: ClassVar[str] = "hf"
    model_types: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[Field, ...]] = ()
    also: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Mapping[str, Any]] = {}
    ours: ClassVar[Mapping[str, Any]] = {}
    prefixes: ClassVar[tuple[str, ...]] = ("",)
    body: ClassVar[str] = ""
    layer: ClassVar[str] = ""
    heads: ClassVar[Mapping[str, str]] = {}
    head_tables: ClassVar[Mapping[str, str]] = {}
    pooler: ClassVar[str] = ""
    pooler_heads: ClassVar[tuple[str, ...]] = ()
    ignored: ClassVar[tuple[str, ...]] = ()

    # --- from theirs to ours

    def options(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Options of our model for their configuration.

        Raises:
            ConfigError: It asks for what our model does not have; all of it is listed.
            FileFormatError: A setting is of a kind that it cannot be.
        """
        found, problems = {}, []
        for field in self.fields:
            value = config.get(field.theirs, field.default)
            if type(field.default) is int and not (value is None and field.ours in MAY_BE_MISSING):
                value = whole(config, field.theirs, field.default, sides=field.ours in SIDES)
            if field.values is not None:
                if isinstance(value, list | dict):
                    raise _wrong(field.theirs, "one of their names", value)
                if value not in field.values:
                    known = ", ".join(map(str, field.values))
                    problems.append(f"{field.theirs} is {value!r}; `{self.family}` has {known}")
                    continue
                value = field.values[value]
            found[field.ours] = value
        for name, wanted in self.needs.items():
            if config.get(name, wanted) != wanted:
                problems.append(f"{name} is {config[name]!r}; `{self.family}` has {wanted!r} only")
        found |= self.read_more(config, problems)
        if problems:
            raise ConfigError(f"The model does not fit `{self.family}`: " + "; ".join(problems) + ".")
        return found

    def read_more(self, config: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
        """Further options that their configuration says, beyond `fields`. Differences go into `problems`."""
        return {}

    def head(self, config: Mapping[str, Any], tensors: Any) -> Any:
        """The head of ours for their configuration, with its options; None where there is none for it."""
        name = next((self.heads[n] for n in architectures(config) if n in self.heads), None)
        return None if name is None else self.head_of(name, config, tensors)

    def head_of(self, name: str, config: Mapping[str, Any], tensors: Any) -> Any:
        """A head with the options that their configuration and tensors say."""
        return name

    def rules(self, options: Mapping[str, Any], head: str, prefix: str | None = None) -> list[Rule]:
        """How each weight of a model with these options and this head is made.

        Args:
            options: The model's options.
            head: Id of its head.
            prefix: What stands before the names of the body's tensors in a file that is read; None to write one.
        """
        tables = [*self.tables(options), (self.head_tables.get(head, ""), {})]
        if prefix is not None or head in self.pooler_heads:
            tables.insert(0, (self.pooler, {}))  # a rule of the head for the same weight wins
        if prefix is None:
            prefix = self.prefixes[-1 if head == "features" else 0]
        return [r for text, values in tables for r in table(text, self.forms(options), body=prefix, **values)]

    def tables(self, options: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Tables of the body, each with what stands for names in braces."""
        layers = [(self.layer, {"i": i}) for i in range(options["num_layers"])]
        return [(self.body, {}), *layers]

    def forms(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Forms of the family's own, by the names that its tables use."""
        return {}

    def prefix_in(self, tensors: Any) -> str:
        """The prefix that a file's names have."""
        first = self.body.split()[1]
        return next((p for p in self.prefixes if first.format(body=p) in tensors), self.prefixes[0])

    def carries_nothing(self, name: str) -> bool:
        """Whether a tensor may be passed over."""
        bare = next((name.removeprefix(p) for p in self.prefixes if p and name.startswith(p)), name)
        return any(re.fullmatch(pattern, n) for pattern in self.ignored for n in (name, bare))

    # --- from ours to theirs

    def config(self, model: Any) -> dict[str, Any]:
        """Their configuration for a model of ours.

        Raises:
            ConfigError: The model has what theirs does not; all of it is listed.
        """
        options, problems = model.options, []
        defaults = {n: p.default for n, p in build.options_of(type(model)).items()}
        free = {f.ours for f in self.fields} | {"name", "dtype", "tokenizer", "head", "initializer_std"}
        for name, value in options.items():
            wanted = self.ours.get(name, defaults.get(name))
            if name in free | self.written(options):
                continue
            if value != wanted and _bare(value) != wanted:
                problems.append(f"{name} is {value!r}; it would have to be {wanted!r}")
        found: dict[str, Any] = {}
        for field in self.fields:
            value = options[field.ours]
            if field.values is not None:
                names = [theirs for theirs, ours in field.values.items() if ours == value]
                if not names:
                    known = " or ".join(dict.fromkeys(map(str, field.values.values())))
                    problems.append(f"{field.ours} is {value!r}; it would have to be {known}")
                    continue
                value = names[0]
            found[field.theirs] = value
        head = model.head.registry_entry.id
        classes = [theirs for theirs, ours in self.heads.items() if ours == head]
        if not classes:
            problems.append(f"head is {head!r}; it would have to be {' or '.join(dict.fromkeys(self.heads.values()))}")
        found |= {theirs: options[ours] for theirs, ours in self.also.items()} | dict(self.needs)
        if not problems:
            found |= self.write_more(model, problems)
        if problems:
            raise ConfigError(f"The model cannot be written as {self.model_types[0]}: " + "; ".join(problems) + ".")
        return {"architectures": classes[:1], "model_type": self.model_types[0], "dtype": "float32", **found}

    def written(self, options: Mapping[str, Any]) -> set[str]:
        """Names of options that `write_more` takes care of."""
        return set()

    def write_more(self, model: Any, problems: list[str]) -> dict[str, Any]:
        """Further settings of theirs, beyond `fields`. Differences go into `problems`."""
        return {}


def _bare(value: Any) -> Any:
    """A slot that only names its block as that name."""
    return value["name"] if isinstance(value, Mapping) and set(value) == {"name"} else value


def architectures(config: Mapping[str, Any]) -> list[str]:
    """The names of the classes that wrote a configuration."""
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(n, str) for n in named):
        raise _wrong("architectures", "a list of names", named)
    return named


def whole(config: Mapping[str, Any], name: str, default: int, *, sides: bool = False) -> Any:
    """A setting that is a whole number, or where it is one of sides may be several."""
    value = config.get(name, default)
    if not all(type(n) is int for n in (value if sides and isinstance(value, list) else [value])):
        raise _wrong(name, "a whole number", value)
    return value


def _wrong(name: str, kind: str, value: Any) -> FileFormatError:
    return FileFormatError(f"The configuration's `{name}` must be {kind}. Received: {name}={short(value)}")


def labels_of(config: Mapping[str, Any]) -> list[str] | None:
    """The names of classes, where a configuration has names that say something."""
    found = config.get("id2label")
    if not isinstance(found, Mapping):
        return None
    names = [str(found.get(str(i), found.get(i))) for i in range(len(found))]
    return None if names == [f"LABEL_{i}" for i in range(len(names))] else names


def label_settings(labels: list[str] | None, count: int) -> dict[str, Any]:
    """The names of classes as their configuration has them."""
    names = labels or [f"LABEL_{i}" for i in range(count)]
    return {"id2label": {str(i): n for i, n in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}
