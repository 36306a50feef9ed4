"""Tokenizers of letters and of a few word pieces, with the special tokens of encoders."""

from kerastf import text

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LETTER = text.CharacterTokenizer(LETTERS, special_tokens=text.BERT)
PAD, UNKNOWN, CLASS, SEPARATOR, MASK = range(26, 31)
PIECES = text.WordPieceTokenizer(
    ["the", "cat", "##s", "sat", "on", "mat", ".", ",", "dog", "'", "s", "un", "##aff", "##able"], text.BERT,
    lowercase=True,
)  # fmt: skip
