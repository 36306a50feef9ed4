"""What can be done with a finished run: evaluate, predict, generate, start another from it."""

import io
import json

import numpy as np
import pytest

from kerastf import cli, data, training
from kerastf.errors import ConfigError, FileFormatError

TINY = {"dim": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
FAST = {"steps": 4, "jit_compile": False}


def trained(out, **tables):
    return training.train({"training": FAST, **tables}, out, stream=io.StringIO())


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """A language model whose tokenizer also has what a classifier needs."""
    out = tmp_path_factory.mktemp("runs") / "language"
    table = {"source": "embedded:sentiment", "count": 200, "length": 16, "tokenizer": "word", "task": "language",
             "special_tokens": ["pad", "start", "end", "unknown", "class", "separator", "mask"]}  # fmt: skip
    results = trained(out, model={"name": "gpt", "max_length": 16, **TINY}, data=table)
    return out, results


@pytest.fixture(scope="module")
def opinions(language, tmp_path_factory):
    """A classifier that starts from the language model."""
    out = tmp_path_factory.mktemp("runs") / "opinions"
    table = {"source": "embedded:sentiment", "count": 200, "length": 16, "task": "classification", "segments": False}
    trained(out, model={"start": str(language[0]), "head": "classifier"}, data=table)
    return out


def test_evaluated_again_it_gives_the_same(language):
    out, results = language
    found = training.evaluate(out)
    assert found["valid"]["loss"] == pytest.approx(results["val_loss"], abs=1e-6)
    assert set(found) == {"valid"}


def test_evaluated_on_a_file(language, tmp_path, capsys):
    path = tmp_path / "other.txt"
    path.write_text("\n".join(line for line, _ in data.sentiment(50, seed=9)))
    assert cli.main(["evaluate", str(language[0]), "--data", str(path)]) == 0
    assert capsys.readouterr().out.startswith("data    accuracy ")


def test_the_next_words(language, capsys):
    assert cli.main(["predict", str(language[0]), "the soup was", "-k", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["input"] == "the soup was" and len(found["next"]) == 2
    assert cli.main(["generate", str(language[0]), "--prompt", "the soup", "--max-length", "6"]) == 0
    assert capsys.readouterr().out.startswith("the soup")


def test_a_start_brings_its_weights_and_its_tokenizer(language, opinions):
    _, body = training.load_run(language[0])
    recipe, tuned = training.load_run(opinions)
    assert tuned.head.registry_entry.id == "classifier" and tuned.head.num_classes == 2
    assert tuned.tokenizer.get_config() == body.tokenizer.get_config()
    assert recipe.data["task"] == "classification"
    moved = [np.abs(a.numpy() - b.numpy()).max() for a, b in zip(body.weights[:3], tuned.weights[:3], strict=True)]
    assert max(moved) < 0.1  # four small steps away, and not drawn anew


def test_classes_have_their_names(opinions):
    texts = ["the soup was very tasty", "the room was filthy again"]
    found = training.predict(opinions, texts)
    assert [f["input"] for f in found] == texts
    assert all(set(f["probabilities"]) == {"negative", "positive"} for f in found)
    assert all(sum(f["probabilities"].values()) == pytest.approx(1, abs=1e-3) for f in found)
    assert all(f["label"] == max(f["probabilities"], key=f["probabilities"].get) for f in found)
    assert training.predict(opinions, texts[1:])[0]["probabilities"] == pytest.approx(
        found[1]["probabilities"], abs=2e-4
    )


def test_classes_of_a_file_keep_the_numbers_of_the_run(opinions, tmp_path):
    """A file that has one class only: its number is 1 in the run, and would be 0 by itself."""
    path = tmp_path / "positive.jsonl"
    texts = [line for line, label in data.sentiment(40, seed=3) if label == "positive"]
    path.write_text("".join(json.dumps({"text": t, "label": "positive"}) + "\n" for t in texts))
    told = [f["label"] == "positive" for f in training.predict(opinions, texts)]
    assert training.evaluate(opinions, source=path)["data"]["accuracy"] == pytest.approx(np.mean(told), abs=1e-6)


def test_images_by_their_files(tmp_path):
    import tensorflow as tf

    out = tmp_path / "shapes"
    table = {"source": "embedded:shapes", "count": 100, "batch_size": 8}
    trained(out, model={"name": "vit", "patch_size": 8, **TINY}, data=table)
    names = json.loads((out / "labels.json").read_text())
    picture = np.random.default_rng(0).integers(0, 255, (30, 30, 3)).astype("uint8")  # of another size
    (tmp_path / "a.png").write_bytes(tf.io.encode_png(picture).numpy())
    (found,) = training.predict(out, [tmp_path / "a.png"], k=1)
    assert found["label"] in names and list(found["probabilities"]) == [found["label"]]


def test_what_is_no_run(tmp_path):
    with pytest.raises(FileFormatError) as error:
        training.evaluate(tmp_path)
    assert str(error.value) == f"This is not the folder of a run. Received: {str(tmp_path)!r}"


def test_a_task_that_predicts_nothing(tmp_path):
    out = tmp_path / "tags"
    table = {"source": "embedded:tagged_sentences", "count": 60, "length": 12, "tokenizer": "word", "segments": False}
    trained(out, model={"name": "gpt", "max_length": 12, "head": "tagger", **TINY}, data=table)
    with pytest.raises(ConfigError) as error:
        training.predict(out, ["the dog"])
    assert str(error.value) == "A run of the task `tagging` predicts nothing by itself: use its model in Python."
