"""Real mistakes of users: each has one error, whose text is checked by value.

The table is mistakes.md: the code, then the error it must raise, to the letter.
"""

import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import kerastf
from kerastf import plugins

TABLE = Path(__file__).parent / "mistakes.md"
NORM = "from kerastf_template import Unit\nfrom kerastf import register\n@register('norm', 'half', supports=('causal',))\nclass Half(Unit):\n    pass\n"
TINY = {"vocab_size": 9, "max_length": 12, "dim": 8, "num_layers": 1, "num_heads": 2}


def rows():
    text = TABLE.read_text("utf-8")
    return re.findall(r"^```python\n(.*?)\n```\n\n```text\n(.*?)\n```$", text, re.S | re.M)


def scope(folder, install):
    """What the code of the table may use."""
    install("kerastf-broken", {"norm": {"half": "Half"}}, code="import not_there")
    install("kerastf-future", {"norm": {"half": "Half"}}, code=NORM, requires=["kerastf>=99"])
    install("kerastf-off", {"norm": {"half": "Half"}}, code=NORM)
    install("kerastf-gone", {"norm": {"gone": "Gone"}}, code=NORM.replace("half", "gone").replace("Half", "Gone"))
    folder = folder / "files"
    folder.mkdir()

    def write(name, text):
        (folder / name).write_text(text)
        return folder / name

    def saved_with(norm):
        path = folder / "saved.keras"
        plugins.enable("off")
        kerastf.create_model("gpt", **TINY, norm=norm).save(path)
        plugins.disable("off")
        if norm.startswith("gone"):
            site = Path(next(p for p in sys.path if p.endswith("site")))
            (site / "kerastf_gone-1.0.dist-info").rename(site / "gone")
            plugins.rediscover()
        return path

    def truncated():
        path = saved_with("rms")
        path.write_bytes(path.read_bytes()[:3000])
        return path

    def plain_keras():
        path = folder / "plain.keras"
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(path)
        return path

    plugins.disable("off")
    model = kerastf.create_model("gpt", **TINY)
    model.compile("adamw")
    speaker = kerastf.create_model(
        "gpt", **{**TINY, "vocab_size": None}, tokenizer=kerastf.text.CharacterTokenizer("abc")
    )
    encoder = kerastf.create_model("bert", **TINY, head={"name": "classifier", "num_classes": 2})
    encoder.compile("adamw")
    return {
        "encoder": encoder, "ones": np.ones((2, 4), "int32"),
        "__name__": "mistake", "kerastf": kerastf, "keras": keras, "np": np, "create": kerastf.create_model, "folder": folder, "write": write,
        "saved_with": saved_with, "truncated": truncated, "plain_keras": plain_keras, "model": model, "speaker": speaker,
    }  # fmt: skip


def text_of(code, names):
    """The error a line of code raises, as the table writes it."""
    try:
        exec(compile(code, "mistake", "exec"), names)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".replace(str(names["folder"]), "FOLDER")
        text = re.sub(r"0x[0-9a-f]+", "0x…", text)
        return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
    return "no error"


@pytest.fixture
def names(tmp_path, install):
    return scope(tmp_path, install)


def test_the_table(names):
    wrong = []
    for code, want in rows():
        got = text_of(code, dict(names))
        if got != want:
            wrong.append(f"{code}\n  want: {want}\n  got:  {got}")
        if "saved_with('gone" in code.replace('"', "'"):
            site = Path(next(p for p in sys.path if p.endswith("site")))
            (site / "gone").rename(site / "kerastf_gone-1.0.dist-info")
            plugins.rediscover()
            plugins.disable("off")
    assert not wrong, "\n\n".join(wrong)


def test_there_are_a_hundred_different_ones():
    assert len({code for code, _ in rows()}) >= 100


def test_none_is_a_type_error_of_ours():
    """Keras rewords a TypeError on load, so ours are of other types."""
    for code, text in rows():
        assert not text.startswith("TypeError"), code
