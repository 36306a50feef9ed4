"""Tokenizers of words: how a text is cut into words and marks, and how those are written as a text again."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.text.base import BERT, Tokenizer, read_lines, require_names, require_text, short, utf8

# A word with the apostrophe or hyphen that joins it to the next one; a word; any other sign alone.
JOINERS = "'\u2019-"
PATTERN = re.compile(rf"\w+(?:{'|'.join(JOINERS)})(?=\w)|\w+|[^\w\s]")
STRETCH = re.compile(r"\S+")
FILE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # how a file writes those of `BERT`
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
    def habits(cls, texts: Sequence[str]) -> dict[str, str]:
        """`left` and `right` as clean texts have them: marks that mostly touch a word on that side."""
        touching = {side: Counter[str]() for side in ("left", "right")}  # a mark counts +1 at a word, -1 at a space
        marks = {sign for text in texts for sign in set(text) if is_mark(sign)}.difference(cls.never, " ")
        for text in texts:
            for i, sign in enumerate(text):
                if sign not in marks:
                    continue
                for side, at in (("left", i - 1), ("right", i + 1)):
                    other = text[at] if 0 <= at < len(text) else " "
                    if other == " " or other not in marks:  # how marks stand beside each other tells nothing
                        touching[side][sign] += 1 if other != " " else -1
        usual = {"left": LEFT, "right": RIGHT}
        return {
            side: "".join(sorted(m for m in marks if counts[m] > 0 or (counts[m] == 0 and m in usual[side])))
            for side, counts in touching.items()
        }

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The numbers of a text, and which characters `text[start:end]` each of them stands for.

        Between white space and marks nothing depends on what stands around it, so each stretch is encoded alone. The
        pieces of a stretch share it by their lengths; an unknown stretch, and one that cleaning made longer or
        shorter, is given whole to each of its tokens.
        """
        require_text(text)
        numbers: list[int] = []
        spans: list[tuple[int, int]] = []
        for start, end in self.stretches(text):
            found = self.encode(text[start:end])
            lengths = [self.length(n) for n in found]
            exact = sum(lengths) == end - start and 0 not in lengths
            at = start
            for number, length in zip(found, lengths, strict=True):
                numbers.append(number)
                spans.append((at, at + length) if exact else (start, end))
                at += length
        return numbers, spans

    def stretches(self, text: str) -> Iterable[tuple[int, int]]:
        """Where the parts of a text stand that are encoded one without the other."""
        return ((m.start(), m.end()) for m in STRETCH.finditer(text))

    def length(self, number: int) -> int:
        """How many characters a token stands for; 0 where that is not known."""
        return len(self.decode([number]))

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

    Examples:
        >>> tokenizer = WordTokenizer.train(["The cat, the dog."], special_tokens=("unknown",), lowercase=True)
        >>> tokenizer.words
        ['the', ',', '.', 'cat', 'dog']
        >>> tokenizer.decode(tokenizer.encode("The dog, the bird, the cat."))
        'the dog, the, the cat.'
    """

    name = "word"
    never = JOINERS

    def __init__(
        self, words: Iterable[str], special_tokens: Iterable[str] = (), *, lowercase: bool = False, left: str = LEFT,
        right: str = RIGHT,
    ):  # fmt: skip
        self.words = require_names("words", words)
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
        cleaned = [cls.clean(t, lowercase) for t in texts]
        counts = Counter(w for t in cleaned for w in PATTERN.findall(t))
        words = sorted((w for w in counts if counts[w] >= min_count), key=lambda w: (-counts[w], w))
        limit = None if vocab_size is None else vocab_size - len(special_tokens)
        return cls(words[:limit], special_tokens, lowercase=lowercase, **cls.habits(cleaned))

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

    def _spell(self, numbers: Sequence[int]) -> str:
        return self.join(self.words[n] for n in numbers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "words": list(self.words)}


class WordPieceTokenizer(MarkedTokenizer):
    """Words, and pieces of rarer words: keras-nlp's WordPiece.

    A word is cut into the longest piece that the vocabulary has, then the longest of the rest; a piece that goes on
    with a word begins with `##`. Marks stand alone. A word of which some sign is not in the vocabulary is unknown.

    Args:
        pieces: The vocabulary, each piece once.
        special_tokens: Of `pad`, `start`, `end`, `unknown`. Without `unknown`, an unknown word is an error.
        lowercase: Whether capitals become small.
        left: Marks written without a space before them.
        right: Marks written without a space after them.
        strip_accents: Whether `é` is read as `e`, and signs that are not written are passed over, as BERT does with
            its vocabulary of small letters.

    References:
        - [Schuster and Nakajima, 2012](https://research.google/pubs/pub37842/)
    """

    name = "wordpiece"
    unknown = "[UNK]"  # never a piece: its brackets are marks

    def __init__(
        self, pieces: Iterable[str], special_tokens: Iterable[str] = (), *, lowercase: bool = False, left: str = LEFT,
        right: str = RIGHT, strip_accents: bool = False,
    ):  # fmt: skip
        self.pieces = require_names("pieces", pieces)
        if self.unknown in self.pieces:
            raise ConfigError(f"`pieces` has no {self.unknown}; give special_tokens=('unknown',) instead.")
        super().__init__(len(self.pieces), special_tokens, lowercase, left, right)
        self.strip_accents = strip_accents
        self._tokenizer: Any = None

    @classmethod
    def from_vocabulary(cls, path: "str | Path", *, lowercase: bool = True) -> "WordPieceTokenizer":
        """The tokenizer of a `vocab.txt` as BERT's have it: one piece per line, `[PAD]`, `[UNK]`, ... among them.

        Here the special tokens come last, so the numbers are not those of the file; `order` says which is which.

        Args:
            path: The file.
            lowercase: Whether it is a vocabulary of small letters without accents ("uncased").
        """
        lines = list(read_lines(path))
        missing = [s for s in FILE_SPECIAL if s not in lines]
        if missing:
            raise FileFormatError(f"{Path(path).name} is not a vocabulary of BERT: it has no {', '.join(missing)}.")
        pieces = [p for p in lines if p not in FILE_SPECIAL]
        return cls(pieces, BERT, lowercase=lowercase, strip_accents=lowercase)

    def order(self, path: "str | Path") -> list[int]:
        """For each number of this tokenizer, the line of the `vocab.txt` it was made from: rows of an embedding."""
        lines = {piece: number for number, piece in enumerate(read_lines(path))}
        return [lines[p] for p in (*self.pieces, *FILE_SPECIAL)]

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, special_tokens: Iterable[str] = (), lowercase: bool = False,
        learner: str = "keras_nlp",
    ) -> "WordPieceTokenizer":  # fmt: skip
        """Pieces of texts.

        Args:
            texts: Strings.
            vocab_size: The most tokens there may be, special ones included.
            special_tokens: Of `pad`, `start`, `end`, `unknown`.
            lowercase: Whether capitals become small.
            learner: `"keras_nlp"` is keras-nlp's own, which takes its time and often stays below `vocab_size`;
                `"tokenizers"` is Hugging Face's, which is fast and fills the size.
        """
        from kerastf.text import learners

        if learner not in ("keras_nlp", "tokenizers"):
            raise ConfigError(f"`learner` must be 'keras_nlp' or 'tokenizers'. Received: learner={learner!r}")
        special_tokens = tuple(special_tokens)
        cleaned = [cls.clean(t, lowercase) for t in texts]
        for text in cleaned:
            utf8(text)
        learn = learners.keras_nlp_pieces if learner == "keras_nlp" else learners.tokenizers_pieces
        pieces = learn(cleaned, vocab_size - len(special_tokens))
        habits = cls.habits(cleaned)
        return cls(pieces, special_tokens, lowercase=lowercase, left=habits["left"], right=habits["right"])

    def encode(self, text: str) -> list[int]:
        text = self.clean(text, self.lowercase)
        utf8(text)
        if self.strip_accents:
            signs = unicodedata.normalize("NFD", text)
            text = "".join(c for c in signs if unicodedata.category(c) not in ("Mn", "Cc", "Cf") and c != "\ufffd")
        if self._tokenizer is None:
            import keras_nlp

            self._tokenizer = keras_nlp.tokenizers.WordPieceTokenizer(
                [*self.pieces, self.unknown], oov_token=self.unknown
            )
        numbers = [int(n) for n in self._tokenizer.tokenize(text)]
        if self.ordinary not in numbers:
            return numbers
        if self.unknown_id is None:
            raise InputError(
                "The tokenizer has no pieces for some word. Make it with special_tokens=('unknown',) to accept any. "
                f"Received: {short(text)}"
            )
        return [self.unknown_id if n == self.ordinary else n for n in numbers]

    def _spell(self, numbers: Sequence[int]) -> str:
        words: list[str] = []
        for piece in (self.pieces[n] for n in numbers):
            if len(piece) > 2 and piece.startswith("##"):
                words[-1:] = [(words[-1] if words else "") + piece[2:]]
            else:
                words.append(piece)
        return self.join(words)

    def stretches(self, text: str) -> Iterable[tuple[int, int]]:
        for m in STRETCH.finditer(text):
            start = m.start()
            for i in range(m.start(), m.end()):
                if is_mark(text[i]):
                    if start < i:
                        yield start, i
                    yield i, i + 1
                    start = i + 1
            if start < m.end():
                yield start, m.end()

    def label(self, number: int) -> str:
        return self.pieces[number] if 0 <= number < self.ordinary else super().label(number)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "pieces": list(self.pieces), "strip_accents": self.strip_accents}
