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
