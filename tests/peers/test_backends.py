"""The same contracts on the other backends of Keras. `make test-peers`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers

CODE = """
import kerastf
for kind, id in [("attention", "multi_head"), ("attention", "window"), ("attention", "bahdanau"), ("norm", "layer")]:
    kerastf.testing.check_block(kind, id)
for id in ("simple", "lstm", "gru"):
    kerastf.testing.check_block("cell", id)
kerastf.testing.check_model("gpt")
kerastf.testing.check_model("rnn")
both = {"bidirectional": True, "head": {"name": "tagger", "num_classes": 13}}
kerastf.testing.check_model("rnn", cell="gru", only=["gradients", "padding", "fit"], **both)
print("kept")
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_contracts(backend):
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip().endswith("kept"), done.stdout[-2000:] + done.stderr[-3000:]


FEATURES = """
import keras, kerastf, numpy as np
from kerastf import chunked_loss
from kerastf.models import from_features
x, y = np.random.default_rng(0).integers(0, 11, (2, 20, 9)).astype("int32")
weights = np.random.default_rng(1).random((20, 9)).astype("float32")
found = []
for from_features.LARGE, chunked_loss.LOGITS in ((0, 8), (0, 2**24), (2**60, None)):
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, pad_id=3)
    model.compile("adamw")
    history = model.fit(x, y, sample_weight=weights, batch_size=8, epochs=3, validation_data=(x, y), verbose=0).history
    found.append(np.concatenate([np.ravel(a) for a in (*history.values(), *model.get_weights())]))
assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
for other in found[:2]:
    np.testing.assert_allclose(other, found[2], atol=1e-5)
print("kept")
"""


def test_jax_trains_the_same_from_features_and_from_logits():
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    done = subprocess.run([sys.executable, "-c", FEATURES], capture_output=True, text=True, env=environment)
    assert done.stdout.strip().endswith("kept"), done.stderr[-3000:]
