"""What all tokenizers share: special tokens, decoding, padding, reading of texts. Shapes: B batch, T time."""

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError, FileFormatError, InputError

SPECIAL = ("pad", "start", "end", "unknown")  # what a tokenizer gets where nothing is said
BERT = ("pad", "unknown", "class", "separator", "mask")  # BERT's [PAD] [UNK] [CLS] [SEP] [MASK]
ROLES = tuple(dict.fromkeys(SPECIAL + BERT))


class Tokenizer:
    """What all tokenizers share.

    Attributes:
        vocab_size: How many tokens there are, special ones included.
        ordinary: How many tokens are not special; those have the numbers from 0 on, and the special ones follow, unless
            the tokenizer was made with numbers for its special tokens.
        special_tokens: The special tokens in the order of their numbers: of `pad`, `start`, `end`, `unknown`, `class`,
            `separator`, `mask`.
        special_ids: By name, their numbers. Two names may share one.
        ids: The numbers of the ordinary tokens, in their order.
        pad_id: Number of the padding token, or None.
        start_id: Number of the token that begins a target, or None.
        end_id: Number of the end token, or None.
        unknown_id: Number of the token for what the vocabulary lacks, or None.
        class_id: Number of the token that begins an encoder's input, BERT's [CLS], or None.
        separator_id: Number of the token that ends each segment of it, BERT's [SEP], or None.
        mask_id: Number of the token that stands for a hidden one, BERT's [MASK], or None.
        streams: Whether it is trained in one pass over texts, so that they need not fit into memory.
        placed: Whether its special tokens may stand among the others, as those of a published vocabulary do.
    """

    name = ""
    streams = False
    placed = False

    def __init__(self, ordinary: int, special_tokens: "Iterable[str] | Mapping[str, int]"):
        names = (special_tokens,) if isinstance(special_tokens, str) else tuple(special_tokens)
        wrong = [s for s in names if s not in ROLES]
        if wrong or len(set(names)) != len(names):
            raise ConfigError(
                f"`special_tokens` are distinct names of {', '.join(ROLES)}. Received: special_tokens={names}"
            )
        self.ordinary = ordinary
        numbers = {s: ordinary + i for i, s in enumerate(names)}
        if isinstance(special_tokens, Mapping):
            numbers = self._places(special_tokens, ordinary)
        self.special_ids = numbers
        self.special_tokens = tuple(sorted(numbers, key=numbers.__getitem__))
        taken = set(numbers.values())
        self.vocab_size = ordinary + len(taken)
        self.ids = range(ordinary) if self._follow() else [n for n in range(self.vocab_size) if n not in taken]
        self._index = None if self._follow() else {n: i for i, n in enumerate(self.ids)}
        self.pad_id, self.start_id, self.end_id = numbers.get("pad"), numbers.get("start"), numbers.get("end")
        self.unknown_id, self.mask_id = numbers.get("unknown"), numbers.get("mask")
        self.class_id, self.separator_id = numbers.get("class"), numbers.get("separator")

    def _places(self, special_tokens: Mapping[str, int], ordinary: int) -> dict[str, int]:
        numbers = dict(special_tokens)
        size = ordinary + len(set(numbers.values()))
        if not self.placed or not all(type(n) is int and 0 <= n < size for n in numbers.values()):
            raise ConfigError(
                f"`special_tokens` are names{f', or names with numbers in [0, {size})' if self.placed else ''}. "
                f"Received: special_tokens={short(numbers)}"
            )
        return numbers

    def _follow(self) -> bool:
        """Whether the special tokens follow the ordinary ones."""
        return all(n >= self.ordinary for n in self.special_ids.values())

    def encode(self, text: str) -> list[int]:
        """The numbers of a text."""
        raise InputError(f"{type(self).__name__} cannot encode.")

    def encode_known(self, text: str) -> list[int]:
        """The numbers of a text; what the vocabulary lacks is left out."""
        return [n for n in self.encode(text) if n != self.unknown_id]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The numbers of a text, and which characters `text[start:end]` each of them stands for."""
        raise InputError(f"{type(self).__name__} does not keep characters. Word pieces, words and characters do.")

    def encode_batch(self, texts: Iterable[str], max_length: int | None = None) -> Any:
        """The numbers of texts, padded to the longest.

        Args:
            texts: The texts.
            max_length: Texts of more tokens are cut; None for no limit.

        Returns:
            An int32 array of shape `(B, T)`.
        """
        if isinstance(texts, str):
            raise InputError(f"A batch is a list of strings; `encode` takes one string. Received: {short(texts)}")
        if max_length is not None and max_length < 1:
            raise InputError(f"`max_length` must be at least 1. Received: max_length={max_length}")
        return pad([self.encode(t)[:max_length] for t in texts], self.pad_id)

    def _spell(self, numbers: Sequence[int]) -> str:
        raise InputError(f"{type(self).__name__} cannot decode.")

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers; special tokens are left out."""
        numbers = [int(n) for n in numbers]
        for n in numbers:
            if not 0 <= n < self.vocab_size:
                raise InputError(f"A token must be in [0, {self.vocab_size}). Received: {n}")
        return self._spell([k for k in map(self.index, numbers) if k is not None])

    def index(self, number: int) -> int | None:
        """Which of the ordinary tokens a number is; None for a special one."""
        if self._index is not None:
            return self._index.get(number)
        return number if 0 <= number < self.ordinary else None

    def label(self, number: int) -> str:
        """One token as people read it in a plot or a table."""
        if self.index(number) is None:
            return f"<{next(name for name in self.special_tokens if self.special_ids[name] == number)}>"
        return self.decode([number])

    def get_config(self) -> dict[str, Any]:
        """The JSON form from which `from_config` makes the tokenizer again."""
        plain = {s: self.ordinary + i for i, s in enumerate(self.special_tokens)}
        special = list(self.special_tokens) if plain == self.special_ids else dict(self.special_ids)
        return {"name": self.name, "special_tokens": special}


def pad(rows: Iterable[Sequence[int]], pad_id: int | None, length: int | None = None) -> Any:
    """Rows of different lengths as one array, filled up on the right.

    Args:
        rows: The rows, integers.
        pad_id: What to fill up with. It may be None where nothing is to fill.
        length: Length T; by default the longest row's.

    Returns:
        An int32 array of shape `(B, T)`.

    Examples:
        >>> from kerastf import text
        >>> text.pad([[5, 6, 7], [8]], 0).tolist()
        [[5, 6, 7], [8, 0, 0]]
    """
    import numpy as np

    rows = [list(r) for r in rows]
    longest = max(map(len, rows), default=0)
    if length is not None and longest > length:
        raise InputError(
            f"A row has {longest} tokens and `length` holds fewer. Cut it before. Received: length={length}"
        )
    length = longest if length is None else length
    if pad_id is None and any(len(r) != length for r in rows):
        raise InputError(
            "Rows of different lengths need a padding token. Make the tokenizer with special_tokens=('pad', ...). "
            "Received: pad_id=None"
        )
    filled = np.full((len(rows), length), 0 if pad_id is None else pad_id, dtype="int32")
    for i, row in enumerate(rows):
        filled[i, : len(row)] = row
    return filled  # (B, T)


def read_lines(path: "str | Path") -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or `.gz`, without their ends. Only a line feed ends a line."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"There is no text file {path}. Received: path={str(path)!r}")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="\n") as lines:
            for line in lines:
                yield line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path.name} is not UTF-8 text ({error.reason}).") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileFormatError(f"{path.name} is damaged or not a .gz file ({error}).") from None


def require_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InputError(f"A tokenizer encodes one string. Received: {short(text)}")


def require_names(what: str, names: Any) -> list[str]:
    """The entries of a vocabulary as a list, each a string and each once."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"`{what}` must be a list of distinct strings. Received: {what}={short(names)}")
    names = list(names)
    if not all(isinstance(n, str) and n for n in names) or len(set(names)) != len(names):
        raise ConfigError(f"`{what}` must be a list of distinct strings. Received: {what}={short(names)}")
    return names


def require_counted(numbers: Any, source: str) -> None:
    """That each token has a number of its own, and that none is left out."""
    sound = isinstance(numbers, Mapping) and all(type(n) is int for n in numbers.values())
    if not sound or sorted(numbers.values()) != list(range(len(numbers))):
        raise FileFormatError(f"{source} must give each token a number: 0, 1, 2, ... without a gap.")


def utf8(text: str) -> bytes:
    """The bytes of a text; half a surrogate pair has none, and is an error of ours."""
    require_text(text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"The text holds half a character (a lone surrogate). Received: {short(text)}") from None


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
