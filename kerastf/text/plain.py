"""Tokenizers that need no vocabulary of words: one token per character or per byte."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kerastf.errors import ConfigError, InputError
from kerastf.text.base import Tokenizer, require_text, short, utf8


class CharacterTokenizer(Tokenizer):
    """One token per character of a fixed alphabet.

    Args:
        characters: The alphabet, each character once.
        special_tokens: Of `pad`, `start`, `end`, `unknown`. Without `unknown`, another character is an error.

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

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, special_tokens: Iterable[str] = ()
    ) -> "CharacterTokenizer":
        """The alphabet of texts, in order; the most frequent characters where there are more than `vocab_size`."""
        special_tokens = tuple(special_tokens)
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        best = sorted(counts, key=lambda c: (-counts[c], c))[: vocab_size - len(special_tokens)]
        return cls("".join(sorted(best)), special_tokens)

    def encode(self, text: str) -> list[int]:
        require_text(text)
        if self.unknown_id is not None:
            return [self.numbers.get(c, self.unknown_id) for c in text]
        missing = sorted(set(text) - set(self.characters))
        if missing:
            raise InputError(
                f"The tokenizer has no character {' '.join(map(repr, missing[:8]))}; it knows {len(self.characters)} "
                f"characters. Make it with special_tokens=('unknown',) to accept others. Received: {short(text)}"
            )
        return [self.numbers[c] for c in text]

    def encode_known(self, text: str) -> list[int]:
        require_text(text)
        return [self.numbers[c] for c in text if c in self.numbers]

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        numbers = self.encode(text)
        return numbers, [(i, i + 1) for i in range(len(numbers))]

    def _spell(self, numbers: Sequence[int]) -> str:
        return "".join(self.characters[n] for n in numbers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "characters": self.characters}


class ByteTokenizer(Tokenizer):
    """One token per UTF-8 byte: 256 tokens cover every text.

    Args:
        special_tokens: Of `pad`, `start`, `end`; `unknown` is never needed.

    Examples:
        >>> ByteTokenizer().encode("né")
        [110, 195, 169]
        >>> ByteTokenizer().decode([110, 195, 169])
        'né'
    """

    name = "byte"

    def __init__(self, special_tokens: Iterable[str] = ()):
        super().__init__(256, special_tokens)

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int, special_tokens: Iterable[str] = ()) -> "ByteTokenizer":
        """Bytes need no training: the texts and the size are not looked at."""
        return cls(special_tokens)

    def encode(self, text: str) -> list[int]:
        return list(utf8(text))

    def _spell(self, numbers: Sequence[int]) -> str:
        return bytes(numbers).decode("utf-8", errors="replace")

    def label(self, number: int) -> str:
        return f"0x{number:02x}" if 127 <= number < 256 else super().label(number)
