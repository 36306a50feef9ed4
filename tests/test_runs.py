"""Runs: a recipe becomes a folder; killed, stopped or damaged, nothing is lost."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import keras
import numpy as np
import pytest

from kerastf import training
from kerastf.checkpoint import load_model
from kerastf.errors import ConfigError, FileFormatError
from kerastf.training import checkpoints
from kerastf.training.run import Runner

TINY = [
    "data.source=embedded:corpus", "data.size=4000", "data.length=12", "data.batch_size=4", "model.max_length=12",
    "model.dim=8", "model.num_layers=1", "model.num_heads=2", "model.dropout=0.1", "model.vocab_size=300",
]  # fmt: skip


def command(out, *settings):
    sets = [part for s in [*TINY, *settings] for part in ("--set", s)]
    return [sys.executable, "-m", "kerastf", "train", "gpt", "--out", str(out), *sets]


def run(out, *settings):
    return subprocess.run(command(out, *settings), capture_output=True, text=True, check=False)


def arrays(out, step):
    with zipfile.ZipFile(out / "checkpoints" / f"step-{step:09d}.zip") as archive:
        return [archive.read(n) for n in archive.namelist() if n.endswith(".npy")]


def rows(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in lines]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = run(out, "training.steps=40", "training.save_every=3", "training.evaluate_every=8")
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_folder_of_a_run(undisturbed):
    out, told = undisturbed
    names = {p.name for p in out.iterdir()}
    assert names == {
        "recipe.toml", "environment.json", "metrics.jsonl", "tensorboard", "curves.png", "tokenizer.json", "best.keras",
        "best.json", "last.keras", "checkpoints", "results.json", "lock",
    }  # fmt: skip
    assert [r["step"] for r in rows(out)] == [8, 16, 24, 32, 40]
    results = json.loads((out / "results.json").read_text())
    best = min(rows(out), key=lambda r: r["val_loss"])
    assert results["best_step"] == best["step"] and results["val_loss"] == pytest.approx(best["val_loss"], abs=1e-5)
    assert json.loads((out / "environment.json").read_text())["packages"]["keras"]
    assert "40 steps" in told.splitlines()[0] and told.splitlines()[-1].startswith("Finished in 0:")
    assert training.read_recipe(out / "recipe.toml").tables == training.RunFolder(out).recipe().tables


def test_tensorboard_can_read_it(undisturbed):
    import tensorflow as tf

    found = {}
    for path in (undisturbed[0] / "tensorboard").iterdir():
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                found[(value.tag, event.step)] = float(tf.make_ndarray(value.tensor))
                assert value.metadata.plugin_data.plugin_name == "scalars"
    assert found[("val_loss", 24)] == pytest.approx(rows(undisturbed[0])[2]["val_loss"])


def test_a_finished_run_is_not_trained_again(undisturbed, capsys):
    out, _ = undisturbed
    before = (out / "last.keras").stat().st_mtime_ns
    settings = [*TINY, "training.steps=40", "training.save_every=3", "training.evaluate_every=8"]
    found = training.train("gpt", out, settings=settings)
    assert "is finished: val_accuracy" in capsys.readouterr().out
    assert found == json.loads((out / "results.json").read_text())
    assert (out / "last.keras").stat().st_mtime_ns == before
    with pytest.raises(ConfigError) as error:
        training.train("gpt", out, settings=[*settings, "training.steps=50", "optimizer.rate=0.1"])
    assert str(error.value) == (
        "The folder holds another run: optimizer.rate: 0.001 there, 0.1 here; training.steps: 40 there, 50 here. "
        f"Give another --out, or --fresh to replace it. Received: {str(out)!r}"
    )


def kill_when(process, done, number=signal.SIGKILL, limit=300):
    """Sends a signal as soon as something is so; says whether it was, before the process ended."""
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < limit:
        if done():
            process.send_signal(number)
            process.wait()
            return True
        time.sleep(0.01)
    process.wait()
    return False


def test_killed_and_started_again_it_ends_with_the_same_bits(undisturbed, tmp_path):
    out = tmp_path / "killed"
    settings = ("training.steps=40", "training.save_every=3", "training.evaluate_every=8")
    process = subprocess.Popen(command(out, *settings), stdout=subprocess.DEVNULL)
    assert kill_when(process, lambda: (checkpoints.saved_steps(out / "checkpoints") or [0])[0] >= 9)
    done = run(out, *settings)
    assert done.returncode == 0 and "Going on from step " in done.stdout
    assert arrays(out, 40) == arrays(undisturbed[0], 40)
    assert rows(out) == rows(undisturbed[0])


@pytest.mark.slow
def test_killed_twenty_times_at_random(undisturbed, tmp_path):
    """Kills come while Python starts, while TensorFlow compiles, between steps, while files are written."""
    out, rng = tmp_path / "killed", np.random.default_rng(0)
    settings = ("training.steps=40", "training.save_every=3", "training.evaluate_every=8")
    for number in range(20):
        process = subprocess.Popen(command(out, *settings), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        first = (checkpoints.saved_steps(out / "checkpoints") or [0])[0]
        at = time.monotonic() + float(rng.uniform(0.5, 8))
        if number % 2:  # half of them after there was some progress, so that there is an end
            kill_when(process, lambda f=first: (checkpoints.saved_steps(out / "checkpoints") or [0])[0] > f)
        else:
            kill_when(process, lambda t=at: time.monotonic() > t)
        assert process.returncode in (0, -signal.SIGKILL)
    done = run(out, *settings)
    assert done.returncode == 0, done.stderr
    assert arrays(out, 40) == arrays(undisturbed[0], 40)
    assert rows(out) == rows(undisturbed[0])


def workers_of(process):
    """The numbers of the processes that a supervisor has started."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=False
    )
    return [int(n) for n in found.stdout.split()]


@pytest.mark.slow
def test_a_worker_is_killed_and_all_go_on(tmp_path):
    """Two workers; the second is killed; the supervisor starts both again, and they end with the same bits."""
    settings = ("training.steps=40", "training.save_every=3", "training.evaluate_every=8")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*command(whole, *settings), "--workers", "2"], check=True, capture_output=True)
    with subprocess.Popen(
        [*command(killed, *settings), "--workers", "2"], stdout=subprocess.PIPE, text=True
    ) as process:
        while (checkpoints.saved_steps(killed / "checkpoints") or [0])[0] < 9:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(workers_of(process)[1], signal.SIGKILL)
        told = process.stdout.read()
    assert process.returncode == 0, told
    assert "[supervisor] all workers start again (1 of 3)" in told and "Going on from step " in told
    assert arrays(killed, 40) == arrays(whole, 40)


@pytest.mark.slow
def test_stopped_by_the_user_it_is_saved_at_that_step(undisturbed, tmp_path):
    """Ctrl-C between two multiples of everything; the checkpoint before it is damaged, and told so."""
    out = tmp_path / "stopped"
    settings = ("training.steps=40", "training.save_every=3", "training.evaluate_every=8")
    with subprocess.Popen(
        command(out, *settings), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert kill_when(process, lambda: (checkpoints.saved_steps(out / "checkpoints") or [0])[0] >= 6, signal.SIGINT)
        told = process.stderr.read().strip()
    step = checkpoints.saved_steps(out / "checkpoints")[0]
    assert process.returncode == 130
    assert told.splitlines()[-1] == f"kerastf: stopped at step {step}; the same command goes on"
    assert "Traceback" not in told
    assert (out / "last.keras").exists()
    newest = out / "checkpoints" / f"step-{step:09d}.zip"
    newest.write_bytes(newest.read_bytes()[:-100])
    done = run(out, *settings)
    assert done.returncode == 0, done.stderr
    assert f"The checkpoint of step {step} is damaged (" in done.stdout
    assert arrays(out, 40) == arrays(undisturbed[0], 40)
    assert rows(out) == rows(undisturbed[0])


def fill_first_weight(model, value):
    weight = model.trainable_variables[0]
    weight.assign(np.full(weight.shape, value, "float32"))


def stopped_by(out, save_every):
    """Trains until the run stops by itself; returns what it says then."""
    settings = [*TINY, "training.steps=40", f"training.save_every={save_every}", "training.jit_compile=false"]
    with pytest.raises(training.TrainingStopped) as error:
        training.train("gpt", out, settings=settings, stream=io.StringIO())
    return str(error.value)


def test_what_is_no_number_stops_the_run(tmp_path, monkeypatch):
    """A weight is spoilt before step 8; the model of step 6, the last that was saved, is kept."""

    def spoil(self, batch, logs=None):
        if batch == 7:
            fill_first_weight(self.model, np.nan)

    monkeypatch.setattr(Runner, "on_train_batch_begin", spoil)
    out = tmp_path / "run"
    assert stopped_by(out, save_every=3) == (
        "The loss is nan at step 8; its batch is in bad_batch.npz; last.keras holds the model of step 6, the last sound "
        "one. A lower rate or clipnorm may help."
    )
    with np.load(out / "bad_batch.npz") as batch:
        assert batch["arr_0"].shape == (4, 12)
    assert checkpoints.saved_steps(out / "checkpoints") == [6, 3]
    kept = load_model(out / "last.keras", compile=False)
    with zipfile.ZipFile(out / "checkpoints" / "step-000000006.zip") as archive:
        first = np.lib.format.read_array(io.BytesIO(archive.read("0.npy")))
    np.testing.assert_array_equal(kept.weights[0].numpy(), first)


def test_weights_that_are_no_numbers_are_never_saved(tmp_path, monkeypatch):
    """A step whose loss was a number leaves weights that are none."""
    after = Runner.on_train_batch_end

    def spoil(self, batch, logs=None):
        if batch == 1:
            fill_first_weight(self.model, np.inf)
        return after(self, batch, logs)

    monkeypatch.setattr(Runner, "on_train_batch_end", spoil)
    out = tmp_path / "run"
    assert stopped_by(out, save_every=2) == (
        "After step 2 the variable embedding/matrix holds what is no number; its batch is in bad_batch.npz; no model was "
        "saved before. A lower rate or clipnorm may help."
    )
    assert checkpoints.saved_steps(out / "checkpoints") == [] and not (out / "last.keras").exists()


def test_a_model_that_takes_several_steps_at_a_time(tmp_path):
    # Word2vec asks for 16 at a time; no evaluation, checkpoint or last step may fall between.
    settings = ["data.source=embedded:analogies", "data.length=16", "training.steps=22", "training.evaluate_every=8",
                "training.save_every=6", "training.keep=9"]  # fmt: skip
    training.train("word2vec", tmp_path / "run", settings=settings, stream=io.StringIO())
    assert [row["step"] for row in rows(tmp_path / "run")] == [8, 16, 22]
    saved = sorted(p.stem for p in (tmp_path / "run" / "checkpoints").glob("*.zip"))
    assert saved == [f"step-{n:09d}" for n in (6, 12, 18, 22)]


def test_one_process_at_a_time(tmp_path):
    import fcntl

    out = tmp_path / "run"
    out.mkdir()
    with open(out / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError) as error:
            training.train("gpt", out, settings=TINY)
    assert str(error.value) == f"Another process is training in this folder. Received: {str(out)!r}"


def test_a_folder_that_is_none_of_ours(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError) as error:
        training.train("gpt", tmp_path, settings=TINY)
    assert str(error.value) == f"The folder is not empty and holds no run. Received: {str(tmp_path)!r}"
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="A run needs a folder"):
        training.train("gpt", tmp_path / "thesis.tex", settings=TINY)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_recipe_of_the_users_is_no_run(tmp_path, fresh):
    """A project of the user's is its own folder of a run: nothing in it is written over or removed."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('# mine\n[model]\nname = "gpt"\n')
    (tmp_path / "environment.json").write_text('{"mine": 1}')
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "best.keras").write_text("mine")
    before = {p: p.is_file() and p.read_text() for p in tmp_path.rglob("*")}
    with pytest.raises(ConfigError) as error:
        training.train(recipe, tmp_path, settings=TINY, fresh=fresh)
    assert str(error.value) == (
        "The folder holds a recipe.toml that no run has written, and a run would write its own there. Give another "
        f"--out. Received: {str(tmp_path)!r}"
    )
    assert {p: p.is_file() and p.read_text() for p in tmp_path.rglob("*")} == before


QUICK = [*TINY, "training.steps=2", "training.evaluate_every=1", "training.jit_compile=false"]


def trained(out, *settings, fresh=False):
    return training.train("gpt", out, settings=[*QUICK, *settings], fresh=fresh, stream=io.StringIO())


def test_fresh_removes_what_the_run_wrote_and_only_then(tmp_path):
    out = tmp_path / "run"
    trained(out)
    (out / "notes.txt").write_text("mine")
    (out / "checkpoints" / "mine.txt").write_text("mine")
    (out / "bad_batch.npz").write_bytes(b"of the run before")
    before = {p.name: p.stat().st_mtime_ns for p in out.rglob("*") if p.name != "lock" and p.is_file()}
    for wrong in ("data.source=none.txt", "model.position=alibi", "training.monitor=val_bleu"):
        with pytest.raises(ValueError):
            trained(out, wrong, *(["model.attention=none"] if "alibi" in wrong else []), fresh=True)
        assert {p.name: p.stat().st_mtime_ns for p in out.rglob("*") if p.name in before and p.is_file()} == before
    trained(out, "optimizer.rate=0.1", fresh=True)
    assert training.RunFolder(out).recipe().optimizer["rate"] == 0.1 and len(rows(out)) == 2
    assert (out / "notes.txt").exists() and (out / "checkpoints" / "mine.txt").exists()
    assert not (out / "bad_batch.npz").exists()


def test_a_worker_that_is_started_again_goes_on_with_a_fresh_run(tmp_path, monkeypatch):
    out = tmp_path / "run"
    trained(out)
    for supervisor, anew in (("first", True), ("first", False), ("second", True)):
        monkeypatch.setenv("KERASTF_HEARTBEAT", str(tmp_path / supervisor / "0"))
        before = (out / "recipe.toml").stat().st_mtime_ns
        trained(out, fresh=True)
        assert ((out / "recipe.toml").stat().st_mtime_ns > before) == anew


def test_a_mistake_does_not_keep_the_folder(tmp_path):
    """The command with a typo, and the corrected one; also where an earlier version left a folder behind."""
    out = tmp_path / "run"
    with pytest.raises(FileFormatError, match=r"corpsu\.txt"):
        sizes = [s for s in QUICK if not s.startswith("data.size")]
        training.train("gpt", out, settings=[*sizes, "data.source=corpsu.txt"])
    assert [p.name for p in out.iterdir()] == ["lock"]
    training.RunFolder(out).claim(training.read_recipe("gpt", [*QUICK, "data.length=5"]))
    assert trained(out)["step"] == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("results.json", "{bad", "is damaged: Expecting property name"),
        ("results.json", "[]", "is damaged: it holds []"),
        ("recipe.toml", "model =", "is damaged: Invalid value"),
        ("recipe.toml", "model = 5", "`model` must be a table. Received: model=5"),
    ],
)
def test_damaged_files_of_a_run_are_named(undisturbed, tmp_path, name, text, says):
    out = tmp_path / "run"
    shutil.copytree(undisturbed[0], out, ignore=shutil.ignore_patterns("checkpoints", "tensorboard"))
    (out / name).write_text(text)
    settings = [*TINY, "training.steps=40", "training.save_every=3", "training.evaluate_every=8"]
    with pytest.raises(ValueError) as error:
        training.train("gpt", out, settings=settings)
    assert str(error.value).startswith(f"{out / name}") and says in str(error.value)


def test_lines_of_the_metrics_that_are_none(tmp_path):
    folder = training.RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 1, "loss": 2.0}\n[1]\n5\n{"loss": 1}\n{"step": "2"}\n{"st')
    folder.keep_rows(1)
    assert rows(tmp_path) == [{"step": 1, "loss": 2.0}]


def test_callbacks_hear_of_evaluations_as_epochs(tmp_path, monkeypatch):
    heard = []

    class Recorder(keras.callbacks.Callback):
        def __init__(self, least=0.5):
            super().__init__()
            self.least, self.count = least, 0

        def on_train_begin(self, logs=None):
            self.least = -self.least  # an option is never kept: it would be turned twice
            heard.append(f"begin of {self.params['epochs']}")

        def on_epoch_begin(self, epoch, logs=None):
            heard.append(f"{epoch} begins")

        def on_epoch_end(self, epoch, logs=None):
            self.count += 1
            heard.append(f"{epoch} ends, {self.count}, {self.least}")

        def on_train_end(self, logs=None):
            heard.append("end")

    monkeypatch.setattr(keras.callbacks, "Recorder", Recorder, raising=False)
    tables = training.read_recipe("gpt", [*QUICK, "training.steps=5", "training.evaluate_every=2"]).tables
    tables["training"]["save_every"] = 2
    tables["callbacks"] = [{"name": "Recorder"}]
    tables["training"]["keep"] = 3
    out, rest = tmp_path / "run", ["1 begins", "1 ends, 2, -0.5", "2 begins", "2 ends, 3, -0.5", "end"]
    training.train(tables, out, stream=io.StringIO())
    assert heard == ["begin of 3", "0 begins", "0 ends, 1, -0.5", *rest]
    heard.clear()
    for name in ("results.json", "checkpoints/step-000000005.zip", "checkpoints/step-000000004.zip"):
        (out / name).unlink()
    training.train(tables, out, stream=io.StringIO())  # goes on from step 2
    assert heard == ["begin of 3", *rest]


@pytest.mark.skipif(os.geteuid() == 0 and not os.path.isdir("/proc"), reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path):
    with pytest.raises(OSError):
        training.train("gpt", "/proc/kerastf-run", settings=TINY)


@pytest.mark.parametrize(
    "settings",
    [
        ["optimizer.average=0.9", "schedule.name=cosine", "schedule.warmup=2", "training.lora=2"],
        ["optimizer.accumulate=2", "schedule.name=inverse_square_root", "schedule.warmup=2", "optimizer.name=sgd",
         "optimizer.momentum=0.9", "optimizer.clipnorm=1.0"],
        pytest.param(["training.precision=mixed_bfloat16"], marks=pytest.mark.slow),
    ],
    ids=["average", "accumulate", "bfloat16"],
)  # fmt: skip
def test_what_people_expect_goes_on_too(tmp_path, settings):
    """Averages, accumulated gradients, schedules, LoRA, precision: six steps, or three, a stop, and three."""
    settings = [*TINY, *settings, "training.steps=6", "training.save_every=3", "training.evaluate_every=6",
                "training.jit_compile=false"]  # fmt: skip
    whole, again = tmp_path / "whole", tmp_path / "again"
    training.train("gpt", whole, settings=settings, stream=io.StringIO())
    shutil.copytree(whole, again)
    (again / "checkpoints" / "step-000000006.zip").unlink()
    (again / "results.json").unlink()
    training.train("gpt", again, settings=settings, stream=io.StringIO())
    assert arrays(whole, 6) == arrays(again, 6)
    assert rows(whole) == rows(again)


@pytest.mark.slow
def test_replicas_go_on(tmp_path):
    """Two replicas: six steps, or three, a stop, and three. In processes of their own: devices are set once."""
    settings = ("training.steps=6", "training.save_every=3", "training.evaluate_every=6", "training.devices=cpu:2")
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert run(whole, *settings).returncode == 0
    shutil.copytree(whole, again)
    (again / "checkpoints" / "step-000000006.zip").unlink()
    (again / "results.json").unlink()
    done = run(again, *settings)
    assert done.returncode == 0 and "Going on from step 3." in done.stdout, done.stderr
    assert arrays(whole, 6) == arrays(again, 6)
