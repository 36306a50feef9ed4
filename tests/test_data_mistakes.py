"""What `data.load` says of what it cannot read."""

import numpy as np
import pytest
from sources import LABELLED, told

from kerastf import data, text
from kerastf.errors import InputError

FILES = {
    "empty.txt": b"\n \n", "latin.txt": "é".encode("latin-1") * 9, "bad.jsonl": b'{"text": "a", "label": 0}\n\nno\n',
    "list.jsonl": b"[1]\n", "keys.jsonl": b'{"body": "a"}\n', "gap.jsonl": b'{"text": "a", "label": 0}\n{"text": "b"}\n',
    "short.csv": b"text,label\na\n", "head.csv": b"text,label\n", "broken.tfrecord": b"nothing of the kind", "a.doc": b"x",
    "null.jsonl": b'{"text": "a", "label": 0}\n\n{"text": null, "label": 0}\n',
    "label.jsonl": b'{"text": "a", "label": 0}\n{"text": "b", "label": null}\n',
    "mixed.jsonl": b'{"text": "a", "label": "x"}\n{"text": "b", "label": 1}\n',
    "number.jsonl": b'{"text": "a"}\n' * 9 + b'{"text": 5}\n',
    "one.txt": b"abc", "empty.jsonl": b"", "broken.json": b"{",
}  # fmt: skip
LOST = "There is no such file, folder or pattern of files; a source may also begin with embedded: or tfds:."
MISTAKES = [
    ("embedded:corpus", "languages", {}, "There is no task `languages`. Did you mean `language`? Tasks: language, sequences, masked, masked_pairs, classification, tagging, span, translation, bidirectional, word_vectors, images."),
    ("embedded:corpsu", "language", {}, "There is no embedded set `corpsu`. Did you mean `corpus` or `copy`? Sets: corpus, stories, analogies, dates, reversals, copy, reverse, sort, addition, sentiment, two_senses, tagged_sentences, shapes, digits."),
    ("embedded:dates", "tagging", {}, "`embedded:dates` is for translation. For tagging there are: embedded:tagged_sentences. Received: task='tagging'"),
    ("no.txt", "images", {"lenght": 3, "flipped": True}, "The task `images` from this source has no option `lenght`, `flipped` (did you mean `flip`?). Options: batch_size, seed, valid, static, shuffle, classes, shift, flip, keys. Received: flipped, lenght"),
    ("no.txt", "language", {"batch_size": 0}, "`batch_size` must be at least 1. Received: batch_size=0"),
    ("no.txt", "language", {"length": 0}, "`length` must be at least 1. Received: length=0"),
    ("no.txt", "bidirectional", {"length": 2}, "`length` must be at least 3. Received: length=2"),
    ("no.txt", "translation", {"length": (8, 0)}, "`length` must be a number of at least 1, or one for sources and one for targets. Received: length=(8, 0)"),
    ("no.txt", "masked", {"mask_rate": 2}, "`mask_rate` must be between 0 and 1. Received: mask_rate=2"),
    ("no.txt", "language", {"valid": 1.5}, "`valid` is the share to hold out, in [0, 1). Received: valid=1.5"),
    ("no.txt", "language", {}, LOST + " Received: '{folder}/no.txt'"),
    ("a.doc", "language", {}, "A file ends in one of .txt, .jsonl, .csv, .tsv, .tfrecord, .tfrecords, .json. Received: '{folder}/a.doc'"),
    ("empty.txt", "language", {}, "empty.txt is empty."),
    ("empty.jsonl", "language", {}, "empty.jsonl is empty."),
    ("latin.txt", "language", {}, "latin.txt is not UTF-8 text (invalid continuation byte)."),
    ("one.txt", "classification", {}, "A text file has no label: the task `classification` reads .jsonl, .csv, .tsv or .tfrecord. Received: 'one.txt'"),
    ("bad.jsonl", "classification", {}, "bad.jsonl, line 3: this is not JSON (Expecting value: line 1 column 1 (char 0)). Received: 'no'"),
    ("list.jsonl", "classification", {}, "list.jsonl, line 1: a record is an object with keys. Received: '[1]'"),
    ("keys.jsonl", "classification", {}, "keys.jsonl, line 1: The task `classification` needs text, label; text, label cannot be found. Say which key is which with keys={'text': ...}. Received: keys body"),
    ("keys.jsonl", "language", {"keys": {"text": "words"}}, "keys.jsonl, line 1: The task `language` needs text; words cannot be found. Say which key is which with keys={'text': ...}. Received: keys body"),
    ("gap.jsonl", "classification", {}, "gap.jsonl, line 2: there is no key 'label'. Received: keys text"),
    ("null.jsonl", "classification", {}, "null.jsonl, line 3: `text` must hold a text. Received: None"),
    ("null.jsonl", "language", {}, "null.jsonl, line 3: `text` must hold a text. Received: None"),
    ("label.jsonl", "classification", {}, "label.jsonl, line 2: `label` must hold a name or a number. Received: None"),
    ("mixed.jsonl", "classification", {}, "Labels are all names or all numbers; where they are both, give `classes`. Received: 'x' in record 0 and 1 in record 1"),
    ([(["a"], ["N"]), (["a", "b"], ["N", 2])], "tagging", {}, "Labels are all names or all numbers; where they are both, give `classes`. Received: 'N' in record 0 and 2 in record 1"),
    ("number.jsonl", "language", {"stream_above": 9, "tokenizer": "bytes", "length": 4, "valid": 0}, "number.jsonl, near byte 0: `text` must hold a text. Received: 5"),
    ([{"sentence1": "a", "sentence2": 2, "label": 0}], "classification", {}, "record 0: `sentence2` must hold a text. Received: 2"),
    ([("a", 0), ("b", [0, 1])], "classification", {}, "record 1: `label` must hold a name or a number. Received: [0, 1]"),
    ([("a", float("nan"))], "classification", {}, "record 0: `label` must hold a name or a number. Received: nan"),
    ([(["a"], None)], "tagging", {}, "record 0: `tags` must hold a value. Received: None"),
    ("one.txt", "masked", {"stream_above": 1, "tokenizer": "bytes", "join": False, "valid": 0}, "train: What is larger than memory is read in windows that go on from text to text; for rows of their own raise `stream_above`. Received: join=False"),
    ("no.txt", "classification", {"keys": {"lable": "y"}}, "The task `classification` has no role `lable`. Did you mean `label`? Roles: text, label. Received: keys={'lable': 'y'}"),
    ("no.txt", "language", {"keys": "body"}, "`keys` is a dict of roles and the keys of records. Received: keys='body'"),
    ((np.zeros((4, 8, 8)), np.eye(4)), "images", {}, "An image has one label; of one-hot rows give `labels.argmax(axis=-1)`. Received: labels of shape (4, 4)"),
    ("short.csv", "classification", {}, "short.csv, line 2: the first line names 2 columns, text, label. Received: 1 columns"),
    ("head.csv", "classification", {}, "head.csv is empty."),
    ("broken.tfrecord", "classification", {}, "broken.tfrecord is damaged or not a TFRecord file."),
    ("broken.json", "span", {}, "broken.json is not in SQuAD's format (JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1))."),
    ("one.txt", "language", {"valid": 0, "tokenizer": "bytes", "length": 8}, "train: A window and its target need 9 tokens. Received: 3 tokens, length=8"),
    (LABELLED, "classification", {"classes": ["good", "fair"]}, "Each label must be one of `classes`, which are good, fair. Received: 'bad'"),
    ([], "classification", {}, "There is nothing to make batches of. Received: 0 records"),
    ((["a"], [0, 1]), "classification", {}, "Columns have as many rows as each other. Received: 1 text, 2 label"),
    ([1, 2], "language", {}, "Records are dicts with the keys text, or rows of as many. Received: 1"),
    (([1, 2], [0]), "images", {}, "Images are an array (count, H, W, D) or (count, H, W), with one label each. Received: images of shape (2,), 1 labels"),
    ("nowhere", "images", {}, "There is no such file or folder of images. Received: '{folder}/nowhere'"),
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    where = tmp_path_factory.mktemp("mistakes")
    for name, raw in FILES.items():
        (where / name).write_bytes(raw)
    return where


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number, files):
    source, task, options, message = MISTAKES[number]
    if isinstance(source, str) and not source.startswith("embedded:"):
        source = f"{files}/{source}"
    assert told(lambda: data.load(source, task=task, **options)) == message.replace("{folder}", str(files))


def test_a_large_file_that_is_wrong(files, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good line\n" * 300 + b"\xe9\xe9\n" * 300)
    message = told(
        lambda: data.load(tmp_path / "a.txt", task="language", length=8, tokenizer="bytes", stream_above=10, valid=0)
    )
    assert message.startswith("a.txt is not UTF-8 text (invalid continuation byte), near byte ")
    (tmp_path / "a.jsonl").write_text('{"text": "a b c"}\n' * 20 + '{"body": 1}\n' * 20)
    message = told(
        lambda: data.load(tmp_path / "a.jsonl", task="language", length=8, tokenizer="bytes", stream_above=10, valid=0)
    )
    assert message.startswith("a.jsonl, near byte ") and message.endswith(
        """a line is not JSON with the key 'text'. Received: '{"body": 1}'"""
    )
    (tmp_path / "b.txt").write_text("abc\n" * 400 + "xyz\n" * 400)
    message = told(
        lambda: data.load(
            tmp_path / "b.txt",
            task="language",
            length=8,
            tokenizer=text.CharacterTokenizer("abc\n"),
            stream_above=10,
            valid=0,
        )
    )
    assert "Make it with special_tokens=('unknown',) to accept others." in message


@pytest.mark.parametrize("wrong", [{"length": 0}, {"batch_size": 0}, {"steps": 0}, {"batch_size": 1.5}])
def test_windows_of_no_size(wrong):
    options = {"length": 4, "batch_size": 2, "steps": 3, **wrong}
    ((name, value),) = wrong.items()
    assert told(lambda: data.next_token(range(20), **options)) == (
        f"`{name}` must be at least 1. Received: {name}={value}"
    )


def test_a_digit_that_is_no_number_is_a_name():
    records = [("a", "²"), ("b", "10"), ("c", "9")]
    assert data.load(records, task="classification", valid=0, tokenizer="bytes").classes == ["10", "9", "²"]


def test_a_batch_larger_than_the_data_is_for_evaluation_only():
    feed = data.load(LABELLED, task="classification", batch_size=9, valid=0, tokenizer="bytes").train
    assert sum(len(y) for _, y in feed.once()) == 6
    with pytest.raises(InputError) as error:
        feed.dataset()
    assert str(error.value) == (
        "`batch_size` is larger than the data: give more of it, or a smaller batch. Received: batch_size=9, rows=6"
    )
