"""Signatures as schemas: parameter names are the options of a class, annotations their types."""

import functools
import inspect
import numbers
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kerastf.errors import ConfigError, PluginError
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


def options_of(cls: type) -> Mapping[str, inspect.Parameter]:
    """The options of a class: the parameters of its constructor, less `self` and `**kwargs`."""
    return _parameters(cls.__init__)  # type: ignore[misc]


@functools.lru_cache(maxsize=512)  # a model asks for those of a block at every depth
def _parameters(constructor: Any) -> Mapping[str, inspect.Parameter]:
    found = list(inspect.signature(constructor).parameters.values())[1:]
    return types.MappingProxyType({p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)})


_hints = functools.lru_cache(maxsize=512)(typing.get_type_hints)


def check_options(cls: type, given: Mapping[str, Any], subject: str, problems: Problems) -> None:
    """Notes unknown options, wrong types and missing values of one constructor call."""
    known = options_of(cls)
    hints = _hints(cls.__init__)  # type: ignore[misc]
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
            problems.add(f"{subject} has no option `{name}`.{rest} Received: {name}={short(value)}")
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


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
