"""Byte-pair encoding: the frequent sequences of bytes are tokens, so every text has tokens and comes back unchanged."""

from collections.abc import Iterable, Sequence
from typing import Any

from kerastf.errors import ConfigError
from kerastf.text.base import Tokenizer, short, utf8


def _alphabet() -> list[str]:
    """The sign that stands for each byte in merges, GPT-2's: printable ones for themselves, others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


ALPHABET = _alphabet()
BYTES = {sign: byte for byte, sign in enumerate(ALPHABET)}


class BytePairTokenizer(Tokenizer):
    """Bytes, and pairs of tokens that are often neighbours: keras-nlp's byte-pair encoding, that of GPT-2.

    A byte is its own number; the result of each merge has the next number. No text is unknown, and `decode` gives back
    exactly what was encoded.

    Args:
        merges: The pairs to merge, first ones first, as `"left right"` in GPT-2's signs for bytes.
        special_tokens: Of `pad`, `start`, `end`; `unknown` is never needed.

    References:
        - [Sennrich et al., 2016](https://arxiv.org/abs/1508.07909)
    """

    name = "bpe"

    def __init__(self, merges: Iterable[str], special_tokens: Iterable[str] = ()):
        if isinstance(merges, str) or not isinstance(merges, Iterable):
            raise ConfigError(f"`merges` must be a list of strings 'left right'. Received: merges={short(merges)}")
        self.merges = list(merges)
        self.numbers = dict(BYTES)
        for merge in self.merges:
            parts = merge.split(" ") if isinstance(merge, str) else []
            if len(parts) != 2 or any(p not in self.numbers for p in parts):
                raise ConfigError(
                    f"A merge is 'left right', where both are bytes or results of earlier merges. Received: {merge!r}"
                )
            self.numbers.setdefault(parts[0] + parts[1], len(self.numbers))
        self.tokens = list(self.numbers)
        super().__init__(len(self.tokens), special_tokens)
        self._tokenizer: Any = None

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, special_tokens: Iterable[str] = (), min_count: int = 2
    ) -> "BytePairTokenizer":
        """Merges of the most frequent pairs in texts.

        Args:
            texts: Strings.
            vocab_size: The most tokens there may be, special ones included; 256 are the bytes.
            special_tokens: Of `pad`, `start`, `end`.
            min_count: How often a pair must occur.
        """
        from kerastf.text import learners

        special_tokens = tuple(special_tokens)
        size = vocab_size - len(special_tokens)
        if size < 256:
            raise ConfigError(
                f"`vocab_size` must hold the 256 bytes and {len(special_tokens)} special tokens. "
                f"Received: vocab_size={vocab_size}"
            )
        texts = list(texts)
        for text in texts:
            utf8(text)
        return cls(learners.tokenizers_merges(texts, size, min_count), special_tokens)

    def encode(self, text: str) -> list[int]:
        utf8(text)
        if self._tokenizer is None:
            import keras_nlp

            self._tokenizer = keras_nlp.tokenizers.BytePairTokenizer(self.numbers, self.merges)
        return [int(n) for n in self._tokenizer.tokenize(text)]

    def _spell(self, numbers: Sequence[int]) -> str:
        signs = "".join(self.tokens[n] for n in numbers)
        return bytes(BYTES[s] for s in signs).decode("utf-8", errors="replace")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "merges": list(self.merges)}
