"""What other programs make of exported models, and the library of safetensors of our files. `make test-peers`."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import convert, registry
from kerastf.convert import tensors
from kerastf.errors import ConfigError

pytestmark = pytest.mark.peers

SIZES = {"vocab_size": 40, "max_length": 12, "dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}


def test_the_file_is_the_same_for_the_library(tmp_path):
    import safetensors.numpy

    convert.save(kerastf.create_model("gpt", **SIZES), tmp_path / "folder")
    theirs = safetensors.numpy.load_file(tmp_path / "folder" / "model.safetensors")
    ours = tensors.open_folder(tmp_path / "folder")
    assert sorted(theirs) == sorted(ours)
    for name, array in theirs.items():
        np.testing.assert_array_equal(array, ours.read(name))


PAIR = {"start_id": 1, "end_id": 2}
WORDS = {"vocab_size": 40, "dim": 8, "dropout": 0.0}
SMALL = {
    "gpt": SIZES,
    "bert": SIZES,
    "vit": {"image_size": 8, "patch_size": 4, "dim": 8, "num_layers": 1, "num_heads": 2, "num_classes": 3},
    "transformer": {**SIZES, **PAIR},
    "rnn": {**WORDS, "units": 6},
    "elmo": {**WORDS, "units": 6},
    "seq2seq": {**WORDS, "units": 6, "num_layers": 1, **PAIR},
    "conv_lm": {**WORDS, "num_layers": 2},
    "conv_s2s": {**WORDS, "max_length": 12, "num_layers": 2, **PAIR},
    "word2vec": {"vocab_size": 9, "dim": 4, "counts": list(range(9, 0, -1))},
}


def batch_of(model, rows=1, length=5):
    return type(model).example_inputs(model.options, rows, length, np.random.default_rng(0))


def test_every_family_is_tried():
    assert sorted(SMALL) == sorted(e.id for e in registry.entries("model") if "/" not in e.id)


@pytest.mark.parametrize("to", ["savedmodel", "onnx", "litert"])
@pytest.mark.parametrize("family", SMALL)
def test_exported_models_give_the_same(family, to, tmp_path):
    model = kerastf.create_model(family, **SMALL[family])
    path = convert.export(model, tmp_path / {"savedmodel": "model", "onnx": "m.onnx", "litert": "m.tflite"}[to], to)
    one_at_a_time = to == "litert" and family in ("vit", "rnn", "elmo", "seq2seq")
    for rows, length in ((1, 5), (1 if one_at_a_time else 3, 7)):
        inputs = batch_of(model, rows, length)
        want = model(next(iter(inputs.values())) if len(inputs) == 1 else inputs)
        found = {array.shape: array for array in served(path, to, inputs)}  # no two outputs are alike
        for array in keras.tree.flatten(keras.tree.map_structure(ops.convert_to_numpy, want)):
            np.testing.assert_allclose(found[array.shape], array, atol=1e-5)


def served(path, to, inputs):
    """What another program makes of the inputs: its outputs, in any order."""
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path))
        assert {i.name for i in session.get_inputs()} == set(inputs)
        return session.run(None, inputs)
    if to == "savedmodel":
        import tensorflow as tf

        loaded = tf.saved_model.load(str(path))
        found = loaded.serve(next(iter(inputs.values())) if len(inputs) == 1 else inputs)
        return [array.numpy() for array in keras.tree.flatten(found)]
    from ai_edge_litert.interpreter import Interpreter

    lite = Interpreter(str(path))
    details = lite.get_input_details()
    for detail in details:
        name = next((n for n in inputs if n in detail["name"]), next(iter(inputs)))
        if tuple(detail["shape"]) != inputs[name].shape:
            lite.resize_tensor_input(detail["index"], inputs[name].shape)
    lite.allocate_tensors()
    for detail in details:
        name = next((n for n in inputs if n in detail["name"]), next(iter(inputs)))
        lite.set_tensor(detail["index"], inputs[name])
    lite.invoke()
    return [lite.get_tensor(detail["index"]) for detail in lite.get_output_details()]


def test_a_litert_file_that_the_runtime_cannot_run_is_refused(tmp_path, monkeypatch):
    model = kerastf.create_model("gpt", **SIZES)
    monkeypatch.setattr(
        type(model), "export", lambda self, path, **_: Path(path).write_bytes(b"TFL3\0FlexBincount\0FlexCumsum\0")
    )
    with pytest.raises(ConfigError, match="LiteRT, which does not have Bincount, Cumsum"):
        convert.export(model, tmp_path / "m.tflite", "litert")
    assert not (tmp_path / "m.tflite").exists()


EXPORTED_FROM_JAX = """
import sys
import numpy as np
import tensorflow as tf
import kerastf

for position in ("learned", "sinusoidal", "rotary", "alibi", "none"):
    small = {"vocab_size": 9, "max_length": 6, "dim": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    model = kerastf.create_model("gpt", **small, position=position)
    tokens = np.random.default_rng(0).integers(9, size=(3, 5))
    want = model(tokens)
    model.export(f"{sys.argv[1]}/{position}", verbose=False)
    loaded = tf.saved_model.load(f"{sys.argv[1]}/{position}")
    for rows, length in ((3, 5), (1, 2)):
        found = loaded.serve(tokens[:rows, :length])
        np.testing.assert_allclose(found, np.asarray(want)[:rows, :length], atol=1e-6)
print("kept")
"""


def test_jax_exports_rows_of_any_length(tmp_path):
    command = [sys.executable, "-c", EXPORTED_FROM_JAX, str(tmp_path)]
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip().endswith("kept"), done.stderr[-3000:]
