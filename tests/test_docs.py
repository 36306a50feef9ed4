"""What the docstrings, the README and the pages say is run."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import keras
import pytest

import kerastf

ROOT = Path(__file__).parent.parent
MODULES = [
    m.name for m in pkgutil.walk_packages(kerastf.__path__, "kerastf.") if not m.name.endswith("__main__")
] + ["kerastf_template", "kerastf_linear_attention"]  # fmt: skip
PAGES = sorted([ROOT / "README.md", *ROOT.glob("plugins/*/README.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    found = doctest.testmod(module, extraglobs={"keras": keras, "__name__": "__main__"})
    assert found.failed == 0


def blocks(path):
    """The Python code of a page, in order; a block that starts with `# not run:` says why."""
    found = re.findall(r"^```python\n(.*?)^```", path.read_text("utf-8"), re.S | re.M)
    return [b for b in found if not b.startswith("# not run:")]


@pytest.mark.parametrize("path", [p for p in PAGES if blocks(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_code_on_pages(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "page"}
    for code in blocks(path):
        if ">>>" in code:
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            test = doctest.DocTestParser().get_doctest(code, scope, path.name, str(path), 0)
            assert runner.run(test, clear_globs=False).failed == 0
            scope = test.globs
        else:
            exec(compile(code, str(path), "exec"), scope)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    text = path.read_text("utf-8")
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{label} leads to {target}"


def test_the_commands_on_pages_exist():
    from kerastf.cli import _parser

    known = next(a.choices for a in _parser()._actions if a.choices and "list" in a.choices)
    for path in PAGES:
        for command in re.findall(r"^kerastf ([a-z]+)", path.read_text("utf-8"), re.M):
            assert command in known, f"{path.name} says kerastf {command}"
