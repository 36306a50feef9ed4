"""Programs are compiled while the step is traced: once, for the shapes of the step, and without a trace in the weights."""

import collections
import json
import os
import re
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerastf
from kerastf import ahead, fitting, tracing

SMALL = {"vocab_size": 5, "max_length": 128, "dim": 256, "num_layers": 1, "num_heads": 4, "dropout": 0.0}

TRAINING = """
import json, sys
import keras, numpy as np, tensorflow as tf
import kerastf
from kerastf import ahead, fitting, streams, tracing

tracing.one_dnn, fitting.MANY = lambda: True, 2**16
streams.LARGE, streams.RATIO = (1, 0) if "halves" in sys.argv[1] else (2**60, 1)
model = kerastf.create_model("gpt", **json.loads(sys.argv[2]))
model.compile("adamw")
x = np.ones((6, 128), "int32")
feeds = {
    "arrays": lambda: model.fit(x, x, batch_size=3, verbose=0),
    "few arrays": lambda: model.fit(x[:3], x[:3], verbose=0),
    "dataset": lambda: model.fit(tf.data.Dataset.from_tensors((x, x)).repeat(2), verbose=0),
    "few arrays in halves": lambda: model.fit(x[:4], x[:4], verbose=0),
    "dataset in halves": lambda: model.fit(tf.data.Dataset.from_tensors((x, x)).repeat(2), verbose=0),
}
feeds[sys.argv[1]]()
print(*(name.decode() for name, *_ in ahead._begun))
assert not any(future.exception() for future in ahead._begun.values())
"""


@pytest.mark.parametrize("feed", ["arrays", "few arrays", "dataset", "few arrays in halves", "dataset in halves"])
def test_what_is_compiled_ahead_is_not_compiled_again_by_the_step(feed):
    told = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "device_compilation_profiler=1"}
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, feed, json.dumps(SMALL)], capture_output=True, text=True, check=True,
        env={**os.environ, **told},
    )  # fmt: skip
    begun = collections.Counter(ran.stdout.split())  # some for halves of a batch, and for the whole
    compiled = collections.Counter(re.findall(r"Compiled (\S+) \d+ times", ran.stderr))
    assert compiled == begun and len(begun) > 5


@pytest.fixture
def programs(monkeypatch):
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    monkeypatch.setattr(fitting, "MANY", 2**16)


def test_weights_are_those_of_a_training_that_compiles_nothing_ahead(monkeypatch, programs):
    x = np.random.default_rng(0).integers(5, size=(6, 128))

    def train():
        keras.utils.set_random_seed(0)
        model = kerastf.create_model("gpt", **SMALL)
        model.compile(keras.optimizers.AdamW(0.01))
        model.fit(x, x, batch_size=3, epochs=2, shuffle=False, verbose=0)
        return [keras.ops.convert_to_numpy(v) for v in (*model.weights, *model.optimizer.variables)]

    begun = set(ahead._begun)
    mine = train()
    assert set(ahead._begun) - begun
    monkeypatch.setattr(ahead, "begin", lambda *given: None)
    for a, b in zip(mine, train(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("shape", "begins"), [((2, 3), True), ((None, 3), False), ((2, None), False), ((2, 4), False)])
def test_only_small_programs_of_known_shapes_begin_and_each_once(monkeypatch, shape, begins):
    asked = []
    monkeypatch.setattr(ahead, "LARGE", 8)
    monkeypatch.setattr(ahead, "_worker", lambda: types.SimpleNamespace(submit=lambda *given: asked.append(given)))
    double = tf.function(lambda x: x + x, jit_compile=True, autograph=False)

    @tf.function(input_signature=[tf.TensorSpec(shape)], autograph=False)
    def step(x):
        found = double(x)
        ahead.begin(double, x)
        ahead.begin(double, x)
        return found

    step.get_concrete_function()
    assert len(asked) == begins


@pytest.mark.parametrize(("x", "batch_size", "shape"), [
    (np.ones((7, 3)), None, (7, 4)), (np.ones((70, 3)), None, (32, 4)), (np.ones((70, 3)), 8, (8, 4)),
    ({"a": np.ones((70, 3))}, 8, (8, 4)), (tf.data.Dataset.range(9), None, (None, 4)), (None, 8, (None, 4)),
])  # fmt: skip
def test_rows_of_a_batch_are_known_where_arrays_are_given(x, batch_size, shape):
    with ahead.expecting(x, batch_size):
        assert ahead.expected(tf.TensorShape([None, 4])) == shape
        assert ahead.expected(tf.TensorShape([5, 4])) == (5, 4)
        assert ahead.expected(tf.TensorShape([])) == ()
    assert ahead.expected(tf.TensorShape([None, 4])) == (None, 4)
