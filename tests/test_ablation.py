"""Ablations: matched runs that go on after a kill, the table, and a recipe per row that gives the same again."""

import io
import json
import math
import signal
import subprocess
import sys
import time

import pytest

from kerastf import training
from kerastf.errors import ConfigError
from kerastf.training.ablation import Ablation, Row, _rows

TINY = ["data.source=embedded:corpus", "data.length=8", "data.batch_size=4", "data.tokenizer=character",
        "model.max_length=8", "model.dim=8", "model.num_layers=1", "model.num_heads=2", "training.steps=6",
        "training.evaluate_every=3", "training.jit_compile=false"]  # fmt: skip
GRID = {"norm": ["layer", "rms"]}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("ablation") / "out"
    stream = io.StringIO()
    found = training.ablate("gpt", GRID, out, seeds=2, settings=TINY, jobs=2, stream=stream)
    return found, out, stream.getvalue()


@pytest.mark.slow
def test_the_table(done):
    found, out, told = done
    assert [row.name for row in found.rows] == ["norm=layer", "norm=rms"]
    assert told.splitlines()[0] == f"2 combinations, 2 seeds, 2 at a time, in {out}"
    assert "4/4" in told and "val_loss" in told
    for row in found.rows:
        assert len(row.results) == 2 and not row.failures and row.step_seconds() > 0
        assert all(math.isfinite(v) for v in row.values("val_loss"))
        assert len(set(row.values("val_loss"))) == 2  # another seed is another run
    layer, rms = found.rows
    assert layer.parameters - rms.parameters == 3 * 8 and layer.flops > rms.flops > 0  # three norms have no shift
    best = min(found.rows, key=lambda r: sum(r.values("val_loss")))
    assert str(found).splitlines()[1].startswith(best.name)
    assert (out / "ablation.png").read_bytes()[1:4] == b"PNG"
    saved = json.loads((out / "ablation.json").read_text())
    assert [r["name"] for r in saved["rows"]] == [r.name for r in found.ordered()]


def test_the_table_of_results_that_are_known():
    rows = [
        Row(
            "norm=layer", {}, {}, {0: {"val_loss": 0.25, "step_seconds": 0.01}, 1: {"val_loss": 0.35}}, parameters=1200
        ),
        Row("norm=rms", {}, {}, {0: {"val_loss": 0.2, "step_seconds": 0.02}}, {1: "kerastf: no"}, 1100, 2_500_000),
        Row("norm=none", {}, {}),
    ]
    assert str(Ablation("val_loss", [0, 1], rows)).splitlines() == [
        "            parameters  FLOPs/step  ms/step         val_loss    runs",
        "norm=rms         1,100       2.5 M     20.0           0.2000  1 of 2",
        "norm=layer       1,200           -     10.0  0.3000 ± 0.0707  2 of 2",
        "norm=none            -           -        -                -  0 of 2",
        "norm=rms, seed 1: kerastf: no",
    ]
    assert [r.name for r in Ablation("val_accuracy", [0], [*rows]).ordered()][-1] == "norm=none"


@pytest.mark.slow
def test_the_recipe_of_a_row_gives_the_run_again(done, tmp_path):
    found, out, _ = done
    again = training.train(
        out / "rows" / "norm=rms.toml", tmp_path / "run", settings=["training.seed=1"], stream=io.StringIO()
    )
    assert again["val_loss"] == found.rows[1].results[1]["val_loss"]


@pytest.mark.slow
def test_what_is_finished_is_not_trained_again(done):
    found, out, _ = done
    file = out / "runs" / "norm=rms" / "seed-0" / "best.keras"
    before = file.stat().st_mtime_ns
    again = training.ablate("gpt", GRID, out, seeds=2, settings=TINY, jobs=2, stream=io.StringIO())
    assert file.stat().st_mtime_ns == before
    assert [r.results for r in again.rows] == [r.results for r in found.rows]


@pytest.mark.slow
def test_a_run_that_fails_costs_only_itself(tmp_path):
    out = tmp_path / "out"
    grid = {"optimizer.rate": [0.001, 1e30]}
    found = training.ablate("gpt", grid, out, seeds=1, settings=TINY, jobs=2, stream=io.StringIO())
    sound, spoilt = found.rows
    assert sound.results and not sound.failures
    assert not spoilt.results and "kerastf:" in spoilt.failures[0]
    assert str(found).splitlines()[-1].startswith("rate=1e+30, seed 0: ")


@pytest.mark.slow
def test_stopped_it_goes_on(tmp_path):
    out = tmp_path / "out"
    sets = [part for setting in [*TINY, "training.steps=400", "training.save_every=20"] for part in ("--set", setting)]
    command = [sys.executable, "-m", "kerastf", "ablate", "gpt", "--grid", "norm=layer", "--seeds", "1", *sets]
    with subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True) as process:
        saved = out / "runs" / "norm=layer" / "seed-0" / "checkpoints"
        while not (saved.is_dir() and any(saved.glob("step-*.zip"))):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
    assert process.returncode == 130 and "the same command goes on" in told
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, check=True)
    assert "1/1  norm=layer, seed 0: val_loss" in ended.stdout
    assert "Going on from step" in (out / "logs" / "norm=layer.seed-0.txt").read_text()


@pytest.mark.parametrize(
    "texts, told",
    [
        (["norm"], "A choice looks like attention=multi_head,window. Received: 'norm'"),
        (["norm=layer", "norm=rms"], "Each setting may have one list of values. Received: 'norm' twice"),
        (["norm=[layer"], "The list cannot be read"),
    ],
)
def test_grids_that_cannot_be_read(texts, told):
    with pytest.raises(ConfigError, match=told.replace("[", r"\[")):
        training.parse_grid(texts)


def test_a_combination_that_cannot_be_is_told_before_anything_is_trained(tmp_path):
    grid = {"norm": ["rms", "rmss"], "attention": ["multi_head"]}
    with pytest.raises(ConfigError, match=r"Nothing was trained. norm=rmss,attention=multi_head: .*rms"):
        training.ablate("gpt", grid, tmp_path / "out", settings=TINY)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="seeds=0"):
        training.ablate("gpt", GRID, tmp_path / "out", seeds=0)
    with pytest.raises(ConfigError, match="at least one setting"):
        training.ablate("gpt", {}, tmp_path / "out")


def test_blocks_with_options_have_names_of_their_own(tmp_path):
    attention = [{"name": "window", "window": 2}, {"name": "window", "window": 4}, "multi_head"]
    rows = _rows("gpt", {"attention": attention}, TINY)
    assert [r.name for r in rows] == ["attention=window", "attention=window-2", "attention=multi_head"]
