"""Word pieces: BERT's tokenizer, trained here or read from a published vocabulary."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.text.base import BERT, read_lines, require_counted, require_names, short, utf8
from kerastf.text.words import LEFT, RIGHT, STRETCH, MarkedTokenizer, is_mark

LONGEST_WORD = 100  # BERT gives up on longer ones
FILE_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # how a file writes those of `BERT`


class WordPieceTokenizer(MarkedTokenizer):
    """Words, and pieces of rarer words: BERT's WordPiece.

    A word is cut into the longest piece that the vocabulary has, then the longest of the rest; a piece that goes on
    with a word begins with `##`. Marks and Chinese signs stand alone, control characters are passed over. A word of
    which some sign is not in the vocabulary, or of more than 100 signs, is unknown.

    Args:
        pieces: The vocabulary, each piece once.
        special_tokens: Of `pad`, `start`, `end`, `unknown`, ...; a dict says their numbers. Without `unknown`, an
            unknown word is an error.
        lowercase: Whether capitals become small.
        left: Marks written without a space before them.
        right: Marks written without a space after them.
        strip_accents: Whether `é` is read as `e`, as BERT does with its vocabulary of small letters.
        compose: Whether a text is put into Unicode's composed form first. BERT does not.
        chinese: Whether every Chinese sign stands alone.
        controls: Whether control characters are read like other signs, instead of being passed over.

    References:
        - [Schuster and Nakajima, 2012](https://research.google/pubs/pub37842/)
    """

    name = "wordpiece"
    placed = True
    unknown = "[UNK]"  # never a piece: its brackets are marks

    def __init__(
        self, pieces: Iterable[str], special_tokens: "Iterable[str] | Mapping[str, int]" = (), *,
        lowercase: bool = False, left: str = LEFT, right: str = RIGHT, strip_accents: bool = False,
        compose: bool = True, chinese: bool = True, controls: bool = False,
    ):  # fmt: skip
        self.pieces = require_names("pieces", pieces)
        if self.unknown in self.pieces:
            raise ConfigError(f"`pieces` has no {self.unknown}; give special_tokens=('unknown',) instead.")
        super().__init__(len(self.pieces), special_tokens, lowercase, left, right)
        self.strip_accents = strip_accents
        self.compose = compose
        self.chinese = chinese
        self.controls = controls
        self._tokenizer: Any = None

    @classmethod
    def from_vocabulary(
        cls, path: "str | Path", *, lowercase: bool = True, strip_accents: bool | None = None, chinese: bool = True
    ) -> "WordPieceTokenizer":
        """The tokenizer of a `vocab.txt` as BERT's have it: one piece per line, `[PAD]`, `[UNK]`, ... among them.

        Every piece keeps its number, that of its line from 0 on.

        Args:
            path: The file.
            lowercase: Whether it is a vocabulary of small letters ("uncased").
            strip_accents: Whether accents are left out; None for where capitals are.
            chinese: Whether every Chinese sign stands alone.
        """
        numbers: dict[str, int] = {}
        twice = []
        for number, piece in enumerate(read_lines(path)):
            if numbers.setdefault(piece, number) != number:
                twice.append(f"{short(piece)} on lines {numbers[piece] + 1} and {number + 1}")
        if twice:  # which of its numbers a piece has would be anyone's guess
            raise FileFormatError(f"{Path(path).name} has a piece twice: {'; '.join(twice[:8])}.")
        habits: dict[str, Any] = {"strip_accents": strip_accents, "chinese": chinese}
        return cls.from_numbers(numbers, Path(path).name, lowercase=lowercase, **habits)

    @classmethod
    def from_numbers(
        cls, numbers: Mapping[str, int], source: str, *, lowercase: bool, strip_accents: bool | None = None,
        compose: bool = False, chinese: bool = True, controls: bool = False,
    ) -> "WordPieceTokenizer":  # fmt: skip
        """The tokenizer of a vocabulary in which every piece has its number.

        Args:
            numbers: The number of each piece, special ones included.
            source: What to call it in messages.
            lowercase: Whether capitals become small.
            strip_accents: Whether accents are left out; None for where capitals are.
            compose: Whether a text is put into Unicode's composed form first.
            chinese: Whether every Chinese sign stands alone.
            controls: Whether control characters are read.
        """
        require_counted(numbers, source)
        missing = [s for s in FILE_SPECIAL if s not in numbers]
        if missing:
            raise FileFormatError(f"{source} is not a vocabulary of BERT: it has no {', '.join(missing)}.")
        places = {role: numbers[s] for role, s in zip(BERT, FILE_SPECIAL, strict=True)}
        pieces = [p for p in sorted(numbers, key=numbers.__getitem__) if p not in FILE_SPECIAL]
        stripped = lowercase if strip_accents is None else strip_accents
        return cls(
            pieces, places, lowercase=lowercase, strip_accents=stripped, compose=compose, chinese=chinese,
            controls=controls,
        )  # fmt: skip

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
        marks = cls.habits(cleaned)
        return cls(pieces, special_tokens, lowercase=lowercase, left=marks["left"], right=marks["right"])

    def encode(self, text: str) -> list[int]:
        found = self._cut(text)
        if self.ordinary in found and self.unknown_id is None:
            raise InputError(
                "The tokenizer has no pieces for some word. Make it with special_tokens=('unknown',) to accept any. "
                f"Received: {short(text)}"
            )
        ids = self.ids
        return [self.unknown_id if k == self.ordinary else ids[k] for k in found]  # type: ignore[misc]

    def encode_known(self, text: str) -> list[int]:
        ids = self.ids
        return [ids[k] for k in self._cut(text) if k != self.ordinary]

    def _cut(self, text: str) -> list[int]:
        """The pieces of a text, by their order; the one behind the last stands for an unknown word."""
        utf8(text)
        return self._made().encode(self._composed(text)).ids

    def cleaned(self, text: str) -> str:
        return "".join(self._made().normalizer.normalize_str(self._composed(text)).split())

    def _composed(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self.compose else text

    def _made(self) -> Any:
        if self._tokenizer is None:
            self._tokenizer = self._make()
        return self._tokenizer

    def _make(self) -> Any:
        # Not keras-nlp's own, which cuts words otherwise than BERT (decision 0014).
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        numbers = {piece: k for k, piece in enumerate([*self.pieces, self.unknown])}
        made = Tokenizer(models.WordPiece(numbers, unk_token=self.unknown, max_input_chars_per_word=LONGEST_WORD))
        made.normalizer = normalizers.BertNormalizer(
            clean_text=not self.controls, handle_chinese_chars=self.chinese, strip_accents=self.strip_accents,
            lowercase=self.lowercase,
        )  # fmt: skip
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return made

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
        index = self.index(number)
        return super().label(number) if index is None else self.pieces[index]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(), "pieces": list(self.pieces), "strip_accents": self.strip_accents,
            "compose": self.compose, "chinese": self.chinese, "controls": self.controls,
        }  # fmt: skip
