"""What the docstrings, the README and the pages say is run."""

import doctest
import importlib
import pkgutil
import re
import textwrap
from pathlib import Path

import keras
import pytest

import kerastf
from kerastf.models.base import Model

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name for m in pkgutil.walk_packages(kerastf.__path__, "kerastf.") if not m.name.endswith("__main__")
] + ["kerastf_template", "kerastf_linear_attention"]  # fmt: skip
PAGES = sorted([ROOT / "README.md", *ROOT.glob("plugins/*/README.md"), *ROOT.glob("docs/**/*.md")])
LESSONS = sorted(ROOT.glob("docs/course/[0-9]*.md"))


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
    if path in LESSONS:  # a lesson trains for up to two minutes; here each training has two steps

        def two_steps(self, *args, **kwargs):
            return fit(self, *args, **{**kwargs, "epochs": 1, "steps_per_epoch": 2})

        fit = Model.fit
        monkeypatch.setattr(Model, "fit", two_steps)
    run(path)
    if path in LESSONS:
        shown = set(re.findall(r"\]\(\.\./images/course/([\w-]+\.png)\)", path.read_text("utf-8")))
        assert shown and shown <= {p.name for p in tmp_path.glob("*.png")}, "a lesson shows what its own code drew"


@pytest.mark.slow
@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_lessons_in_full(path, tmp_path, monkeypatch):
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
