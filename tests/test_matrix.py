"""The matrix of blocks and models on the pages is what an executed check finds, and it is whole."""

import json
import random
import sys
from pathlib import Path

import pytest

from kerastf import testing
from kerastf.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
import checks

FILE = checks.ROOT / "docs" / "_site" / "matrix.json"
ROWS = json.loads(FILE.read_text("utf-8"))
PROBLEMS = checks.matrix_problems(ROWS, testing.cells())


def some(seed=0):
    """Some cells that fit and some that are refused."""
    chosen = random.Random(seed)
    fit = [row for row in ROWS if row["outcome"] == "ok"]
    refused = [row for row in ROWS if row["outcome"] != "ok"]
    return chosen.sample(fit, 3) + chosen.sample(refused, 12)


def label(row):
    return f"{row['model']}.{row['slot']}-{row['block']}"


def test_every_cell_was_tried_and_none_fails():
    assert PROBLEMS == []


@pytest.mark.parametrize("row", some(), ids=label)
def test_some_again(row):
    assert testing.outcome(row["model"], row["slot"], row["block"]) == row["outcome"]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_all_again(row):
    assert testing.outcome(row["model"], row["slot"], row["block"]) == row["outcome"]


def test_the_matrix_covers_every_kind_and_family():
    kinds = {"attention", "norm", "feedforward", "position", "embedding", "cell", "head"}
    assert {row["kind"] for row in ROWS} == kinds
    assert {"linear_attention/linear", "template/unit"} <= {row["block"] for row in ROWS}
    families = {family for family, _, _ in testing.cells()}
    assert {row["model"] for row in ROWS} == families and len(families) >= 10


# --- planted


def test_a_new_block_is_missed():
    import keras

    import kerastf

    @kerastf.register("norm", "brand_new", supports=("causal",))
    class BrandNew(keras.layers.Layer):
        pass

    found = checks.matrix_problems(ROWS, testing.cells())
    assert len(found) == len({family for family, slot, _ in testing.cells("norm")})
    assert found[0].endswith("Run: kerastf matrix --block local/brand_new --json docs/_site/matrix.json")


def test_a_cell_that_is_missing_gone_or_fails():
    cells = testing.cells()
    assert "was never tried" in checks.matrix_problems(ROWS[1:], cells)[0]
    assert "is gone" in checks.matrix_problems([*ROWS, {**ROWS[0], "block": "gone"}], cells)[0]
    broken = [{**ROWS[0], "outcome": "fit fails: the loss went from 1 to 2"}, *ROWS[1:]]
    name = f"{ROWS[0]['model']}.{ROWS[0]['slot']} {ROWS[0]['block']}"
    assert f"{name}: fit fails: the loss went from 1 to 2" in checks.matrix_problems(broken, cells)


def test_what_raises_is_no_refusal():
    import keras

    import kerastf

    @kerastf.register("norm", "explodes", supports=("causal",))
    class Explodes(keras.layers.Layer):
        def build(self, x_shape):
            raise ValueError("boom")

    assert testing.outcome("gpt", "norm", "explodes").startswith("making it fails: ValueError: boom")


def test_the_command_keeps_what_it_did_not_try(tmp_path, capsys):
    path = tmp_path / "matrix.json"
    assert main(["matrix", "--model", "rnn", "--block", "patch", "--json", str(path)]) == 0
    first = json.loads(path.read_text())
    assert [(r["model"], r["slot"], r["kind"], r["block"]) for r in first] == [
        ("rnn", "embedding", "embedding", "patch")
    ]
    assert main(["matrix", "--model", "gpt", "--block", "patch", "--json", str(path)]) == 0
    assert [r["model"] for r in json.loads(path.read_text())] == ["gpt", "rnn"]
    assert "reads images, and `gpt` reads tokens" in capsys.readouterr().out
    for text in ("[{", "[1]", '[{"model": "gpt"}]', "5"):
        path.write_text(text)
        assert main(["matrix", "--block", "patch", "--json", str(path)]) == 2
        out = capsys.readouterr()
        assert out.out == "" and out.err == f"kerastf: The file is there and holds no matrix. Received: --json {path}\n"
        assert path.read_text() == text
    assert main(["matrix", "--block", "nowhere"]) == 2
    assert main(["matrix", "--block", "patch", "--json", str(tmp_path / "no" / "file.json")]) == 2
    assert "There is no folder" in capsys.readouterr().err
