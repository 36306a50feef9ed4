"""What `data.load` reads from tensorflow-datasets: images, texts, prepared sets; and sets that cannot be fetched."""

import numpy as np
import pytest
from sources import first, told

from kerastf import data
from kerastf.data import catalogue
from kerastf.data.large import LargeBatches


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
