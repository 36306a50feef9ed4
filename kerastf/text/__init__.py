"""Tokenizers: text to numbers and back. They travel with a model as plain configuration.

The character, byte and word tokenizers are plain Python. Word pieces and byte pairs are cut by the library tokenizers,
on which keras-nlp stands too, and SentencePiece by its own; each is imported when it is used, without TensorFlow.
Special tokens come after the ordinary ones, so a byte is its own number; published vocabularies keep their numbers.
"""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError, InputError
from kerastf.registry import did_you_mean, nearest
from kerastf.text.base import BERT, ROLES, SPECIAL, Tokenizer, pad, read_lines, require_text, short
from kerastf.text.bpe import BytePairTokenizer
from kerastf.text.characters import WordCharacterTokenizer
from kerastf.text.pieces import WordPieceTokenizer
from kerastf.text.plain import ByteTokenizer, CharacterTokenizer
from kerastf.text.sentencepiece import SentencePieceTokenizer
from kerastf.text.words import WordTokenizer

__all__ = ["BERT", "ROLES", "SPECIAL", "TOKENIZERS", "BytePairTokenizer", "ByteTokenizer", "CharacterTokenizer",
           "SentencePieceTokenizer", "Tokenizer", "WordCharacterTokenizer", "WordPieceTokenizer", "WordTokenizer",
           "from_config", "pad", "read_lines", "train"]  # fmt: skip

TOKENIZERS: dict[str, type[Tokenizer]] = {
    c.name: c
    for c in (
        CharacterTokenizer,
        ByteTokenizer,
        WordTokenizer,
        WordPieceTokenizer,
        BytePairTokenizer,
        WordCharacterTokenizer,
        SentencePieceTokenizer,
    )
}


def _find(name: Any) -> type[Tokenizer]:
    if name not in TOKENIZERS:
        raise ConfigError(
            f"There is no tokenizer `{name}`.{did_you_mean(nearest(str(name), TOKENIZERS))} "
            f"Tokenizers: {', '.join(TOKENIZERS)}."
        )
    return TOKENIZERS[name]


def from_config(config: "Tokenizer | Mapping[str, Any] | str | None") -> Tokenizer | None:
    """A tokenizer from its JSON form, from its name where it needs no options, or from itself."""
    if config is None or isinstance(config, Tokenizer):
        return config
    config = {"name": config} if isinstance(config, str) else config
    if not isinstance(config, Mapping) or "name" not in config:
        raise ConfigError(
            f"A tokenizer is a Tokenizer, its name, or a dict with its name. Received: tokenizer={config!r}"
        )
    options = {k: v for k, v in config.items() if k != "name"}
    name = config["name"]
    cls: Any = _find(name)
    try:
        inspect.signature(cls).bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"The tokenizer `{name}` cannot be made from these options: {error}. "
            f"Make one from texts with kerastf.text.train({name!r}, texts). Received: {sorted(options)}"
        ) from None
    return cls(**options)


def train(
    name: str, texts: "Iterable[str] | str | Path", vocab_size: int = 8000,
    special_tokens: Iterable[str] = SPECIAL, **options: Any,
) -> Tokenizer:  # fmt: skip
    """A tokenizer made from texts.

    Args:
        name: `"character"`, `"byte"`, `"word"`, `"wordpiece"`, `"bpe"`, `"word_characters"` or
            `"sentencepiece"`.
        texts: Strings, or the path of a UTF-8 text file, plain or `.gz`.
        vocab_size: The most tokens there may be, special ones included.
        special_tokens: Of `pad`, `start`, `end`, `unknown`, `class`, `separator`, `mask`, in the order of their
            numbers. `text.BERT` has those an encoder needs.
        **options: `lowercase` (word, wordpiece), `min_count` (word, bpe, word_characters), `learner` (wordpiece),
            `max_characters` (word_characters).

    Returns:
        The tokenizer.

    Examples:
        >>> from kerastf import text
        >>> tokenizer = text.train("word", ["a rose is a rose"], special_tokens=("pad", "start", "end"))
        >>> tokenizer.encode("is a rose")
        [2, 0, 1]
        >>> tokenizer.vocab_size, tokenizer.start_id
        (6, 4)
    """
    cls: Any = _find(name)
    known = [p for p in inspect.signature(cls.train).parameters if p not in ("texts", "vocab_size", "special_tokens")]
    wrong = [o for o in options if o not in known]
    if wrong:
        raise ConfigError(
            f"The training of the tokenizer `{name}` has no option {', '.join(wrong)}. "
            f"Options: {', '.join(known) or 'none'}. Received: {sorted(options)}"
        )
    special_tokens = (special_tokens,) if isinstance(special_tokens, str) else tuple(special_tokens)
    Tokenizer(0, special_tokens)  # names are checked before a long training
    if not isinstance(vocab_size, int) or vocab_size <= len(special_tokens):
        raise ConfigError(
            f"`vocab_size` must be more than the {len(special_tokens)} special tokens. "
            f"Received: vocab_size={vocab_size}"
        )
    if isinstance(texts, str | Path):
        if not any(line.strip() for line in read_lines(texts)):
            raise InputError(f"A tokenizer is trained on texts that are not empty. Received: texts={str(texts)!r}")
        texts = read_lines(texts) if cls.streams else list(read_lines(texts))
    else:
        texts = list(texts)
        for text in texts:
            require_text(text)
        if not any(text.strip() for text in texts):
            raise InputError(f"A tokenizer is trained on texts that are not empty. Received: texts={short(texts)}")
    return cls.train(texts, vocab_size=vocab_size, special_tokens=special_tokens, **options)
