"""A generated plugin's whole life in an environment of its own: installed, tested, checked, used, removed, back again."""

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from kerastf import plugins

SAVE = """
import sys, keras, kerastf
keras.utils.set_random_seed(1)
model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=1, num_heads=2, **{sys.argv[1]: sys.argv[2]})
model.save("model.keras")
print(float(keras.ops.sum(model(keras.ops.ones((1, 4), dtype="int32")))))
"""
LOAD = """
import keras, kerastf
model = kerastf.load_model("model.keras")
print(float(keras.ops.sum(model(keras.ops.ones((1, 4), dtype="int32")))))
"""


def overlay():
    """Folders that make this interpreter's packages importable elsewhere, so that nothing is fetched."""
    tops = {e.target.partition(":")[0].partition(".")[0] for p in plugins.discover().values() for e in p.entries}
    sources = [Path(importlib.util.find_spec(top).origin).parents[1] for top in sorted(tops)]
    return [*map(str, dict.fromkeys(sources)), *(p for p in sys.path if p.endswith("site-packages"))]


class Place:
    """A virtual environment that lays itself over the present one."""

    def __init__(self, folder):
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.folder = folder
        self.python = folder / "venv" / "bin" / "python"
        site = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (site / "overlay.pth").write_text("\n".join(overlay()) + "\n")
        self.environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self.environment.pop("PYTHONPATH", None)

    def run(self, *arguments, status=0):
        done = subprocess.run(
            [self.python, *map(str, arguments)], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "norm"])
def test_a_whole_life(kind, tmp_path):
    place = Place(tmp_path)
    assert place.run("-m", "kerastf", "plugin", "new", "newborn", "--kind", kind, "--block", "first").startswith(
        "kerastf-newborn is a package of one "
    )
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "-e", "kerastf-newborn"]
    place.run(*install)
    assert f"{kind} newborn/first" in place.run("-m", "kerastf", "plugins")

    assert "1 passed" in place.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "kerastf-newborn")
    report = place.run("-m", "kerastf", "plugin", "check", "kerastf-newborn", "--full")
    assert " 0 failed, 0 not asked for\n" in report and "It is sound" in report
    assert "nothing is wrong with it" in place.run("-m", "kerastf", "plugin", "doctor", "newborn")

    place.run("-m", "kerastf", "matrix", "--block", "newborn/first", "--json", "matrix.json")
    rows = json.loads((tmp_path / "matrix.json").read_text())
    outcomes = {f"{row['model']}.{row['slot']}": row["outcome"] for row in rows}
    refused = {cell: text for cell, text in outcomes.items() if text != "ok"}
    print(f"{kind}: {len(outcomes) - len(refused)} of {len(outcomes)} cells", refused)
    assert "ok" in outcomes.values() and not [t for t in refused.values() if " fails: " in t]
    # What it does not fit is refused for a need that it does not declare, not for a bug.
    assert all("does not support" in text or "position" in text for text in refused.values()), refused

    before = place.run("-c", SAVE, kind, "newborn/first")
    place.run("-m", "pip", "uninstall", "-q", "-y", "kerastf-newborn")
    told = place.run("-c", LOAD, status=1)
    assert f"The file needs the {kind} block `newborn/first`, and no installed package offers it." in told
    assert "If you trust that package: pip install kerastf-newborn==0.1.0" in told
    place.run(*install)
    assert place.run("-c", LOAD) == before
