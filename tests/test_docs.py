"""What the docstrings, the README and the pages say is run."""

import importlib.util
import inspect
import json
import pkgutil
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import kerastf
from kerastf import registry
from kerastf.models.base import Model

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
import checks
from checks import LESSONS, ROOT, TRAINED

ELSEWHERE = ("kerastf.__main__",) if importlib.util.find_spec("jax") else ("kerastf.__main__", "kerastf.jax_kernels.")
MODULES = [m.name for m in pkgutil.walk_packages(kerastf.__path__, "kerastf.") if not m.name.startswith(ELSEWHERE)] + [
    "kerastf_template", "kerastf_linear_attention", "kerastf_moe", "kerastf_ssm", "kerastf_dalle.dalle",
    "kerastf_dalle.dvae", "kerastf_dalle.gumbel", "kerastf_dalle.judge", "kerastf_dalle.losses",
    "kerastf_dalle.position", "kerastf_dalle.shapes",
]  # fmt: skip
PAGES = sorted([ROOT / "README.md", *ROOT.glob("plugins/*/README.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    assert checks.failing_examples(importlib.import_module(name)) == 0


def first_cells(page):
    """What stands in the first column of a page's tables."""
    return set(re.findall(r'^\| `"?(\w+)"?`', (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE))


def test_tables_are_whole():
    """Every check, task and tokenizer has its row; those of a converter are not told of all kinds."""
    from kerastf import data, testing, text
    from kerastf.data.tasks import TASKS

    assert {c.name for c in testing.CHECKS} <= first_cells("contracts.md")
    assert set(TASKS) <= first_cells("data.md")
    assert set(text.TOKENIZERS) <= first_cells("text.md")
    assert all(f'"{name}"' in text.train.__doc__ for name in text.TOKENIZERS)
    assert all(f'"{name}"' in data.load.__doc__ for name in (*TASKS, "tfds:NAME"))
    told = re.findall(
        r"^\| `(\w+)`(?: \(full\))? \| all \|", (ROOT / "docs/contracts.md").read_text("utf-8"), re.MULTILINE
    )
    assert told == []


@pytest.mark.parametrize("name", MODULES)
def test_every_argument_is_documented(name):
    module = importlib.import_module(name)
    for label, thing in inspect.getmembers(module, lambda t: inspect.isfunction(t) or inspect.isclass(t)):
        own = thing.__module__ == name and not label.startswith("_")
        if own and "\nArgs:\n" in (inspect.getdoc(thing) or ""):  # a short one may tell in prose
            assert checks.undocumented(thing) == [], f"{label} does not explain all of its arguments"


def test_every_public_function_explains_its_arguments():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for module, name in re.findall(r"^::: (\S+)\.(\w+)$", text, re.M):
        assert checks.undocumented(getattr(importlib.import_module(module), name)) == [], f"{module}.{name}"


def test_readme_names_every_page_block_and_preset():
    text = (ROOT / "README.md").read_text("utf-8")
    pages = {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md", "api.md"}  # the site's own
    assert pages - set(re.findall(r"\(docs/(\w+\.md)\)", text)) == set()
    named = set(re.findall(r"`([\w./]+)`", text[text.index("## What is there today") : text.index("## Command line")]))
    folders = {"", *(p.name.replace("-", "_") for p in (ROOT / "plugins").iterdir())}
    ours = {e.id for e in registry.entries() if e.namespace in folders}
    presets = {m for m in registry.list_models() if "." in m and "/" not in m}
    assert (ours | presets) - named == set()
    assert named - ours - presets - {"plugins/"} == set()


# These train what they draw, for longer than other pages.
LONG = ("docs/gallery/alignment.md", "docs/gallery/samples.md", "docs/gallery/vit.md")
CODE = [
    pytest.param(page, id=name, marks=[pytest.mark.slow] if name in LONG else [])
    for page, name in ((p, p.relative_to(ROOT).as_posix()) for p in PAGES if checks.code_of(p))
]


@pytest.mark.parametrize("path", CODE)
def test_code_on_pages(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path in TRAINED:  # here each training has two steps

        def two_steps(self, *args, **kwargs):
            return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": 2})

        fit = Model.fit
        monkeypatch.setattr(Model, "fit", two_steps)
    checks.run(path)
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


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/images/**/*.json")), ids=lambda p: p.stem)
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
    checks.run(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_what_a_lesson_holds(path):
    titles = re.findall(r"^## (.+)$", path.read_text("utf-8"), re.M)
    wanted = ["The idea", "The equation", "Train it", "Look at it", "Exercise", "Read next"]
    assert [t for t in titles if t in wanted] == wanted


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pictures_have_alternative_text_and_exist(path):
    assert checks.picture_problems(path) == []


def is_generated(where):
    """Whether a page of the reference will be there: one per registered name, and an index."""
    if not where.is_relative_to(ROOT / "docs" / "reference"):
        return False
    kind, _, id = str(where.relative_to(ROOT / "docs" / "reference").with_suffix("")).partition("/")
    return kind == "index" or bool(kerastf.registry.find(kind, id))


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    assert checks.dead_links(path, is_generated) == []


def test_the_commands_on_pages_exist():
    from kerastf.cli import _parser

    known = next(a.choices for a in _parser()._actions if a.choices and "list" in a.choices)
    for path in PAGES:
        for command in re.findall(r"^kerastf ([a-z]+)", path.read_text("utf-8"), re.M):
            assert command in known, f"{path.name} says kerastf {command}"
