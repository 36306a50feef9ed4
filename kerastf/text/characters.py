"""Words as rows of characters, as ELMo reads them. Shapes: B batch, T time, W characters of a word."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from kerastf.errors import ConfigError, InputError
from kerastf.text.base import SPECIAL, Tokenizer, pad, require_names, short, utf8

# A byte b is the character b + 1, and these follow; 0 is no character at all.
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, FILLING = 257, 258, 259, 260, 261


class WordCharacterTokenizer(Tokenizer):
    """Words that white space separates, each as the UTF-8 bytes it is written with.

    A word is `WORD_BEGIN`, its bytes, `WORD_END`, then `FILLING` up to `max_characters`; bytes that do not fit are cut
    off. `encode` gives the number of each word in a vocabulary, which is what a language model predicts, and
    `encode_characters` what it reads, so that a word outside of the vocabulary is still read.

    Args:
        words: The vocabulary, each word once.
        special_tokens: Of `pad`, `start`, `end`, `unknown`. `start` and `end` stand around a sentence.
        max_characters: How many characters W a word has, marks and filling included.

    Examples:
        >>> tokenizer = WordCharacterTokenizer(["the", "cat"], max_characters=6)
        >>> tokenizer.encode("the cat sat")
        [0, 1, 5]
        >>> tokenizer.encode_characters(["cat"], boundaries=False).tolist()
        [[[259, 100, 98, 117, 260, 261]]]
        >>> tokenizer.encode_words(["cat", "the cat"]).tolist()
        [[3, 1, 4, 2], [3, 0, 1, 4]]

    References:
        - [Peters et al., 2018](https://arxiv.org/abs/1802.05365)
    """

    name = "word_characters"

    def __init__(
        self, words: Iterable[str] = (), special_tokens: Iterable[str] = SPECIAL, *, max_characters: int = 50
    ):  # fmt: skip
        self.words = require_names("words", words)
        super().__init__(len(self.words), special_tokens)
        if not isinstance(max_characters, int) or max_characters < 3:
            raise ConfigError(
                f"`max_characters` must be at least 3: a byte between two marks. Received: "
                f"max_characters={max_characters!r}"
            )
        wrong = [w for w in self.words if w.split() != [w]]
        if wrong:
            raise ConfigError(f"Each of `words` must be free of white space. Received: {wrong[0]!r}")
        self.max_characters = max_characters
        self.numbers = {w: i for i, w in enumerate(self.words)}

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int | None = None, special_tokens: Iterable[str] = SPECIAL,
        min_count: int = 1, max_characters: int = 50,
    ) -> "WordCharacterTokenizer":  # fmt: skip
        """The most frequent words of texts, most frequent first, as a sampled softmax wants them.

        Args:
            texts: Strings.
            vocab_size: The most tokens there may be, special ones included; None for no limit.
            special_tokens: Of `pad`, `start`, `end`, `unknown`.
            min_count: How often a word must occur.
            max_characters: How many characters W a word has.
        """
        special_tokens = tuple(special_tokens)
        counts = Counter(w for t in texts for w in t.split())
        words = sorted((w for w in counts if counts[w] >= min_count), key=lambda w: (-counts[w], w))
        limit = None if vocab_size is None else vocab_size - len(special_tokens)
        return cls(words[:limit], special_tokens, max_characters=max_characters)

    def cut(self, sentence: "str | Sequence[str]") -> list[str]:
        """The words of a sentence: a text is cut at white space, a list of words stays as it is."""
        words = sentence.split() if isinstance(sentence, str) else list(sentence)
        if not words:
            raise InputError(f"A sentence needs at least one word. Received: {short(sentence)}")
        for word in words:
            if not isinstance(word, str) or word.split() != [word]:
                raise InputError(
                    f"A word is at least one character, and none of them white space. Received: {short(word)}"
                )
        return words

    def encode(self, text: "str | Sequence[str]") -> list[int]:
        """The number of each word of a sentence."""
        words = self.cut(text)
        missing = [w for w in dict.fromkeys(words) if w not in self.numbers]
        if missing and self.unknown_id is None:
            raise InputError(
                f"The tokenizer has no word {' '.join(map(repr, missing[:8]))}; it knows {len(self.words)} words. "
                f"Make it with special_tokens=('unknown',) to accept others. Received: {short(text)}"
            )
        return [self.numbers.get(w, self.unknown_id) for w in words]  # type: ignore[misc]

    def encode_known(self, text: "str | Sequence[str]") -> list[int]:
        words = self.cut(text) if not isinstance(text, str) or text.split() else []  # a text may have no word at all
        return [self.numbers[w] for w in words if w in self.numbers]

    def encode_words(self, sentences: "Iterable[str | Sequence[str]]", *, boundaries: bool = True) -> Any:
        """The numbers of the words of sentences, padded to the longest.

        Args:
            sentences: Texts, or lists of words.
            boundaries: Whether `start` and `end` stand around each sentence.

        Returns:
            An int32 array of shape `(B, T)`.
        """
        rows = [self.encode(s) for s in self._several(sentences)]
        if boundaries:
            if self.start_id is None or self.end_id is None:
                raise InputError(
                    "Boundaries need the special tokens start and end. "
                    f"Received: special_tokens={self.special_tokens}, boundaries=True"
                )
            rows = [[self.start_id, *row, self.end_id] for row in rows]
        return pad(rows, self.pad_id)

    def encode_characters(self, sentences: "Iterable[str | Sequence[str]]", *, boundaries: bool = True) -> Any:
        """The characters of the words of sentences; shorter sentences are filled up with words of nothing but 0.

        Args:
            sentences: Texts, or lists of words.
            boundaries: Whether a begin and an end stand around each sentence.

        Returns:
            An int32 array of shape `(B, T, W)`.
        """
        import numpy as np

        rows = [[self.spell_word(w) for w in self.cut(s)] for s in self._several(sentences)]
        if boundaries:
            begin, end = self._mark(SENTENCE_BEGIN), self._mark(SENTENCE_END)
            rows = [[begin, *row, end] for row in rows]
        longest = max(map(len, rows), default=0)
        filled = np.zeros((len(rows), longest, self.max_characters), dtype="int32")
        for i, row in enumerate(rows):
            filled[i, : len(row)] = row
        return filled  # (B, T, W)

    def spell_word(self, word: str) -> list[int]:
        """The characters of a word, `max_characters` of them; bytes that do not fit are cut off."""
        return self._between_marks([b + 1 for b in utf8(word)[: self.max_characters - 2]])

    def _mark(self, number: int) -> list[int]:
        return self._between_marks([number])

    def _between_marks(self, numbers: list[int]) -> list[int]:
        row = [WORD_BEGIN, *numbers, WORD_END]
        return row + [FILLING] * (self.max_characters - len(row))

    def _several(self, sentences: Any) -> list[Any]:
        if isinstance(sentences, str):
            raise InputError(f"Sentences are a list, even where there is one. Received: {short(sentences)}")
        return list(sentences)

    def _spell(self, numbers: Sequence[int]) -> str:
        return " ".join(self.words[n] for n in numbers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "words": list(self.words), "max_characters": self.max_characters}
