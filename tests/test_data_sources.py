"""What `data.load` reads: files, folders, arrays, tensorflow-datasets; and what it says of what it cannot read."""

import gzip
import json
import struct

import numpy as np
import pytest
import tensorflow as tf

from kerastf import data, text
from kerastf.data import catalogue
from kerastf.data.large import LargeBatches
from kerastf.errors import ConfigError, FileFormatError, InputError

SMALL = {"batch_size": 2, "valid": 0, "tokenizer": "characters"}
LABELLED = [{"text": f"text {n}", "label": ("bad", "good")[n % 2]} for n in range(6)]


def first(feed):
    return next(iter(feed.batches.once()))


def told(act):
    with pytest.raises((ConfigError, FileFormatError, InputError)) as error:
        act()
    return str(error.value)


def decoded(found, number=0):
    x, y = first(found.train)
    return found.tokenizer.decode(x["tokens"][number]), y.tolist()


# --- files


def write_examples(path, records):
    def feature(value):
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        values = [v.encode() for v in (value if isinstance(value, list) else [value])]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))

    with tf.io.TFRecordWriter(str(path)) as file:
        for record in records:
            features = tf.train.Features(feature={k: feature(v) for k, v in record.items()})
            file.write(tf.train.Example(features=features).SerializeToString())


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv", "tsv", "tfrecord"])
def test_tables_of_every_format(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    lines = "\n".join(json.dumps(r) for r in LABELLED)
    if ending == "tfrecord":
        write_examples(path, LABELLED)
    elif ending == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        mark = {"csv": ",", "tsv": "\t"}.get(ending)
        table = "\n".join([f"label{mark}text"] + [f"{r['label']}{mark}{r['text']}" for r in LABELLED]) if mark else ""
        path.write_text(table or lines)
    found = data.load(path, task="classification", length=12, **SMALL)
    assert decoded(found) == ("text 0", [0, 1]) and found.classes == ["bad", "good"]
    assert found.options["num_classes"] == 2 and found.valid is found.test is None


def test_a_table_with_quotes_and_other_names(tmp_path):
    (tmp_path / "a.csv").write_text('stars,body\n1,"one, two\nthree"\n5,four\n')
    found = data.load(
        tmp_path / "a.csv", task="classification", length=20, keys={"text": "body", "label": "stars"}, **SMALL
    )
    assert decoded(found) == ("one, two\nthree", [0, 1]) and found.classes == ["1", "5"]


def test_pairs_of_texts_are_found_by_their_keys():
    records = [{"idx": n, "sentence1": "ab", "sentence2": "c", "label": n % 2} for n in range(4)]
    found = data.load(records, task="classification", length=8, **SMALL)
    x, _ = first(found.train)
    assert x["segments"][0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    plain = data.load(records, task="classification", length=8, segments=False, **SMALL)
    assert first(plain.train)[0].shape == (2, 8)


def test_a_folder_with_parts(tmp_path):
    for name, letter in (("train.txt", "a"), ("validation.txt", "b"), ("test.txt", "c")):
        (tmp_path / name).write_text(letter * 50 + "\n")
    found = data.load(tmp_path, task="language", length=8, batch_size=2, tokenizer="bytes", valid=0.5)
    letters = [{chr(n) for n in first(f)[0].ravel()} for f in (found.train, found.valid, found.test)]
    assert letters == [{"a"}, {"b"}, {"c"}]
    several = data.load(str(tmp_path / "*t*.txt"), task="language", length=8, batch_size=2, tokenizer="bytes", valid=0)
    assert several.test is not None and several.valid is not None


def test_documents_are_joined_by_the_end_token(tmp_path):
    records = [{"text": "abc"}, {"text": "de"}, {"text": "fgh"}]
    found = data.load(records, task="language", length=3, batch_size=1, valid=0, tokenizer="characters")
    x = np.concatenate([b[0] for b in found.train.batches.once()]).ravel()
    assert "".join(found.tokenizer.label(n) for n in x) == "abc<end>de<end>fg"


def test_lines_and_documents_of_a_text(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(f"{c} b\nc d\n\ne {c}\nf g\n" for c in "xyzuvw"))
    found = data.load(tmp_path / "a.txt", task="masked_pairs", length=12, batch_size=2, tokenizer="word", valid=0)
    assert len(found.train.batches.rows) == 12
    found = data.load(tmp_path / "a.txt", task="word_vectors", length=4, window=1, batch_size=2, valid=0, subsample=0)
    tokens, reach = first(found.train)
    assert tokens.shape == (2, 6) and reach.max() == 1 and found.tokenizer.special_tokens == ()


def test_pairs_without_names_and_squad(tmp_path):
    (tmp_path / "a.tsv").write_text("ab\tba\tmore\ncd\tdc\n")
    found = data.load(tmp_path / "a.tsv", task="translation", length=8, **SMALL)
    x, y = first(found.train)
    source, target = found.tokenizer
    assert (source.decode(x["source"][0]), target.decode(y[1])) == ("ab", "dc")
    assert found.options["source_tokenizer"] is source and found.options["tokenizer"] is target
    question = {"id": "1", "question": "who?", "answers": [{"text": "cat", "answer_start": 4}]}
    squad = {"data": [{"paragraphs": [{"context": "the cat sat", "qas": [question] * 2}]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    found = data.load(tmp_path / "a.json", task="span", length=16, stride=4, batch_size=2, valid=0, tokenizer="word")
    x, y = first(found.train)
    assert [found.tokenizer.decode(x["tokens"][0, a : b + 1]) for a, b in y] == ["cat", "cat"]


def png(path, value, size=(4, 5)):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tf.io.encode_png(np.full((*size, 3), value, "uint8")).numpy())


def test_a_folder_of_images(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        for number, name in enumerate(("cat", "dog")):
            for i in range(count):
                png(tmp_path / part / name / f"{i}.png", 100 * number + i)
    found = data.load(tmp_path, task="images", batch_size=2, valid=0)
    x, y = (np.concatenate(s) for s in zip(*found.train.batches.once(), strict=True))
    assert x[:, 0, 0, 0].tolist() == [0, 1, 2, 100, 101, 102] and y.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.options == {"num_classes": 2, "image_size": [4, 5], "channels": 3} and found.classes == ["cat", "dog"]
    assert first(found.test)[1].tolist() == [0, 1] and found.valid is None
    small = data.load(tmp_path / "train", task="images", batch_size=2, valid=0.34, image_size=[2, 2], channels=1)
    assert first(small.train)[0].shape == (2, 2, 2, 1) and len(small.valid.batches.rows) == 2
    png(tmp_path / "train" / "cat" / "x.png", 9, (6, 6))
    wrong = data.load(tmp_path, task="images", batch_size=7, valid=0)
    assert told(lambda: first(wrong.train)) == (
        "Images of one batch have one size: give image_size=[height, width]. Received: (6, 6) in x.png, (4, 5) in 0.png"
    )
    (tmp_path / "train" / "cat" / "x.png").write_bytes(b"no image")
    path = str(tmp_path / "train" / "cat" / "x.png")
    wrong = data.load(tmp_path, task="images", batch_size=7, valid=0)
    assert told(lambda: first(wrong.train)) == f"This is no image that can be read. Received: {path!r}"


def test_images_of_examples(tmp_path):
    encoded = [tf.io.encode_png(np.full((4, 5, 1), n, "uint8")).numpy() for n in range(4)]
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as file:
        for number, raw in enumerate(encoded):
            features = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 2])),
            }
            file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    found = data.load(tmp_path / "a.tfrecord", task="images", batch_size=4, valid=0)
    x, y = first(found.train)
    assert x[:, 0, 0, 0].tolist() == [0, 1, 2, 3] and y.tolist() == [0, 1, 0, 1] and x.shape == (4, 4, 5, 1)
    write_examples(tmp_path / "b.tfrecord", [{"image": "no image", "label": 1}])
    message = told(lambda: data.load(tmp_path / "b.tfrecord", task="images", batch_size=1, valid=0))
    assert message == "b.tfrecord, example 1: this is no image that can be read."


def test_arrays_and_files_of_arrays(tmp_path):
    x, y = np.arange(10 * 12).reshape(10, 3, 4).astype("uint8"), np.arange(10) % 3
    found = data.load((x, y), task="images", batch_size=4, valid=0.2)
    assert found.options == {"num_classes": 3, "image_size": [3, 4], "channels": 1} and found.train.steps == 2
    assert len(found.valid.batches.rows) == 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    found = data.load(tmp_path / "a.npz", task="images", batch_size=4, valid=0)
    assert np.array_equal(first(found.train)[0], x[:4, ..., None]) and len(found.test.batches.rows) == 3
    for part in ("train", "t10k"):
        head = b"\0\0\x08\x03" + struct.pack(">3I", *x.shape)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(head + x.tobytes())
        head = b"\0\0\x08\x01" + struct.pack(">I", 10)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(head + y.astype("uint8").tobytes())
    found = data.load(tmp_path, task="images", batch_size=4, valid=0)
    assert np.array_equal(first(found.test)[0], x[:4, ..., None])


def test_what_is_in_memory():
    columns = (["a", "b"], ["x", "y"])
    for source in (
        columns,
        list(zip(*columns, strict=True)),
        [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}],
    ):
        assert decoded(data.load(source, task="classification", length=4, **SMALL)) == ("a", [0, 1])
    parts = {"train": ["abcabc"] * 3, "test": ["cba"] * 3}
    found = data.load(parts, task="language", length=4, **SMALL)
    assert found.test is not None and found.valid is None
    words = data.load([(["a", "b"], ["N", "V"])] * 2, task="tagging", length=6, **SMALL)
    assert first(words.train)[1][0].tolist() == [-1, 0, 1, -1, -1, -1] and words.classes == ["N", "V"]


def test_sources_of_translations_stay_on_one_side():
    records = [(f"s{n % 10}", f"t{n}") for n in range(60)]
    found = data.load(records, task="translation", batch_size=4, valid=0.3, tokenizer="characters", length=8)
    known, held = ({r["source"] for r in f.items} for f in (found.train, found.valid))
    assert len(held) == 3 and not known & held


def test_tokenizers_of_every_kind():
    ready = text.CharacterTokenizer("abc ", text.BERT)
    cases = [(ready, "character"), (ready.get_config(), "character"), ({"name": "words", "min_count": 1}, "word"),
             ("bytes", "byte"), ({"name": "bpe", "vocab_size": 265}, "bpe")]  # fmt: skip
    for given, name in cases:
        found = data.load(
            [("a b ab ab ab", 0), ("c a c ab", 1)],
            task="classification",
            length=8,
            batch_size=1,
            valid=0,
            tokenizer=given,
        )
        assert found.tokenizer.name == name and found.options["vocab_size"] == found.tokenizer.vocab_size
    assert data.load(
        ["a b c " * 9], task="language", length=4, batch_size=1, tokenizer="bytes"
    ).tokenizer.special_tokens == ("end",)


# --- tensorflow-datasets


@pytest.fixture
def mocked(monkeypatch, tmp_path):
    """Real builders of tensorflow-datasets with examples drawn at random."""
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(catalogue, "online", lambda: True)
    monkeypatch.setattr(catalogue, "_splits", lambda builder: {"train": "train", "test": "test"})

    def load(name, task, **options):
        with tfds.testing.mock_data(num_examples=12):
            return data.load(f"tfds:{name}", task=task, data_dir=str(tmp_path), batch_size=4, valid=0.25, **options)

    return load


def test_builders_of_images_and_texts(mocked):
    found = mocked("mnist", "images")
    assert found.options == {"num_classes": 10, "image_size": [28, 28], "channels": 1} and found.classes[3] == "3"
    assert first(found.train)[0].shape == (4, 28, 28, 1) and len(found.valid.batches.rows) == 3
    assert mocked("cifar10", "images").options["image_size"] == [32, 32]
    options = {"tokenizer": "bytes", "length": 16}
    assert mocked("imdb_reviews", "classification", **options).classes == ["neg", "pos"]
    assert mocked("glue/sst2", "classification", **options).classes == ["negative", "positive"]
    assert isinstance(mocked("glue/mrpc", "classification", **options).train.items[0]["text"], tuple)
    for name in ("tiny_shakespeare", "lm1b"):
        x, _ = first(mocked(name, "language", **options).train)
        assert x.shape == (4, 16)
    for name in ("wmt14_translate/de-en", "ted_hrlr_translate/pt_to_en"):
        found = mocked(name, "translation", **{**options, "length": 400})
        assert first(found.train)[0]["source"].shape[0] == 4


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def prepared(request, tmp_path_factory):
    """A real builder, prepared from generated text."""
    tfds = pytest.importorskip("tensorflow_datasets")

    label, tag = tfds.features.ClassLabel(names=["even", "odd"]), tfds.features.ClassLabel(names=["O", "X"])
    answers = tfds.features.Sequence({"text": tfds.features.Text(), "answer_start": np.int32})
    features = tfds.features.FeaturesDict({
        "text": tfds.features.Text(), "label": label, "question": tfds.features.Text(),
        "context": tfds.features.Text(), "answers": answers, "tokens": tfds.features.Sequence(tfds.features.Text()),
        "ner": tfds.features.Sequence(tag),
    })  # fmt: skip

    def example(n, label):
        context = f"number {n:03} is here"
        return {
            "text": context, "label": n % 2 if label is None else label, "question": "where?", "context": context,
            "answers": {"text": [f"{n:03}"], "answer_start": [7]}, "tokens": context.split(), "ner": [0, 1, 0, 0],
        }  # fmt: skip

    where = tmp_path_factory.mktemp(request.param)
    parts = {"train": (40, None), "validation": (5, None), "test": (6, -1)}
    tfds.dataset_builders.store_as_tfds_dataset(
        name="own", version="1.0.0", features=features, data_dir=where, file_format=request.param, config="plain",
        split_datasets={part: [(n, example(n, label)) for n in range(count)] for part, (count, label) in parts.items()},
    )  # fmt: skip
    return "tfds:own/plain", str(where), request.param


def test_a_prepared_builder(prepared):
    source, where, kind = prepared
    options = {"data_dir": where, "batch_size": 4, "tokenizer": "characters"}
    found = data.load(source, task="classification", length=32, **options)
    assert found.classes == ["even", "odd"] and len(found.train.items) == 40 and len(found.valid.items) == 5
    assert found.test is None  # its labels are hidden, as those of GLUE
    for record in found.train.items:
        assert record["label"] == int(record["text"].split()[1]) % 2
    found = data.load(source, task="span", length=48, stride=8, **options)
    x, y = first(found.train)
    assert found.tokenizer.decode(x["tokens"][0, y[0, 0] : y[0, 1] + 1]) == found.train.items[0]["context"][7:10]
    found = data.load(source, task="tagging", length=32, **options)
    assert found.classes == ["O", "X"] and found.train.items[0]["words"][0] == "number"
    found = data.load(source, task="language", length=16, stream_above=10, **options)
    assert isinstance(found.train.batches, LargeBatches) == (kind == "array_record")
    whole = [next(found.train.batches.run(n))[0] for n in (0, 7)]
    stream = found.train.dataset(start=7).as_numpy_iterator()
    assert np.array_equal(next(stream)[0], whole[1]) and not np.array_equal(*whole)
    text_seen = found.tokenizer.decode(np.concatenate([b[0].ravel() for b in found.train.batches.once()]))
    assert text_seen.count("is here") >= 38


def test_without_a_network(monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "online", lambda: False)
    where = str(tmp_path)
    assert told(lambda: data.load("tfds:mnist", task="images", data_dir=where)) == (
        f"`mnist` is not in {where}/mnist/3.0.1, and there is no network to fetch it. Fetch it elsewhere with "
        f"tfds.load('mnist', data_dir=...), copy that folder here and give data_dir. Received: data_dir={where!r}"
    )
    assert list(tmp_path.iterdir()) == []
    message = told(lambda: data.load("tfds:mnits", task="images", data_dir=where))
    assert message.startswith("tensorflow-datasets cannot make `mnits`: ") and "mnist" in message


def test_a_download_that_fails_leaves_nothing_half_done(monkeypatch, tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    monkeypatch.setattr(catalogue, "online", lambda: True)
    (tmp_path / "downloads" / "other.tmp.1").mkdir(parents=True)  # somebody else's

    def fail(builder, **kwargs):
        (tmp_path / "downloads" / "mnist.tmp.2").mkdir()
        (tmp_path / "mnist" / "incomplete.X_3.0.1").mkdir(parents=True)
        raise ConnectionError("the line is cut")

    monkeypatch.setattr(tfds.core.GeneratorBasedBuilder, "download_and_prepare", fail)
    assert told(lambda: data.load("tfds:mnist", task="images", data_dir=str(tmp_path))) == (
        f"`mnist` could not be fetched into {tmp_path}/mnist/3.0.1: ConnectionError: the line is cut"
    )
    assert [p.name for p in (tmp_path / "downloads").iterdir()] == ["other.tmp.1"]
    assert list((tmp_path / "mnist").iterdir()) == []


# --- mistakes

FILES = {
    "empty.txt": b"\n \n", "latin.txt": "é".encode("latin-1") * 9, "bad.jsonl": b'{"text": "a", "label": 0}\n\nno\n',
    "list.jsonl": b"[1]\n", "keys.jsonl": b'{"body": "a"}\n', "gap.jsonl": b'{"text": "a", "label": 0}\n{"text": "b"}\n',
    "short.csv": b"text,label\na\n", "head.csv": b"text,label\n", "broken.tfrecord": b"nothing of the kind", "a.doc": b"x",
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


def test_a_batch_larger_than_the_data_is_for_evaluation_only():
    feed = data.load(LABELLED, task="classification", batch_size=9, valid=0, tokenizer="bytes").train
    assert sum(len(y) for _, y in feed.once()) == 6
    with pytest.raises(InputError) as error:
        feed.dataset()
    assert str(error.value) == (
        "`batch_size` is larger than the data: give more of it, or a smaller batch. Received: batch_size=9, rows=6"
    )
