"""What `data.load` reads: tables, texts, images, arrays, what is in memory; and the tokenizers that it is given."""

import csv
import gzip
import json
import struct

import numpy as np
import pytest
import tensorflow as tf
from sources import LABELLED, first, told

from kerastf import data, text
from kerastf.data.tasks import documents, lines

SMALL = {"batch_size": 2, "valid": 0, "tokenizer": "characters"}


def decoded(found, number=0):
    x, y = first(found.train)
    return found.tokenizer.decode(x["tokens"][number]), y.tolist()


# --- tables and texts


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


def test_a_table_with_a_long_text(tmp_path):
    limit = csv.field_size_limit()
    (tmp_path / "a.csv").write_text(f"text,label\n{'ab ' * 50_000},1\nb,0\n")
    found = data.load(tmp_path / "a.csv", task="classification", length=8, **SMALL)
    assert decoded(found) == ("ab ab ", [1, 0]) and csv.field_size_limit() == limit


@pytest.mark.parametrize("mark", [",", "\t"])
def test_two_columns_of_one_name(tmp_path, mark):
    path = tmp_path / ("a.csv" if mark == "," else "a.tsv")
    path.write_text("text,label,text\na,0,b\nc,1,d\n".replace(",", mark))
    assert told(lambda: data.load(path, task="classification", **SMALL)) == (
        f"{path.name}: a column has a name of its own. Received: twice text"
    )
    path.write_text("text,label,,\na,0,,\nc,1,,\n".replace(",", mark))  # as spreadsheets write it
    assert decoded(data.load(path, task="classification", length=4, **SMALL)) == ("a", [0, 1])


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


@pytest.mark.parametrize("valid", [0.1, 0.9])
def test_of_few_files_one_is_held_out_and_never_all(tmp_path, valid):
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name * 50)
    found = data.load(tmp_path, task="language", length=8, batch_size=1, tokenizer="bytes", valid=valid)
    seen = [{chr(n) for b in f.batches.once() for n in b[0].ravel() if n < 256} for f in (found.train, found.valid)]
    assert len(seen[1]) == (1 if valid == 0.1 else 2) and seen[0] | seen[1] == set("abc") and not seen[0] & seen[1]
    one = data.load(["a" * 50 + "b" * 50], task="language", length=4, batch_size=1, tokenizer="bytes", valid=valid)
    assert one.train is not None and one.valid is not None
    few = data.load([("a", "x"), ("b", "y")], task="classification", batch_size=1, length=4, tokenizer="bytes")
    assert few.valid is None and few.classes == ["x", "y"]


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


def test_only_a_line_feed_ends_a_line(tmp_path):
    whole = "a\x0bb\u2028c\x85d\r\n\r\ne\x1cf\n"
    (tmp_path / "a.txt").write_text(whole, "utf-8", newline="")
    records = [{"text": whole}]
    assert lines(records) == [*filter(None, text.read_lines(tmp_path / "a.txt"))] == ["a\x0bb\u2028c\x85d", "e\x1cf"]
    assert documents(records) == [["a\x0bb\u2028c\x85d"], ["e\x1cf"]]


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


# --- images and arrays


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


def bmp(pixels, palette, bits=8, packed=0):
    """A BMP file of numbers `(4, 4)` that stand for colours."""
    entries = np.array([[b, g, r, 0] for r, g, b in palette], "uint8").tobytes()
    begin = 54 + len(entries)
    head = struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, bits, packed, 16, 0, 0, len(palette), 0)
    return b"BM" + struct.pack("<III", begin + 16, 0, begin) + head + entries + pixels[::-1].tobytes()


def test_every_kind_of_file_in_colour_and_in_grey(tmp_path):
    colours = np.array([[250, 10, 20], [0, 240, 30], [5, 6, 230]], "uint8")
    numbers = np.arange(16, dtype="uint8").reshape(4, 4) % 3
    image = colours[numbers]
    grey = np.round(image @ [0.299, 0.587, 0.114])[..., None]
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "x.bmp"
    row = b"".join(line[:, ::-1].tobytes() for line in image[::-1])
    plain = b"BM" + struct.pack("<III", 102, 0, 54) + struct.pack("<IiiHHIIiiII", 40, 4, 4, 1, 24, 0, 48, 0, 0, 0, 0)
    # One frame, no compression to speak of: a clear code before every second number.
    codes = [c for pair in numbers.reshape(-1, 2).tolist() for c in (4, *pair)] + [5]
    packed = sum(c << 3 * i for i, c in enumerate(codes)).to_bytes(-(-3 * len(codes) // 8), "little")
    table = colours.tobytes() + bytes(3)
    gif = b"GIF89a" + struct.pack("<HHBBB", 4, 4, 0x91, 0, 0) + table + b"," + struct.pack("<HHHHB", 0, 0, 4, 4, 0)
    gif += bytes([2, len(packed)]) + packed + b"\0;"
    for raw in (bmp(numbers, colours), plain + row, gif, tf.io.encode_png(image).numpy()):
        path.write_bytes(raw)
        for channels, want in ((3, image), (1, grey)):
            found = data.load(tmp_path, task="images", batch_size=1, valid=0, channels=channels)
            assert np.abs(first(found.train)[0][0].astype(int) - want).max() <= (channels == 1)
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as file:
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[bmp(numbers, colours)])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[0])),
        }
        file.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    found = data.load(tmp_path / "a.tfrecord", task="images", batch_size=1, valid=0)
    assert np.array_equal(first(found.train)[0][0], image)
    for wrong, message in (
        ((numbers, colours, 8, 1), "Of .bmp files with a palette only those of 8 bits a pixel, not compressed, are read: convert it to PNG."),
        ((numbers, colours, 4), "Of .bmp files with a palette only those of 8 bits a pixel, not compressed, are read: convert it to PNG."),
        ((numbers, colours[:2]), "A pixel has a colour that is not in the palette."),
    ):  # fmt: skip
        path.write_bytes(bmp(*wrong))
        message += f" Received: {str(path)!r}"
        assert told(lambda: data.load(tmp_path, task="images", batch_size=1, valid=0)) == message


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


def test_two_images_are_no_two_parts():
    images = [np.full((4, 4, 3), n, "uint8") for n in (7, 9)]
    found = data.load((images, [0, 1]), task="images", batch_size=2, valid=0)
    x, y = first(found.train)
    assert x[:, 0, 0, 0].tolist() == [7, 9] and y.tolist() == [0, 1] and found.test is None
    found = data.load(((images, [0, 1]), (images[:1], [0])), task="images", batch_size=2, valid=0)
    assert first(found.test)[0].shape == (1, 4, 4, 3)


# --- what is in memory


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
