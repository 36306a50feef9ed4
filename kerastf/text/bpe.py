"""Byte-pair encoding: the frequent sequences of bytes are tokens, so every text has tokens and comes back unchanged."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError
from kerastf.text.base import Tokenizer, read_lines, require_counted, require_names, short, utf8


def _alphabet() -> list[str]:
    """The sign that stands for each byte in merges, GPT-2's: printable ones for themselves, others from 256 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


ALPHABET = _alphabet()
BYTES = {sign: byte for byte, sign in enumerate(ALPHABET)}


class BytePairTokenizer(Tokenizer):
    """Bytes, and pairs of tokens that are often neighbours: the byte-pair encoding of GPT-2.

    A byte is its own number; the result of each merge has the next number. No text is unknown, and `decode` gives back
    exactly what was encoded.

    Args:
        merges: The pairs to merge, first ones first, as `"left right"` in GPT-2's signs for bytes.
        special_tokens: Of `pad`, `start`, `end`; `unknown` is never needed. A dict says their numbers.
        tokens: All ordinary tokens in the order of their numbers, where that is not the order of the merges.
        names: By name, how files write the special tokens; None for `<|end|>` and the like.

    References:
        - [Sennrich et al., 2016](https://arxiv.org/abs/1508.07909)
    """

    name = "bpe"
    placed = True

    def __init__(
        self, merges: Iterable[str], special_tokens: "Iterable[str] | Mapping[str, int]" = (),
        tokens: Iterable[str] | None = None, names: Mapping[str, str] | None = None,
    ):  # fmt: skip
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
        self.ordered = tokens is not None
        if tokens is not None:
            self.tokens = require_names("tokens", tokens)
            if not set(self.numbers) <= set(self.tokens):
                lacking = next(t for t in self.numbers if t not in set(self.tokens))
                raise ConfigError(f"`tokens` has no {lacking!r}, which is a byte or the result of a merge.")
            if any(sign not in BYTES for token in self.tokens for sign in token):
                raise ConfigError("`tokens` are written in GPT-2's signs for bytes.")
            self.numbers = {token: i for i, token in enumerate(self.tokens)}
        super().__init__(len(self.tokens), special_tokens)
        self.names = {role: (names or {}).get(role, f"<|{role}|>") for role in self.special_tokens}
        self._tokenizer: Any = None

    @classmethod
    def from_files(
        cls, vocabulary: "str | Path", merges: "str | Path", special: Mapping[str, str]
    ) -> "BytePairTokenizer":
        """The tokenizer of a `vocab.json` and a `merges.txt` as GPT-2's have it; every token keeps its number.

        Args:
            vocabulary: The file with the number of each token.
            merges: The file of merges.
            special: By name (`end`, `pad`, ...), the tokens of the file that are special.
        """
        numbers = read_numbers(vocabulary)
        pairs = [line for line in read_lines(merges) if line and not line.startswith("#version")]
        return cls.from_numbers(numbers, pairs, special)

    @classmethod
    def from_numbers(
        cls, numbers: Mapping[str, int], merges: Iterable[str], special: Mapping[str, str]
    ) -> "BytePairTokenizer":
        """The tokenizer of a vocabulary in which every token has its number.

        Args:
            numbers: The number of each token, special ones included.
            merges: The pairs.
            special: By name, the tokens that are special.
        """
        places = {role: numbers[token] for role, token in special.items() if token in numbers}
        tokens = [t for t in sorted(numbers, key=numbers.__getitem__) if numbers[t] not in places.values()]
        return cls(merges, places, tokens, {role: token for role, token in special.items() if role in places})

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
            # Not keras-nlp's own, which cuts some white space and marks otherwise than GPT-2 (decision 0014).
            from tokenizers import Tokenizer, models, pre_tokenizers

            pairs = [(m.split(" ")[0], m.split(" ")[1]) for m in self.merges]
            self._tokenizer = Tokenizer(models.BPE(self.numbers, pairs))
            self._tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        ids = self.ids
        return [ids[k] for k in self._tokenizer.encode(text).ids]

    def _spell(self, numbers: Sequence[int]) -> str:
        signs = "".join(self.tokens[n] for n in numbers)
        return bytes(BYTES[s] for s in signs).decode("utf-8", errors="replace")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(), "merges": list(self.merges), "tokens": list(self.tokens) if self.ordered else None,
            "names": dict(self.names),
        }  # fmt: skip


def read_numbers(path: "str | Path") -> dict[str, int]:
    """The number of each token, from a JSON file; the numbers are 0, 1, 2, ... without a gap."""
    import json

    from kerastf.errors import FileFormatError

    path = Path(path)
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path.name} is no vocabulary that can be read ({error}).") from None
    require_counted(found, path.name)
    return found
