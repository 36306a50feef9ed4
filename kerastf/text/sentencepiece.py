"""SentencePiece: the tokenizer of MarianMT and many others, from a published model file."""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kerastf.errors import ConfigError, FileFormatError
from kerastf.text.base import Tokenizer, require_names, short, utf8

LANGUAGE = re.compile(r">>.+?<<")
LONGEST = 2**30  # bytes; SentencePiece passes over longer texts, by default over those of more than 4192
RESERVED = "\u2585"  # it passes over texts with this sign, too


class SentencePieceTokenizer(Tokenizer):
    """Pieces of sentences, spaces included, as a model file of SentencePiece cuts them.

    A code such as `>>fra<<` at the start of a text is one token where the vocabulary has it: it tells a model that
    translates into several languages which one.

    Args:
        model: The model file in base64, as `from_file` makes it.
        pieces: The ordinary pieces in the order of their numbers; None for those of the model file.
        special_tokens: By name, the numbers of the special tokens.
        names: By name, how files write the special tokens.

    References:
        - [Kudo and Richardson, 2018](https://arxiv.org/abs/1808.06226)
    """

    name = "sentencepiece"
    placed = True

    def __init__(
        self, model: str, pieces: Iterable[str] | None = None, special_tokens: "Iterable[str] | Mapping[str, int]" = (),
        names: Mapping[str, str] | None = None,
    ):  # fmt: skip
        import sentencepiece

        self.model = model
        self.names = dict(names or {})
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(
                model_proto=base64.b64decode(model, validate=True)
            )
        except (binascii.Error, RuntimeError, TypeError, ValueError):
            raise ConfigError(
                f"`model` must be a SentencePiece model in base64. Received: model={short(model)}"
            ) from None
        own = [self._processor.id_to_piece(i) for i in range(self._processor.get_piece_size())]
        self.ordered = pieces is not None
        self.pieces = own if pieces is None else require_names("pieces", pieces)
        self.numbers = {piece: k for k, piece in enumerate(self.pieces)}
        super().__init__(len(self.pieces), special_tokens)

    @classmethod
    def from_file(
        cls, path: "str | Path", numbers: Mapping[str, int] | None = None, special: Mapping[str, str] | None = None
    ) -> "SentencePieceTokenizer":
        """The tokenizer of a model file.

        Args:
            path: The file, `*.spm` or `*.model`.
            numbers: The number of each piece, special ones included; None for the model's own.
            special: By name, the pieces that are special.
        """
        try:
            model = base64.b64encode(Path(path).read_bytes()).decode("ascii")
        except OSError as error:
            raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from None
        special = dict(special or {})
        try:
            if numbers is None:
                numbers = {piece: k for k, piece in enumerate(cls(model).pieces)}
            places = {role: numbers[piece] for role, piece in special.items() if piece in numbers}
            pieces = [p for p in sorted(numbers, key=numbers.__getitem__) if numbers[p] not in places.values()]
            return cls(model, pieces, places, {role: p for role, p in special.items() if role in places})
        except ConfigError as error:
            raise FileFormatError(f"{Path(path).name} is no SentencePiece model that fits: {error}") from None

    @classmethod
    def train(
        cls, texts: Iterable[str], *, vocab_size: int, special_tokens: Iterable[str] = ()
    ) -> "SentencePieceTokenizer":
        """Pieces of texts, by SentencePiece itself.

        Args:
            texts: Strings of any length. The block `\u2585`, which SentencePiece reserves, is read as a space.
            vocab_size: How many tokens there are, special ones included; small texts may have no room for as many.
            special_tokens: Of `pad`, `start`, `end`, `unknown`.
        """
        import io

        import sentencepiece

        special_tokens, model = tuple(special_tokens), io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(t.replace(RESERVED, " ") for t in texts), model_writer=model,
                vocab_size=vocab_size - len(special_tokens), max_sentence_length=LONGEST, hard_vocab_limit=False,
                bos_id=-1, eos_id=-1, minloglevel=2,
            )  # fmt: skip
        except RuntimeError as error:
            raise ConfigError(f"SentencePiece cannot learn these texts: {str(error).splitlines()[-1]}") from None
        return cls(base64.b64encode(model.getvalue()).decode("ascii"), None, special_tokens)

    def encode(self, text: str) -> list[int]:
        found, unknown = self._cut(text), self.unknown_id
        if unknown is None and (own := self._own_unknown()) in self.numbers:
            unknown = self.ids[self.numbers[own]]
        numbers = [self.numbers.get(p) for p in found]
        if unknown is None and None in numbers:
            raise ConfigError(
                f"The vocabulary has no piece {found[numbers.index(None)]!r}, and no token for the unknown."
            )
        return [unknown if k is None else self.ids[k] for k in numbers]  # type: ignore[misc]

    def encode_known(self, text: str) -> list[int]:
        return [self.ids[self.numbers[p]] for p in self._cut(text) if p in self.numbers and p != self._own_unknown()]

    def _cut(self, text: str) -> list[str]:
        """The pieces of a text; what the model does not know as it is written."""
        utf8(text)
        code = LANGUAGE.match(text)
        found = []
        if code and code.group() in self.numbers:
            found, text = [code.group()], text[code.end() :]
        return found + self._processor.encode(text, out_type=str)

    def _own_unknown(self) -> str:
        return self._processor.id_to_piece(self._processor.unk_id())

    def _spell(self, numbers: Sequence[int]) -> str:
        return self._processor.decode_pieces([self.pieces[k] for k in numbers])

    def label(self, number: int) -> str:
        index = self.index(number)
        return super().label(number) if index is None else self.pieces[index].replace("\u2581", " ")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(), "model": self.model, "pieces": list(self.pieces) if self.ordered else None,
            "names": dict(self.names),
        }  # fmt: skip
