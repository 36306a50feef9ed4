"""The recipe on tiny sizes, its parts, and the same on JAX without TensorFlow."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from kerastf_dalle import judge, shapes
from kerastf_dalle.__main__ import arguments, main, shares

TINY = ["--pictures", "64", "--dvae-epochs", "1", "--epochs", "1", "--judge-epochs", "1", "--codes", "8",
        "--dvae-dim", "8", "--dim", "16", "--layers", "1", "--batch", "32"]  # fmt: skip


def test_the_whole_recipe_on_tiny_sizes(tmp_path, capsys):
    main(["--out", str(tmp_path), *TINY])
    found = json.loads((tmp_path / "figures.json").read_text())
    assert set(found["unseen"]) == {*shapes.ATTRIBUTES, "all"} and found["drawings"] == 72
    assert {p.name for p in tmp_path.iterdir()} == {"dalle.keras", "dvae.keras", "figures.json", "drawings.png"}
    assert "drawings of UNSEEN captions: count " in capsys.readouterr().out


def test_judging():
    class Fixed:
        """Says the same of every picture: three white crosses in the middle."""

        def predict(self, images, **kwargs):
            return {name: np.eye(len(v))[[-1] * len(images)] for name, v in shapes.VALUES.items()}

    shown = [shapes.Scene("three", "white", "cross", "middle"), shapes.Scene("three", "red", "cross", "middle")]
    right = judge.judge(Fixed(), np.zeros((2, 32, 32, 3)), shown)
    assert shares(right) == {"count": 1.0, "colour": 0.5, "shape": 1.0, "position": 1.0, "all": 0.5}


def test_options():
    assert arguments(["--jit"]).jit is True and arguments(["--no-jit"]).jit is False


@pytest.mark.peers
def test_jax_without_tensorflow():
    code = """
import sys
sys.modules["tensorflow"] = None  # an import of it fails
import numpy as np, kerastf, kerastf_dalle
from kerastf_dalle import judge, shapes
images, shown = shapes.pictures(shapes.scenes(), 8)
dvae = kerastf.create_model("dalle/dvae.tiny", dim=8, num_codes=8, end_temperature=0.5, anneal_steps=4)
dvae.compile("adam")
logs = dvae.fit(images, batch_size=4, verbose=0).history
assert dvae.temperature == 0.75, dvae.temperature
assert 1 <= logs["codes_in_use"][0] <= 8, logs
model = kerastf.create_model("dalle/dalle.tiny", dvae=dvae, vocab_size=9, dim=16, num_layers=1, num_heads=2, pad_id=0)
model.compile("adam")
model.fit(*model.sequences([[1, 2]] * 8, images), batch_size=4, verbose=0)
print(model.generate([[1, 2], [3]]).shape)
"""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip() == "(2, 32, 32, 3)", done.stderr
