"""Batches for tasks of encoders: labels, tags, questions; and mistakes in all batches for encoders."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import told
from small_tokenizers import CLASS, LETTER, PAD, PIECES, SEPARATOR

from kerastf import data, text
from kerastf.errors import ConfigError, FileFormatError, InputError

# --- labels and tags


def test_labelled_pairs_and_names():
    options = {"batch_size": 2, "max_length": 8, "classes": ["no", "yes"], "shuffle": False}
    ((x, y),) = data.labelled([("ab", "c"), ("d", "ef")], ["yes", "no"], LETTER, **options).as_numpy_iterator()
    assert y.tolist() == [1, 0]
    assert x["tokens"].tolist() == [
        [CLASS, 0, 1, SEPARATOR, 2, SEPARATOR, PAD, PAD], [CLASS, 3, SEPARATOR, 4, 5, SEPARATOR, PAD, PAD],
    ]  # fmt: skip
    assert x["segments"].tolist() == [[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 0, 0]]
    (x,) = data.labelled(["ab"], None, LETTER, batch_size=2, max_length=8).as_numpy_iterator()
    assert sorted(x) == ["segments", "tokens"]


def test_long_texts_are_cut():
    ((x, _),) = data.labelled(["a" * 50], [0], LETTER, batch_size=1, max_length=8).as_numpy_iterator()
    assert x["tokens"].tolist() == [[CLASS, *[0] * 6, SEPARATOR]]


CLASSES = ["O", "B-X", "I-X"]


def test_tags_stand_on_first_pieces_and_come_back():
    words = [["The", "unaffable", "cats", "."], ["dogs", "\u200b", "sat"]]
    tags = [["O", "B-X", "I-X", "O"], ["B-X", "O", "B-X"]]
    options = {"batch_size": 2, "max_length": 9}
    ((x, y),) = data.tagged(words, tags, PIECES, classes=CLASSES, shuffle=False, **options).as_numpy_iterator()
    assert PIECES.decode(x["tokens"][0]) == "the unaffable cats."
    assert y.tolist() == [[-1, 0, 1, -1, -1, 2, -1, 0, -1], [-1, 1, -1, 0, 2 - 1, -1, -1, -1, -1]]
    scores = np.eye(3)[np.where(y < 0, 2, y)]
    assert data.word_tags(scores, words, PIECES, classes=CLASSES) == tags
    # What was cut off is outside.
    assert data.word_tags(scores[:1, :6], words[:1], PIECES, classes=CLASSES) == [["O", "B-X", "O", "O"]]


# --- questions


@settings(max_examples=100, deadline=None)
@given(line=st.text(alphabet="thecatsmo .,'\u2019()é_\t\nXß", max_size=40))
def test_spans_of_word_pieces(line):
    numbers, spans = PIECES.encode_spans(line)
    assert numbers == PIECES.encode(line)
    for number, (start, end) in zip(numbers, spans, strict=True):
        if number < PIECES.ordinary and line[start:end].isascii():
            piece = PIECES.pieces[number].removeprefix("##")
            assert piece in line[start:end].lower()
        assert 0 <= start < end <= len(line)


CONTEXT = "The cat sat on the mat. The dog's cats, unaffable cats, sat on the dog. " * 4


def record(answer, start=None, context=CONTEXT, **more):
    start = context.index(answer) if start is None else start
    return {
        "id": "1", "question": "the cat?", "context": context, "answers": [{"text": answer, "answer_start": start}],
        **more,
    }  # fmt: skip


def perfect(dataset, max_length):
    """Scores that say nothing but the labels."""
    scores = []
    for _, y in dataset.as_numpy_iterator():
        for start, end in y:
            row = np.zeros((max_length, 2))
            row[start, 0] = row[end, 1] = 5.0
            scores.append(row)
    return np.array(scores)


@pytest.mark.parametrize(("max_length", "stride"), [(128, 64), (32, 8), (24, 15)])
def test_answers_come_back_to_the_character(max_length, stride):
    # Each place of each answer, also those that only a later window holds.
    starts = [i for i in range(len(CONTEXT)) if CONTEXT.startswith("cats, unaffable", i)]
    records = [record("cats, unaffable", s) for s in starts] + [record("on the mat"), record("dog's")]
    options = {"max_length": max_length, "stride": stride}
    made = data.questions(records, PIECES, batch_size=4, shuffle=False, **options)
    assert all(x["tokens"].shape[1] == max_length for x, _ in made.as_numpy_iterator())
    found = data.answers(perfect(made, max_length), records, PIECES, **options)
    for got, asked in zip(found, records, strict=True):
        want = asked["answers"][0]
        assert (got["text"], got["start"]) == (want["text"], want["answer_start"])
        assert CONTEXT[got["start"] : got["end"]] == got["text"]


def test_an_answer_starts_before_it_ends_and_lies_in_the_context():
    records = [record("mat")]
    options = {"max_length": 128, "stride": 64}
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(1, 128, 2))
    scores[0, :6] += 100  # the question and the class token
    scores[0, 110:] += 100  # padding
    (found,) = data.answers(scores, records, PIECES, max_answer=3, **options)
    tokens, spans = PIECES.encode_spans(CONTEXT)
    first = len(PIECES.encode("the cat?")) + 2
    best = max(
        ((scores[0, first + i, 0] + scores[0, first + j, 1], i, j) for i in range(len(tokens)) for j in range(i, min(i + 3, len(tokens)))),
    )  # fmt: skip
    assert (found["start"], found["end"]) == (spans[best[1]][0], spans[best[2]][1])
    assert found["score"] == pytest.approx(best[0])


def test_windows_without_the_answer_point_at_the_class_token():
    made = data.questions([record("mat")], PIECES, batch_size=99, max_length=24, stride=8, shuffle=False)
    ((x, y),) = made.as_numpy_iterator()
    assert len(y) > 4 and (y[0] > 0).all() and (y[-1] == 0).all()
    assert (x["segments"].max(axis=1) == 1).all()


def labels(records):
    made = data.questions(records, PIECES, batch_size=9, max_length=128, stride=64, shuffle=False)
    return [tuple(row) for _, y in made.as_numpy_iterator() for row in y.tolist()]


def test_no_answer_and_answers_as_columns():
    start = CONTEXT.index("mat")
    (plain,) = labels([record("mat")])
    assert min(plain) > 0
    columns = {"text": ["mat", "on the mat"], "answer_start": [start, start - 7]}
    nothing = {"text": [], "answer_start": []}
    assert labels([record("mat", answers=a) for a in (columns, [], nothing)]) == [plain, (0, 0), (0, 0)]
    given = [{**record("mat", answers=a), "id": str(n)} for n, a in enumerate(([], columns))]
    found = data.load(given, task="span", length=128, stride=64, batch_size=2, valid=0, tokenizer=PIECES)
    assert next(iter(found.train.batches.once()))[1].tolist() == [[0, 0], list(plain)]


@pytest.mark.parametrize("wrong", [None, "mat", ["mat"], [{"text": "mat"}], {"text": ["mat"], "answer_start": []}, 5])
def test_answers_of_another_form_name_their_record(wrong):
    assert told(InputError, lambda: labels([record("mat"), record("mat", answers=wrong)])) == (
        "Answers are a list of {'text', 'answer_start'}, or a dict of both as lists; what has no answer has an empty "
        f"list. Received: {wrong!r} in record 1"
    )


def test_squad_files(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(
        json.dumps(
            {
                "data": [
                    {
                        "title": "t",
                        "paragraphs": [
                            {
                                "context": "a b",
                                "qas": [
                                    {
                                        "id": "x",
                                        "question": "q",
                                        "answers": [{"text": "b", "answer_start": 2, "more": 1}],
                                    }
                                ],
                            }
                        ],
                    }
                ]
            }
        )
    )
    assert data.read_squad(path) == [
        {"id": "x", "question": "q", "context": "a b", "answers": [{"text": "b", "answer_start": 2}]}
    ]
    want, raw = data.read_squad(path), path.read_bytes()
    path.write_bytes(b"\xef\xbb\xbf" + raw)
    (tmp_path / "squad.json.gz").write_bytes(gzip.compress(raw))
    assert data.read_squad(path) == data.read_squad(tmp_path / "squad.json.gz") == want
    path.write_text('{"data": [{"title": "t"}]}')
    with pytest.raises(FileFormatError, match=r"^squad.json is not in SQuAD's format \(KeyError: 'paragraphs'\).$"):
        data.read_squad(path)


# --- mistakes

SIZES = {"batch_size": 2, "max_length": 16}
MISTAKES = [
    (lambda: data.pack(["a", "b", "c"], LETTER, max_length=9), InputError, "A row has one or two segments. Received: 3 segments"),
    (lambda: data.pack(["a", ""], LETTER, max_length=9), InputError, "A segment has at least one token. Received: segments=['a', '']"),
    (lambda: data.pack(["a", "b"], LETTER, max_length=4), InputError, "`max_length` must be at least 5. Received: max_length=4"),
    (lambda: data.masked_text(["", " "], PIECES, **SIZES), InputError, "There is no text to make batches of: all texts are empty."),
    (lambda: data.masked_text(["a"], text.CharacterTokenizer("a", ("pad", "mask")), **SIZES), ConfigError, "`tokenizer` needs the special tokens pad, class, separator, mask. Train it with special_tokens=text.BERT. Received: special_tokens=('pad', 'mask')"),
    (lambda: data.masked_text(["a"], None, **SIZES), ConfigError, "`tokenizer` is needed. Received: tokenizer=None"),
    (lambda: data.masked_text(["a"], LETTER, mask_rate=1.5, **SIZES), InputError, "`mask_rate` must be between 0 and 1. Received: mask_rate=1.5"),
    (lambda: data.masked_text(["a"], LETTER, batch_size=0), InputError, "`batch_size` must be at least 1. Received: batch_size=0"),
    (lambda: data.masked_text(["abc"], LETTER, drop_remainder=True, **SIZES), InputError, "There is no whole batch. Give more rows, a smaller batch_size, or drop_remainder=False."),
    (lambda: data.sentence_pairs([["a", "b"]], LETTER, **SIZES), InputError, "Next sentences need at least two documents, and one of two sentences. Received: 1 documents that are not empty, 1 of two sentences"),
    (lambda: data.sentence_pairs(["a", "b"], LETTER, **SIZES), InputError, "A document is a list of sentences. Received: 'a'"),
    (lambda: data.labelled(["a", ("a", "b", "c")], [0, 1], LETTER, **SIZES), InputError, "A row has one or two segments. Received: 3 segments"),
    (lambda: data.labelled(["a", " "], [0, 1], LETTER, **SIZES), InputError, "A segment has at least one token. Received: segments=[' ']"),
    (lambda: data.labelled(["a"], [2], LETTER, classes=2, **SIZES), InputError, "Each label must be in [0, 2). Received: 2"),
    (lambda: data.labelled(["a"], [-1], LETTER, **SIZES), InputError, "Each label must be at least 0. Received: -1"),
    (lambda: data.labelled(["a"], ["good"], LETTER, classes=["bad", "fair"], **SIZES), InputError, "Each label must be one of `classes`, which are bad, fair. Received: 'good'"),
    (lambda: data.labelled(["a"], ["good"], LETTER, **SIZES), InputError, "Each label must be one of `classes`, which are not given. Received: 'good'"),
    (lambda: data.labelled(["a"], [0, 1], LETTER, **SIZES), InputError, "Each text has a label. Received: 1 texts, 2 labels"),
    (lambda: data.labelled("a", [0], LETTER, **SIZES), InputError, "Texts are a list of strings or pairs. Received: 'a'"),
    (lambda: data.labelled([], [], LETTER, **SIZES), InputError, "There is no text to make batches of."),
    (lambda: data.tagged(["a b"], [[0, 0]], LETTER, **SIZES), InputError, "A sentence to tag is a list of words. Received: 'a b'"),
    (lambda: data.tagged([["a"]], [[0, 0]], LETTER, **SIZES), InputError, "Each word has a tag. Received: 1 words, 2 tags"),
    (lambda: data.tagged([[]], [[]], LETTER, **SIZES), InputError, "A sentence to tag has at least one word. Received: []"),
    (lambda: data.word_tags(np.zeros((1, 4, 2)), [["a"], ["b"]], LETTER, classes="OB"), InputError, "Each sentence has a row of predictions (rows, T, N). Received: 2 sentences, predictions of shape (1, 4, 2)"),
    (lambda: data.questions([record("cat", 0)], PIECES, **SIZES), InputError, "A question of 3 tokens leaves 10 to its context, fewer than the stride. Received: max_length=16, stride=128"),
    (lambda: data.questions([record("cat", 0)], PIECES, stride=5, **SIZES), InputError, "An answer must stand in its context at `answer_start`. Received: {'text': 'cat', 'answer_start': 0}, where the context has 'The'"),
    (lambda: data.questions([record("", 0, question=" ")], PIECES, stride=5, **SIZES), InputError, "A record has a question and a context that are not empty. Record 0 lacks: ['question']"),
    (lambda: data.questions([record("cat")], text.ByteTokenizer(text.BERT), stride=5, **SIZES), InputError, "ByteTokenizer does not keep characters. Word pieces, words and characters do."),
    (lambda: data.answers(np.zeros((1, 16, 2)), [record("cat")], PIECES, max_length=128, stride=99), InputError, "The records have 1 windows, so predictions are of shape (1, 128, 2). Received: shape (1, 16, 2)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, kind, message = MISTAKES[number]
    assert told(kind, act) == message
