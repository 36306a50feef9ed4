"""Tokenizers: text to numbers and back. They travel with a model as plain configuration.

The character and byte tokenizers are plain Python: they work where TensorFlow is not installed, and need no vocabulary
file. Special tokens come after the ordinary ones, so a byte is its own number.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kerastf.errors import ConfigError, InputError
from kerastf.registry import did_you_mean, nearest

SPECIAL = ("pad", "end", "unknown")


class Tokenizer:
    """What all tokenizers share.

    Attributes:
        vocab_size: How many tokens there are, special ones included.
        special_tokens: The special tokens in the order of their numbers: of `pad`, `end`, `unknown`.
        pad_id: Number of the padding token, or None.
        end_id: Number of the end token, or None.
        unknown_id: Number of the token for what the vocabulary lacks, or None.
    """

    name = ""

    def __init__(self, ordinary: int, special_tokens: Iterable[str]):
        self.special_tokens = tuple(special_tokens)
        wrong = [s for s in self.special_tokens if s not in SPECIAL]
        if wrong or len(set(self.special_tokens)) != len(self.special_tokens):
            raise ConfigError(
                f"`special_tokens` are distinct names of {', '.join(SPECIAL)}. "
                f"Received: special_tokens={self.special_tokens}"
            )
        self.ordinary = ordinary
        self.vocab_size = ordinary + len(self.special_tokens)
        self.pad_id, self.end_id, self.unknown_id = (
            ordinary + self.special_tokens.index(s) if s in self.special_tokens else None for s in SPECIAL
        )

    def encode(self, text: str) -> list[int]:
        """The numbers of a text."""
        raise InputError(f"{type(self).__name__} cannot encode.")

    def _spell(self, numbers: Sequence[int]) -> str:
        raise InputError(f"{type(self).__name__} cannot decode.")

    def decode(self, numbers: Iterable[int]) -> str:
        """The text of numbers; special tokens are left out."""
        numbers = [int(n) for n in numbers]
        for n in numbers:
            if not 0 <= n < self.vocab_size:
                raise InputError(f"A token must be in [0, {self.vocab_size}). Received: {n}")
        return self._spell([n for n in numbers if n < self.ordinary])

    def label(self, number: int) -> str:
        """One token as people read it in a plot or a table."""
        if number >= self.ordinary:
            return f"<{self.special_tokens[number - self.ordinary]}>"
        return self.decode([number])

    def get_config(self) -> dict[str, Any]:
        """The JSON form from which `from_config` makes the tokenizer again."""
        return {"name": self.name, "special_tokens": list(self.special_tokens)}


class CharacterTokenizer(Tokenizer):
    """One token per character of a fixed alphabet.

    Args:
        characters: The alphabet, each character once.
        special_tokens: Of `pad`, `end`, `unknown`. Without `unknown`, another character is an error.

    Examples:
        >>> tokenizer = CharacterTokenizer.from_text("hello")
        >>> tokenizer.encode("hole")
        [1, 3, 2, 0]
        >>> tokenizer.decode([1, 3, 2, 0])
        'hole'
    """

    name = "character"

    def __init__(self, characters: str, special_tokens: Iterable[str] = ()):
        if not isinstance(characters, str) or not characters or len(set(characters)) != len(characters):
            raise ConfigError(
                f"`characters` must be a string of distinct characters. Received: characters={characters!r}"
            )
        super().__init__(len(characters), special_tokens)
        self.characters = characters
        self.numbers = {c: i for i, c in enumerate(characters)}

    @classmethod
    def from_text(cls, text: str, special_tokens: Iterable[str] = ()) -> "CharacterTokenizer":
        """The alphabet of a text, in order."""
        return cls("".join(sorted(set(text))), special_tokens)

    def encode(self, text: str) -> list[int]:
        _require_text(text)
        if self.unknown_id is not None:
            return [self.numbers.get(c, self.unknown_id) for c in text]
        missing = sorted(set(text) - set(self.characters))
        if missing:
            raise InputError(
                f"The tokenizer has no character {' '.join(map(repr, missing[:8]))}; it knows {len(self.characters)} "
                f"characters. Make it with special_tokens=('unknown',) to accept others. Received: {_short(text)}"
            )
        return [self.numbers[c] for c in text]

    def _spell(self, numbers: Sequence[int]) -> str:
        return "".join(self.characters[n] for n in numbers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "characters": self.characters}


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte: 256 tokens cover every text.

    Args:
        special_tokens: Of `pad`, `end`.

    Examples:
        >>> ByteTokenizer().encode("né")
        [110, 195, 169]
        >>> ByteTokenizer().decode([110, 195, 169])
        'né'
    """

    name = "byte"

    def __init__(self, special_tokens: Iterable[str] = ()):
        super().__init__(256, special_tokens)

    def encode(self, text: str) -> list[int]:
        _require_text(text)
        return list(text.encode("utf-8"))

    def _spell(self, numbers: Sequence[int]) -> str:
        return bytes(numbers).decode("utf-8", errors="replace")

    def label(self, number: int) -> str:
        return f"0x{number:02x}" if 127 <= number < 256 else super().label(number)


TOKENIZERS: dict[str, type[Tokenizer]] = {c.name: c for c in (CharacterTokenizer, ByteTokenizer)}


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
    if name not in TOKENIZERS:
        raise ConfigError(
            f"There is no tokenizer `{name}`.{did_you_mean(nearest(str(name), TOKENIZERS))} "
            f"Tokenizers: {', '.join(TOKENIZERS)}."
        )
    try:
        return TOKENIZERS[name](**options)
    except TypeError:
        raise ConfigError(
            f"The tokenizer `{name}` cannot be made from these options. Received: {sorted(options)}"
        ) from None


def _require_text(text: Any) -> None:
    if not isinstance(text, str):
        raise InputError(f"A tokenizer encodes one string. Received: {_short(text)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
