"""Tokenizers: round trips by property, training from a corpus, JSON forms, and what mistakes are told."""

import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import told

import kerastf
from kerastf import data, text
from kerastf.errors import ConfigError, FileFormatError, InputError

TEXTS = [
    "It's a dog (a big one), isn't it? Don't!",
    "Est-ce que l'eau est froide ? Oui, « très » froide !",
    "the cat sat on the mat; the dog lay on the cat's mat.",
    "counting: one, two, three... and 3.14 = 20 % of 15.70 €",
    "Ça coûte 20 € ; c'est cher, n'est-ce pas ?",
] * 3
OPTIONS = {"character": {}, "byte": {}, "word": {}, "wordpiece": {"learner": "tokenizers"}, "bpe": {}}


@pytest.fixture(scope="module", params=list(OPTIONS))
def tokenizer(request):
    return text.train(request.param, TEXTS, vocab_size=330, **OPTIONS[request.param])


def again(tokenizer):
    return text.from_config(json.loads(json.dumps(tokenizer.get_config())))


def test_special_tokens_follow_the_ordinary_ones(tokenizer):
    n = tokenizer.ordinary
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id, tokenizer.unknown_id) == (n, n + 1, n + 2, n + 3)
    assert tokenizer.vocab_size == n + 4 <= 330
    assert [tokenizer.label(n + i) for i in range(4)] == ["<pad>", "<start>", "<end>", "<unknown>"]


def test_configurations_from_before_the_start_token_mean_the_same():
    old = text.from_config({"name": "character", "special_tokens": ["pad", "end", "unknown"], "characters": "ab"})
    assert (old.pad_id, old.start_id, old.end_id, old.unknown_id) == (2, None, 3, 4)


def test_json_round_trip_is_exact(tokenizer):
    copy = again(tokenizer)
    assert type(copy) is type(tokenizer)
    assert copy.get_config() == tokenizer.get_config()
    for line in TEXTS:
        assert copy.encode(line) == tokenizer.encode(line)


def test_texts_it_was_trained_on_come_back(tokenizer):
    """Whole where spacing is kept; word for word elsewhere, as the smallest unit says."""
    for line in TEXTS[:5]:
        numbers = tokenizer.encode(line)
        assert tokenizer.unknown_id not in numbers
        back = tokenizer.decode([tokenizer.start_id, *numbers, tokenizer.end_id, tokenizer.pad_id])
        if tokenizer.name in ("word", "wordpiece"):
            assert re.sub(r"\s", "", back) == re.sub(r"\s", "", line)
            assert tokenizer.encode(back) == numbers
        else:
            assert back == line


@settings(max_examples=150, deadline=None)
@given(line=st.one_of(st.text(), st.text(alphabet="aBéà '\u2019-.,«»()[]#_^€İẞ̀ \u202f\t\n09")))
def test_any_text_has_tokens_and_the_tokens_are_stable(tokenizer, line):
    numbers = tokenizer.encode(line)
    assert all(isinstance(n, int) and 0 <= n < tokenizer.vocab_size for n in numbers)
    back = tokenizer.decode(numbers)
    if tokenizer.name in ("byte", "bpe"):
        assert back == line
    elif tokenizer.unknown_id not in numbers:
        assert tokenizer.encode(back) == numbers


WORDS = st.lists(st.text(alphabet="abcdéÉß", min_size=1, max_size=6), min_size=1, max_size=6)


@settings(max_examples=80, deadline=None)
@given(
    words=WORDS,
    gaps=st.lists(st.sampled_from([" ", "  ", "\t", ", ", " (", ") ", "-", "'", "… ", " « "]), min_size=6, max_size=6),
    lowercase=st.booleans(),
)
def test_word_round_trip_for_a_vocabulary_of_its_own(words, gaps, lowercase):
    line = "".join(w + g for w, g in zip(words, gaps, strict=False))
    tokenizer = text.train("word", [line], special_tokens=(), lowercase=lowercase)
    numbers = tokenizer.encode(line)
    want = tokenizer.clean(line, lowercase).replace(" ", "")
    assert tokenizer.decode(numbers).replace(" ", "") == want
    assert tokenizer.encode(tokenizer.decode(numbers)) == numbers
    assert again(tokenizer).decode(numbers) == tokenizer.decode(numbers)


@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.integers(0, 200), max_size=20))
def test_any_tokens_have_a_text(tokenizer, numbers):
    assert isinstance(tokenizer.decode([n % tokenizer.vocab_size for n in numbers]), str)


@pytest.mark.parametrize("rare", ["xylophone " * 2000, "xylophone\u2585xylophone"])
def test_sentence_pieces_are_learnt_from_every_text(rare):
    tokenizer = text.train("sentencepiece", ["the cat sat on the mat", rare], vocab_size=40)
    assert tokenizer.decode(tokenizer.encode("the xylophone")) == "the xylophone"


def test_marks_are_spaced_as_in_the_training_text():
    for line in ["Vraiment ? Oui, « oui » !", "Really? Yes, “yes” (yes)!"]:
        for name in ("word", "wordpiece"):
            tokenizer = text.train(name, [line] * 3, **OPTIONS[name])
            assert tokenizer.decode(tokenizer.encode(line)) == line


def test_words_by_frequency():
    tokenizer = text.train("word", ["b b b a a c C"], vocab_size=7)
    assert tokenizer.words == ["b", "a", "C"]  # equal counts by their order in Unicode
    assert text.train("word", ["b b b a a c C"], lowercase=True, min_count=2).words == ["b", "a", "c"]
    assert tokenizer.encode("a d") == [1, tokenizer.unknown_id]
    assert text.train("word", ["l'eau n'est-ce"]).words == ["ce", "eau", "est-", "l'", "n'"]


def test_word_pieces_are_the_longest_that_fit():
    tokenizer = text.WordPieceTokenizer(["un", "##aff", "##able", "##a", "affable", "."], ("unknown",))
    assert tokenizer.encode("unaffable affable. x") == [0, 1, 2, 4, 5, 6]
    assert tokenizer.decode([0, 1, 2, 4, 5, 6]) == "unaffable affable."
    assert tokenizer.decode([1, 2]) == "affable"  # a piece that goes on with nothing
    assert tokenizer.label(1) == "##aff"


def test_word_pieces_learnt_by_keras_nlp():
    tokenizer = text.train("wordpiece", ["bat sat pat mat rat"], vocab_size=13)
    assert tokenizer.pieces == ["a", "b", "m", "p", "r", "s", "t", "##at"] or tokenizer.vocab_size <= 13
    assert tokenizer.decode(tokenizer.encode("rat bat")) == "rat bat"


def test_byte_pairs_are_merged_in_order():
    tokenizer = text.BytePairTokenizer(["a b", "ab c", "Ġ ab"])
    assert tokenizer.encode("abc ab c") == [257, 258, 32, 99]
    assert tokenizer.tokens[97] == "a" and tokenizer.vocab_size == 259
    assert tokenizer.decode([257, 258]) == "abc ab"


def test_byte_pairs_begin_with_the_most_frequent():
    assert text.train("bpe", ["xy xy xy", "xyz xyz"], vocab_size=261).merges[0] == "x y"


def test_the_alphabet_of_byte_pairs_is_gpt2s():
    from keras_hub.src.tokenizers.byte_pair_tokenizer import bytes_to_unicode

    from kerastf.text.bpe import ALPHABET

    assert {b[0]: c for b, c in zip(*bytes_to_unicode(), strict=True)} == dict(enumerate(ALPHABET))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_file_trains_as_its_lines_do(name, tmp_path):
    plain, packed = tmp_path / "texts.txt", tmp_path / "texts.txt.gz"
    plain.write_text("\n".join(TEXTS), encoding="utf-8")
    packed.write_bytes(gzip.compress("\r\n".join(TEXTS).encode()))
    want = text.train(name, TEXTS, 300, **OPTIONS[name]).get_config()
    assert text.train(name, str(plain), 300, **OPTIONS[name]).get_config() == want
    assert text.train(name, packed, 300, **OPTIONS[name]).get_config() == want


def test_batches(tokenizer):
    batch = tokenizer.encode_batch(["the cat", "the"], max_length=3)
    assert batch.dtype == np.int32 and batch.shape[0] == 2 and batch.shape[1] <= 3
    for row, line in zip(batch, ["the cat", "the"], strict=True):
        numbers = tokenizer.encode(line)[:3]
        assert row.tolist() == numbers + [tokenizer.pad_id] * (batch.shape[1] - len(numbers))


@given(rows=st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), more=st.integers(0, 3))
def test_padding_adds_only_padding(rows, more):
    length = max(map(len, rows), default=0) + more
    filled = text.pad(rows, 99, length)
    assert filled.shape == (len(rows), length) and filled.dtype == np.int32
    assert [[n for n in row if n != 99] for row in filled.tolist()] == rows


def test_tokenizers_travel_with_a_model(tmp_path):
    tokenizer = text.train("wordpiece", TEXTS, 120, **OPTIONS["wordpiece"])
    model = kerastf.create_model("gpt", tokenizer=tokenizer, max_length=16, dim=8, num_layers=1, num_heads=2)
    model.save(tmp_path / "model.keras")
    loaded = kerastf.load_model(tmp_path / "model.keras")
    assert loaded.tokenizer.get_config() == tokenizer.get_config()
    assert loaded.generate("the cat", max_length=8).startswith("the cat")


def test_keras_nlp_comes_only_when_it_is_used():
    code = (
        "import sys; from kerastf import text; t = text.train('word', ['a b']); t.encode('a');"
        "text.from_config({'name': 'bpe', 'merges': ['a b']}).decode([256]);"
        "text.from_config({'name': 'wordpiece', 'pieces': ['a']}).decode([0]);"
        "print([m for m in ('keras_nlp', 'keras_hub', 'keras', 'tensorflow', 'tokenizers') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


MISTAKES = [
    (lambda: text.train("wordpeice", ["a"]), ConfigError, "There is no tokenizer `wordpeice`. Did you mean `wordpiece` or `word`? Tokenizers: character, byte, word, wordpiece, bpe, word_characters, sentencepiece."),
    (lambda: text.train("word", ["a"], special_tokens=("pad", "bos")), ConfigError, "`special_tokens` are distinct names of pad, start, end, unknown, class, separator, mask. Received: special_tokens=('pad', 'bos')"),
    (lambda: text.train("word", ["a"], learner="x"), ConfigError, "The training of the tokenizer `word` has no option learner. Options: min_count, lowercase. Received: ['learner']"),
    (lambda: text.train("word", ["a"], min_count=0), ConfigError, "`min_count` must be at least 1. Received: min_count=0"),
    (lambda: text.train("wordpiece", ["a"], learner="x"), ConfigError, "`learner` must be 'keras_nlp' or 'tokenizers'. Received: learner='x'"),
    (lambda: text.train("bpe", ["a"], vocab_size=100), ConfigError, "`vocab_size` must hold the 256 bytes and 4 special tokens. Received: vocab_size=100"),
    (lambda: text.train("word", ["a"], vocab_size=4), ConfigError, "`vocab_size` must be more than the 4 special tokens. Received: vocab_size=4"),
    (lambda: text.train("word", []), InputError, "A tokenizer is trained on texts that are not empty. Received: texts=[]"),
    (lambda: text.train("word", [" ", ""]), InputError, "A tokenizer is trained on texts that are not empty. Received: texts=[' ', '']"),
    (lambda: text.train("word", ["a", 3]), InputError, "A tokenizer encodes one string. Received: 3"),
    (lambda: text.train("word", "no such file"), FileFormatError, "There is no text file no such file. Received: path='no such file'"),
    (lambda: text.WordTokenizer(["a b"]), ConfigError, "Each of `words` must be one word or mark as the tokenizer cuts them. Received: 'a b'"),
    (lambda: text.WordTokenizer(["a", "a"]), ConfigError, "`words` must be a list of distinct strings. Received: words=['a', 'a']"),
    (lambda: text.WordTokenizer(["a"], left="ab"), ConfigError, "`left` must be a string of punctuation marks. Received: left='ab'"),
    (lambda: text.WordTokenizer(["a"]).encode("a b"), InputError, "The tokenizer has no word 'b'; it knows 1 words. Make it with special_tokens=('unknown',) to accept others. Received: 'a b'"),
    (lambda: text.WordPieceTokenizer(["a"]).encode("a b"), InputError, "The tokenizer has no pieces for some word. Make it with special_tokens=('unknown',) to accept any. Received: 'a b'"),
    (lambda: text.WordPieceTokenizer(["[UNK]"]), ConfigError, "`pieces` has no [UNK]; give special_tokens=('unknown',) instead."),
    (lambda: text.BytePairTokenizer(["ab c"]), ConfigError, "A merge is 'left right', where both are bytes or results of earlier merges. Received: 'ab c'"),
    (lambda: text.BytePairTokenizer("a b"), ConfigError, "`merges` must be a list of strings 'left right'. Received: merges='a b'"),
    (lambda: text.ByteTokenizer().encode("\ud800"), InputError, "The text holds half a character (a lone surrogate). Received: '\\ud800'"),
    (lambda: text.BytePairTokenizer([]).encode(b"a"), InputError, "A tokenizer encodes one string. Received: b'a'"),
    (lambda: text.BytePairTokenizer([]).decode([256]), InputError, "A token must be in [0, 256). Received: 256"),
    (lambda: text.ByteTokenizer().encode_batch("ab"), InputError, "A batch is a list of strings; `encode` takes one string. Received: 'ab'"),
    (lambda: text.ByteTokenizer().encode_batch(["ab", "c"]), InputError, "Rows of different lengths need a padding token. Make the tokenizer with special_tokens=('pad', ...). Received: pad_id=None"),
    (lambda: text.pad([[1, 2, 3]], 0, length=2), InputError, "A row has 3 tokens and `length` holds fewer. Cut it before. Received: length=2"),
    (lambda: text.from_config({"name": "bpe"}), ConfigError, "The tokenizer `bpe` cannot be made from these options: missing a required argument: 'merges'. Make one from texts with kerastf.text.train('bpe', texts). Received: []"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, kind, message = MISTAKES[number]
    assert told(kind, act) == message


def test_spans_where_cleaning_adds_as_much_as_it_leaves_out():
    tokenizer = text.WordPieceTokenizer(["a", "i", "##\u0307", "b", "##b"], ("unknown",), lowercase=True)
    assert tokenizer.encode_spans("\u200bİ b") == ([1, 2, 3], [(0, 2), (0, 2), (3, 4)])
    assert tokenizer.encode_spans("aB İ x") == ([0, 4, 1, 2, 5], [(0, 1), (1, 2), (3, 4), (3, 4), (5, 6)])
    words = text.WordTokenizer(["caf\u00e9", "-"], lowercase=True)
    assert words.encode_spans("CAF\u00c9--")[1] == [(0, 4), (4, 5), (5, 6)]


@pytest.mark.parametrize("special", [(), ("unknown",)])
def test_what_the_vocabulary_lacks_is_left_out(special):
    trained = text.train("sentencepiece", ["the cat sat on the mat"] * 3, vocab_size=14, special_tokens=())
    subword = text.SentencePieceTokenizer(trained.model, trained.pieces, special)
    for tokenizer, line, want in [
        (text.CharacterTokenizer("ab", special), "axb", [0, 1]), (text.WordTokenizer(["a"], special), "b a", [0]),
        (text.WordPieceTokenizer(["a", "##b"], special), "x ab xb a", [0, 1, 0]),
        (text.WordCharacterTokenizer(["aa", "cc"], special), "aa bb cc", [0, 1]),
        (text.BytePairTokenizer([]), "ab", [97, 98]), (subword, "the", subword.encode("the")),
    ]:  # fmt: skip
        assert tokenizer.encode_known(line) == want, tokenizer.name
        assert tokenizer.encode_known("") == [], tokenizer.name
    assert subword.decode(subword.encode_known("the ☃ cat")).split() == ["the", "cat"]
    with pytest.raises(InputError, match="encodes one string"):
        text.CharacterTokenizer("a").encode_known(3)


def test_windows_pass_over_texts_without_a_word():
    tokenizer = text.WordCharacterTokenizer(["aa", "bb", "cc"])
    feed = data.windows(["aa bb", " ", "", "dd cc"], tokenizer, window=1, subsample=0, length=3, shuffle=False)
    tokens, reach = (np.array(rows)[0].tolist() for rows in next(iter(feed)))
    assert tokens == [0, 0, 1, 2, 0] and reach == [[0, 1], [1, 0], [0, 0]]


def test_a_vocabulary_that_has_a_piece_twice(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "a", "c", "b"]))
    with pytest.raises(FileFormatError) as caught:
        text.WordPieceTokenizer.from_vocabulary(path)
    assert str(caught.value) == "vocab.txt has a piece twice: 'a' on lines 6 and 8; 'b' on lines 7 and 10."
    numbers = {p: n for n, p in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])}
    for wrong in ({"b": 7}, {"b": 5}):
        with pytest.raises(FileFormatError, match="a file must give each token a number: 0, 1, 2, ... without a gap"):
            text.WordPieceTokenizer.from_numbers({**numbers, **wrong}, "a file", lowercase=True)


def test_files_that_are_not_text(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfea")
    (tmp_path / "b.gz").write_bytes(b"plain")
    with pytest.raises(FileFormatError, match="a.txt is not UTF-8 text"):
        text.train("word", tmp_path / "a.txt")
    with pytest.raises(FileFormatError, match="b.gz is damaged or not a .gz file"):
        text.train("word", tmp_path / "b.gz")
