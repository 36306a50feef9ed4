"""What a newcomer does, taken from the pages word by word: install, train, swap, save, load, write and build a plugin."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def fences(path, language):
    """The blocks of code of a page in one language: what stands after `title=`, if anything, and the code."""
    found = re.findall(rf'^```{language}(?: title="([^"]*)")?\n(.*?)^```$', path.read_text("utf-8"), re.S | re.M)
    return [(title, code) for title, code in found]


def test_from_the_home_page_to_a_plugin_of_ones_own(tmp_path):
    def shell(command, folder, path=os.environ["PATH"]):
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            command, shell=True, cwd=folder, env={**clean, "PATH": path}, capture_output=True, text=True, timeout=1800
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    # Install, as the home page says, but for the two words that depend on where we are.
    (_, install), *_ = fences(ROOT / "docs" / "index.md", "bash")
    assert install.count("python3") == 1 and install.count("install '.[plots]'") == 1
    install = install.replace("python3", sys.executable).replace("install '.", f"install --quiet '{ROOT}")
    shell(f"set -e\n{install}", tmp_path)

    # Its code, from top to bottom, in one file.
    code = "\n".join(code for _, code in fences(ROOT / "docs" / "index.md", "python"))
    (tmp_path / "walk.py").write_text(code)
    told = shell("env/bin/python walk.py", tmp_path)
    assert "'multi_head'" in told and "norm `local/halve`" in told
    assert (tmp_path / "small.keras").exists()
    assert "attention.png" in shell("env/bin/kerastf demo --steps 20", tmp_path)

    # The plugin page: its commands, with the environment switched on.
    path = f"{tmp_path / 'env' / 'bin'}:{os.environ['PATH']}"
    pages = fences(ROOT / "docs" / "plugins.md", "bash")
    shell(next(code for _, code in pages if "plugin new" in code), tmp_path, path)
    commands = next(code for title, code in pages if title)
    told = shell(f"set -e\n{commands}", tmp_path / "kerastf-mine", path)
    assert "mine/unit" in told and "0 failed" in told
    wheel = next((tmp_path / "kerastf-mine" / "dist").glob("kerastf_mine-*.whl"))

    # What was built is what works: install it instead, and use, save and load a model with it.
    shell(f"env/bin/python -m pip install --quiet --force-reinstall --no-deps {wheel}", tmp_path)
    (tmp_path / "use.py").write_text(
        'import kerastf\nmodel = kerastf.create_model("gpt.nano", vocab_size=65, norm="mine/unit")\n'
        'model.save("mine.keras")\nprint(kerastf.inspect(kerastf.load_model("mine.keras") and "mine.keras").provenance)\n'
    )
    assert "kerastf-mine" in shell("env/bin/python use.py", tmp_path)
