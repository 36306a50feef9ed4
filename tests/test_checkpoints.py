"""Checkpoints of a training: complete, whole or not there, and honest about damage."""

import resource
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest

import kerastf
from kerastf.errors import FileFormatError
from kerastf.training import checkpoints

TINY = {"vocab_size": 11, "max_length": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.5}


def make(**options):
    model = kerastf.create_model("gpt", **{**TINY, **options})
    model.compile(keras.optimizers.AdamW(1e-2, name="adamw"), run_eagerly=True)
    return model


def learn(model, steps, start=0):
    for step in range(start, start + steps):
        tokens = np.random.default_rng(step).integers(0, 11, (4, 9)).astype("int32")
        model.train_on_batch(tokens[:, :-1], tokens[:, 1:])


def values(model):
    return [keras.ops.convert_to_numpy(v) for v in checkpoints.variables_of(model)]


def test_a_restored_model_goes_on_bit_for_bit(tmp_path):
    """Weights, moments, counters and the seeds of dropout: five steps, or three and a restored two."""
    keras.utils.set_random_seed(0)
    model = make()
    learn(model, 3)
    checkpoints.save(tmp_path, 3, model, {"best": 1.5})
    learn(model, 2, start=3)
    keras.utils.set_random_seed(9)
    other = make()
    assert checkpoints.restore(tmp_path, other)[:2] == (3, {"best": 1.5})
    learn(other, 2, start=3)
    for a, b in zip(values(model), values(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_a_seed_it_would_not(tmp_path):
    """The check above can fail: a checkpoint without the seeds gives other dropout."""
    keras.utils.set_random_seed(0)
    model, other = make(), make()
    learn(model, 1)
    for mine, theirs in zip(checkpoints.variables_of(model), checkpoints.variables_of(other), strict=True):
        if "seed_generator" not in mine.path:
            theirs.assign(mine.value)
    learn(model, 1, start=1)
    learn(other, 1, start=1)
    assert any(np.any(a != b) for a, b in zip(values(model)[:4], values(other)[:4], strict=True))


def test_only_the_newest_are_kept(tmp_path):
    model = make()
    assert checkpoints.restore(tmp_path, model) == (0, None, [])
    for step in (5, 20, 100):
        checkpoints.save(tmp_path, step, model, {}, keep=2)
    assert checkpoints.saved_steps(tmp_path) == [100, 20]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000000020.zip", "step-000000100.zip"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "text"])
def test_a_damaged_one_gives_way_to_the_one_before(tmp_path, damage):
    model = make()
    checkpoints.save(tmp_path, 1, model, {"n": 1})
    before = values(model)
    learn(model, 1)
    checkpoints.save(tmp_path, 2, model, {"n": 2})
    path = tmp_path / "step-000000002.zip"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "flipped":
        content[len(content) // 3] ^= 1
    elif damage == "emptied":
        content = b""
    else:
        content = b"this is no archive"
    path.write_bytes(content)
    told, other = [], make()
    step, state, _ = checkpoints.restore(tmp_path, other, tell=told.append)
    assert (step, state) == (1, {"n": 1})
    assert told[0].startswith("The checkpoint of step 2 is damaged (") and "going back to the one before" in told[0]
    for a, b in zip(before, values(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_all_damaged(tmp_path):
    model = make()
    checkpoints.save(tmp_path, 1, model, {})
    (tmp_path / "step-000000001.zip").write_bytes(b"")
    with pytest.raises(FileFormatError, match="All 1 checkpoints are damaged. Move the folder away to start anew."):
        checkpoints.restore(tmp_path, model, tell=lambda _: None)


def test_of_another_model(tmp_path):
    checkpoints.save(tmp_path, 1, make(), {})
    with pytest.raises(FileFormatError) as error:
        checkpoints.restore(tmp_path, make(dim=4))
    assert str(error.value) == (
        "step-000000001.zip belongs to another model or optimizer: it has embedding/matrix (11, 8) where "
        "embedding/matrix (11, 4) is needed."
    )


def test_what_is_no_number_is_never_saved(tmp_path):
    model = make()
    checkpoints.save(tmp_path, 1, model, {})
    weight = model.trainable_variables[2]
    weight.assign(np.full(weight.shape, np.nan))
    with pytest.raises(checkpoints.NotFinite, match=weight.path):
        checkpoints.save(tmp_path, 2, model, {})
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001.zip"]


def test_holds_arrays_only(tmp_path):
    checkpoints.save(tmp_path, 1, make(), {})
    with zipfile.ZipFile(tmp_path / "step-000000001.zip") as archive:
        names = set(archive.namelist())
        assert all(archive.read(n).startswith(b"\x93NUMPY") for n in names - {"checkpoint.json"})


FULL = """
import resource, sys
import keras, kerastf
from kerastf.training import checkpoints
model = kerastf.create_model("gpt", vocab_size=11, max_length=8, dim=8, num_layers=1, num_heads=2)
model.compile()
checkpoints.save(sys.argv[1], 1, model, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    checkpoints.save(sys.argv[1], 2, model, {})
except OSError as error:
    print("refused", error.strerror)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no limit of file sizes here")
def test_a_full_disk_leaves_the_one_before(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "refused File too large" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001.zip"]
