"""What the docstrings, the README and the pages say is run."""

import doctest
import importlib
import json
import pkgutil
import re
import textwrap
from pathlib import Path

import keras
import numpy as np
import pytest

import kerastf
from kerastf.models.base import Model

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name for m in pkgutil.walk_packages(kerastf.__path__, "kerastf.") if not m.name.endswith("__main__")
] + ["kerastf_template", "kerastf_linear_attention"]  # fmt: skip
PAGES = sorted([ROOT / "README.md", *ROOT.glob("plugins/*/README.md"), *ROOT.glob("docs/**/*.md")])
LESSONS = sorted(ROOT.glob("docs/course/[0-9]*.md"))
GALLERY = sorted(p for p in ROOT.glob("docs/gallery/*.md") if p.stem != "index")
TRAINED = LESSONS + GALLERY  # pages whose code trains for up to two minutes, and draws what they show


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs={"keras": keras, "__name__": "__main__"})
    assert found.failed == 0


def blocks(path):
    """The Python code of a page, in order; a block that starts with `# not run:` says why."""
    found = re.findall(r"^( *)```python\n(.*?)^\1```", path.read_text("utf-8"), re.S | re.M)
    code = [textwrap.dedent(b) for _, b in found]
    return [b for b in code if not b.startswith("# not run:")]


def run(path):
    """Runs the code of a page from top to bottom, in the folder we are in."""
    scope = {"__name__": "page"}
    for code in blocks(path):
        if ">>>" in code:
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            test = doctest.DocTestParser().get_doctest(code, scope, path.name, str(path), 0)
            assert runner.run(test, clear_globs=False).failed == 0
            scope = test.globs
        else:
            exec(compile(code, str(path), "exec"), scope)


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_on_pages(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path in TRAINED:  # here each training has two steps

        def two_steps(self, *args, **kwargs):
            return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": 2})

        fit = Model.fit
        monkeypatch.setattr(Model, "fit", two_steps)
    run(path)
    if path in TRAINED:
        drawn = {p.name for p in tmp_path.iterdir()}
        assert shown_by(path) and shown_by(path) <= drawn, "such a page shows what its own code drew and wrote"


def shown_by(path):
    """The pictures and the data of a page, by file name."""
    return set(re.findall(rf"\.\./images/{path.parent.name}/([\w-]+\.(?:png|json))", path.read_text("utf-8")))


def test_every_picture_is_shown():
    for folder in ("course", "gallery"):
        shown = set().union(*(shown_by(p) for p in TRAINED if p.parent.name == folder))
        assert {p.name for p in (ROOT / "docs" / "images" / folder).iterdir()} == shown


@pytest.mark.parametrize("path", ROOT.glob("docs/images/**/*.json"), ids=lambda p: p.stem)
def test_data_of_pages(path):
    found = json.loads(path.read_text("utf-8"))
    assert path.stat().st_size < 100_000
    if isinstance(found, list):
        assert found and all(row.keys() == found[0].keys() for row in found)
        return
    assert all(found["queries"] + found["keys"])
    layers = np.array(found["layers"])
    assert layers.shape[2:] == (len(found["queries"]), len(found["keys"]))
    # Weights of one query add up to one; each was rounded to a thousandth.
    assert np.abs(layers.sum(-1) - 1000).max() <= 0.5 * layers.shape[-1]
    assert all(0 <= n < size for n, size in zip(found["start"], layers.shape, strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("path", TRAINED, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_trained_pages_in_full(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_what_a_lesson_holds(path):
    titles = re.findall(r"^## (.+)$", path.read_text("utf-8"), re.M)
    wanted = ["The idea", "The equation", "Train it", "Look at it", "Exercise", "Read next"]
    assert [t for t in titles if t in wanted] == wanted


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pictures_have_alternative_text_and_exist(path):
    for label, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", path.read_text("utf-8")):
        assert len(label) > 10, f"{target} has no alternative text that tells what it shows"
        assert (path.parent / target).exists()


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = path.read_text("utf-8")
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        where = (path.parent / target).resolve()
        if where.is_relative_to(ROOT / "docs" / "reference"):  # generated: one page per registered name, and an index
            kind, _, id = str(where.relative_to(ROOT / "docs" / "reference").with_suffix("")).partition("/")
            assert kind == "index" or kerastf.registry.find(kind, id)
        else:
            assert where.exists(), f"{label} leads to {target}"


def test_the_commands_on_pages_exist():
    from kerastf.cli import _parser

    known = next(a.choices for a in _parser()._actions if a.choices and "list" in a.choices)
    for path in PAGES:
        for command in re.findall(r"^kerastf ([a-z]+)", path.read_text("utf-8"), re.M):
            assert command in known, f"{path.name} says kerastf {command}"
