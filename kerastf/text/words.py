"""Tokenizers of words: how a text is cut into words and marks, and how those are written as a text again."""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kerastf.errors import ConfigError, InputError
from kerastf.text.base import Tokenizer, require_names, require_text, short

# A word with the apostrophe or hyphen that joins it to the next one; a word; any other sign alone.
JOINERS = "'\u2019-"
PATTERN = re.compile(rf"\w+(?:{'|'.join(JOINERS)})(?=\w)|\w+|[^\w\s]")
SIGNS = re.compile(r"[^\w\s]")  # every mark is one of these
STRETCH = re.compile(r"\S+")
LEFT = ".,;:!?)]}…”»%"
RIGHT = "([{“«¿¡$#@"


def is_mark(sign: str) -> bool:
    """Whether a sign is punctuation that always stands as a token of its own."""
    category = unicodedata.category(sign)
    return category != "Pc" and (category[0] == "P" or (sign.isascii() and not sign.isalnum() and sign.isprintable()))


class MarkedTokenizer(Tokenizer):
    """What tokenizers of words and word pieces share: cleaning of a text, and spaces around marks.

    A text is put into Unicode's composed form (NFC), every run of white space becomes one space, and capitals become
    small where `lowercase` says so. Words are written with a space between them, except before the marks in `left` and
    after those in `right`. So a round trip keeps words and marks, not spacing.
    """

    never = ""  # marks that keep their spaces, because glued ones would be read otherwise

    def __init__(self, ordinary: int, special_tokens: Iterable[str], lowercase: bool, left: str, right: str):
        super().__init__(ordinary, special_tokens)
        for name, marks in (("left", left), ("right", right)):
            if not isinstance(marks, str) or not all(is_mark(c) and c not in self.never for c in marks):
                raise ConfigError(f"`{name}` must be a string of punctuation marks. Received: {name}={marks!r}")
        if not isinstance(lowercase, bool):
            raise ConfigError(f"`lowercase` must be True or False. Received: lowercase={lowercase!r}")
        self.lowercase = lowercase
        self.left = left
        self.right = right

    @staticmethod
    def clean(text: str, lowercase: bool) -> str:
        """The text as it is cut into words."""
        require_text(text)
        text = " ".join(text.split())
        # Small letters may be composed of two signs, so composing comes last.
        return unicodedata.normalize("NFC", text.lower() if lowercase else text)

    @classmethod
    def habits(cls, texts: Iterable[str]) -> dict[str, str]:
        """`left` and `right` as clean texts have them: marks that mostly touch a word on that side."""
        pairs = {side: Counter[tuple[str, str]]() for side in ("left", "right")}  # a mark and what stands beside it
        for text in texts:
            for found in SIGNS.finditer(text):
                at, sign = found.start(), found.group()
                pairs["left"][sign, text[at - 1] if at else " "] += 1
                pairs["right"][sign, text[at + 1] if at + 1 < len(text) else " "] += 1
        marks = {sign for sign, _ in pairs["left"] if is_mark(sign)}.difference(cls.never)
        touching = {side: Counter[str]() for side in pairs}  # a mark counts +1 at a word, -1 at a space
        for side, counted in pairs.items():
            for (sign, other), count in counted.items():
                if sign in marks and other not in marks:  # how marks stand beside each other tells nothing
                    touching[side][sign] += count if other != " " else -count
        usual = {"left": LEFT, "right": RIGHT}
        return {
            side: "".join(sorted(m for m in marks if counts[m] > 0 or (counts[m] == 0 and m in usual[side])))
            for side, counts in touching.items()
        }

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The numbers of a text, and which characters `text[start:end]` each of them stands for.

        Between white space and marks nothing depends on what stands around it, so each stretch is encoded alone. The
        pieces of a stretch share it by their lengths; an unknown stretch, and one in which cleaning moved characters,
        is given whole to each of its tokens.
        """
        require_text(text)
        numbers: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, end in self.stretches(text):
            found = self.encode(text[start:end])
            shown = [self.decode([n]) for n in found]
            ends = list(itertools.accumulate(map(len, shown), initial=start))
            places = list(itertools.pairwise(ends))
            # What cleaning added may be as long as what it left out, so the length alone does not say that all is here.
            exact = ends[-1] == end and all(
                piece and (text[a:b] == piece or self.cleaned(text[a:b]) == piece)
                for piece, (a, b) in zip(shown, places, strict=True)
            )
            numbers += found
            spans += places if exact else [(start, end)] * len(found)
        return numbers, spans

    def stretches(self, text: str) -> Iterable[tuple[int, int]]:
        """Where the parts of a text stand that are encoded one without the other."""
        return ((m.start(), m.end()) for m in STRETCH.finditer(text))

    def cleaned(self, text: str) -> str:
        """A part of a stretch as its tokens show it."""
        return self.clean(text, self.lowercase)

    def join(self, words: Iterable[str]) -> str:
        """Words and marks as a text."""
        text, before = "", ""
        for word in words:
            glue = (len(word) == 1 and word in self.left) or (len(before) == 1 and before in self.right)
            glue = glue or (len(before) > 1 and before[-1] in self.never)
            if before and (not glue or unicodedata.combining(word[0])):
                text += " "
            text += word
            before = word
        return text

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "lowercase": self.lowercase, "left": self.left, "right": self.right}


class WordTokenizer(MarkedTokenizer):
    r"""One token per word or mark.

    A text is cut by the regular expression `\w+(?:'|’|-)(?=\w)|\w+|[^\w\s]`: a word, which keeps an apostrophe or
    hyphen that joins it to the next word (`don't` is `don'` and `t`, `l'eau` is `l'` and `eau`), or another sign alone.
    Scripts without spaces, or with vowels as combining signs, are better served by `bpe`.

    Args:
        words: The vocabulary, each word once.
        special_tokens: Of `pad`, `start`, `end`, `unknown`. Without `unknown`, another word is an error.
        lowercase: Whether capitals become small.
        left: Marks written without a space before them.
        right: Marks written without a space after them.
        counts: How often each of `words` occurred in training, or None where that is not known.

    Examples:
        >>> tokenizer = WordTokenizer.train(["The cat, the dog."], special_tokens=("unknown",), lowercase=True)
        >>> tokenizer.words
        ['the', ',', '.', 'cat', 'dog']
        >>> tokenizer.decode(tokenizer.encode("The dog, the bird, the cat."))
        'the dog, the, the cat.'
    """

    name = "word"
    never = JOINERS
    streams = True

    def __init__(
        self, words: Iterable[str], special_tokens: Iterable[str] = (), *, lowercase: bool = False, left: str = LEFT,
        right: str = RIGHT, counts: Iterable[int] | None = None,
    ):  # fmt: skip
        self.words = require_names("words", words)
        self.counts = None if counts is None else [int(n) for n in counts]
        if self.counts is not None and (len(self.counts) != len(self.words) or min(self.counts, default=1) < 1):
            raise ConfigError(
                f"`counts` are as many as `words`, each at least 1. Received: {len(self.words)} words, "
                f"counts={short(self.counts)}"
            )
        super().__init__(len(self.words), special_tokens, lowercase, left, right)
        for word in self.words:
            if self.cut(word) != [word] and self.cut(word + "x") != [word, "x"]:
                raise ConfigError(
                    f"Each of `words` must be one word or mark as the tokenizer cuts them. Received: {word!r}"
                )
        self.numbers = {w: i for i, w in enumerate(self.words)}

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int | None = None, special_tokens: Iterable[str] = (),
        min_count: int = 1, lowercase: bool = False,
    ) -> "WordTokenizer":  # fmt: skip
        """The most frequent words of texts, most frequent first.

        Args:
            texts: Strings.
            vocab_size: The most tokens there may be, special ones included; None for no limit.
            special_tokens: Of `pad`, `start`, `end`, `unknown`.
            min_count: How often a word must occur.
            lowercase: Whether capitals become small.
        """
        if not isinstance(min_count, int) or min_count < 1:
            raise ConfigError(f"`min_count` must be at least 1. Received: min_count={min_count}")
        special_tokens = tuple(special_tokens)
        found: Counter[str] = Counter()

        def counted() -> Iterator[str]:  # one pass: the texts need not fit into memory
            for text in texts:
                text = cls.clean(text, lowercase)
                found.update(PATTERN.findall(text))
                yield text

        habits = cls.habits(counted())
        words = sorted((w for w in found if found[w] >= min_count), key=lambda w: (-found[w], w))
        words = words[: None if vocab_size is None else vocab_size - len(special_tokens)]
        return cls(words, special_tokens, lowercase=lowercase, counts=[found[w] for w in words], **habits)

    def cut(self, text: str) -> list[str]:
        """The words and marks of a text."""
        return PATTERN.findall(self.clean(text, self.lowercase))

    def encode(self, text: str) -> list[int]:
        words = self.cut(text)
        missing = [w for w in dict.fromkeys(words) if w not in self.numbers]
        if missing and self.unknown_id is None:
            raise InputError(
                f"The tokenizer has no word {' '.join(map(repr, missing[:8]))}; it knows {len(self.words)} words. "
                f"Make it with special_tokens=('unknown',) to accept others. Received: {short(text)}"
            )
        return [self.numbers.get(w, self.unknown_id) for w in words]  # type: ignore[misc]

    def encode_known(self, text: str) -> list[int]:
        numbers = self.numbers
        return [numbers[w] for w in self.cut(text) if w in numbers]

    def _spell(self, numbers: Sequence[int]) -> str:
        return self.join(self.words[n] for n in numbers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "words": list(self.words), "counts": self.counts}
