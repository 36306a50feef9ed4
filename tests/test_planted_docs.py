"""Each check of the docs is proved by a mistake that it must catch, and by a sound text that it must let pass."""

import logging
import sys
import types
from pathlib import Path

import pytest

from kerastf import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
import checks


def write(folder, name="page.md", text=""):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.fixture
def reference(monkeypatch):
    pytest.importorskip("mkdocs")
    import reference

    monkeypatch.setattr(reference.describe, "preset_texts", lambda entry, name: ("17", "3 GFLOPs for 5 tokens"))
    return reference


# --- arguments and examples


def test_an_undocumented_argument():
    def whole(dim, *, heads=2, **rest):
        """Does it.

        Args:
            dim: Width.
            heads: How many.
            **rest: The rest.
        """

    def without_one(dim, *, heads=2):
        """Does it.

        Args:
            dim: Width.

        Returns:
            heads: No argument, though it looks like one.
        """

    def without_text(dim, *, heads=2):
        """Does it.

        Args:
            dim: Width.
            heads:
        """

    def silent(dim):
        pass

    class Layer:
        """A layer.

        Args:
            dim, heads: Both.
        """

        def __init__(self, dim, heads, scale=1.0):
            pass

    assert checks.undocumented(whole) == []
    assert checks.undocumented(without_one) == ["heads"]
    assert checks.undocumented(without_text) == ["heads"]
    assert checks.undocumented(silent) == ["dim"]
    assert checks.undocumented(Layer) == ["scale"]


def test_an_undocumented_option_on_the_page_of_a_block(reference, monkeypatch):
    cls = registry.resolve("norm", "layer")
    names = reference.describe.option_texts(cls)
    entry = registry.find("norm", "layer")
    assert checks.options_without_text(reference.page(entry), names) == []
    monkeypatch.setattr(cls, "__doc__", cls.__doc__.replace("bias: ", "shift: "))
    assert checks.options_without_text(reference.page(entry), names) == ["bias"]


def module_with(docstring):
    module = types.ModuleType("planted")
    exec(f"def f():\n    {docstring!r}\n", vars(module))
    return module


def test_a_docstring_example_that_fails(capsys):
    assert checks.failing_examples(module_with("Adds.\n\nExamples:\n    >>> 1 + 1\n    2\n")) == 0
    assert checks.failing_examples(module_with("Adds.\n\nExamples:\n    >>> 1 + 1\n    3\n")) == 1
    assert checks.failing_examples(module_with("Adds.\n\nExamples:\n    >>> nowhere()\n")) == 1
    assert "Failed example" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code, error",
    [
        ("x = 1", None),
        (">>> 1 + 1\n2", None),
        ("# not run: needs a GPU\nnowhere()", None),
        (">>> 1 + 1\n3", checks.WrongExample),
        ("nowhere()", NameError),
        ("import kerastf\nkerastf.create_model('gtp')", LookupError),
        ("x = (", SyntaxError),
    ],
)
def test_code_on_a_page_that_fails(tmp_path, code, error):
    for indent in ("", "    "):  # also within an admonition
        block = "\n".join(indent + line for line in ["```python", *code.split("\n"), "```"])
        path = write(tmp_path, text=f"# Page\n\n```python\ny = 2\n```\n\n{block}\n")
        if error is None:
            checks.run(path)
        else:
            with pytest.raises(error):
                checks.run(path)


# --- links and pictures


def test_a_dead_link(tmp_path):
    write(tmp_path, "other.md", "# Other\n\n## Two words, here\n\n```bash\n# no heading\n```\n")
    path = write(
        tmp_path, text="[a](other.md) [b](other.md#two-words-here) [c](#page) [d](https://example.org)\n\n# Page\n"
    )
    assert checks.dead_links(path) == []
    path = write(tmp_path, text="[a](gone.md) [b](other.md#three) [c](#nowhere) [d](other.md#no-heading)")
    assert checks.dead_links(path) == [
        "'a' leads to gone.md, which is not there",
        "'b' leads to other.md#three, which has no such heading",
        "'c' leads to #nowhere, which has no such heading",
        "'d' leads to other.md#no-heading, which has no such heading",
    ]
    assert checks.dead_links(write(tmp_path, text="[a](gone.md)"), lambda page: page.name == "gone.md") == []


@pytest.mark.parametrize(
    "link, warning",
    [
        ("other.md#words", None),
        ("gone.md", "contains a link 'gone.md', but the target is not found"),
        ("other.md#gone", "contains a link 'other.md#gone', but the doc 'other.md' does not contain an anchor '#gone'"),
        ("#gone", "contains a link '#gone', but there is no such anchor on this page"),
        ("/other.md", "contains an absolute link '/other.md'"),
    ],
)
def test_the_strict_build(tmp_path, caplog, link, warning):
    exceptions = pytest.importorskip("mkdocs.exceptions")
    write(tmp_path / "docs", "other.md", "# Other\n\n## Words\n")
    write(tmp_path / "docs", "index.md", f"# Home\n\n[somewhere]({link})\n")
    with caplog.at_level(logging.WARNING, "mkdocs"):
        if warning is None:
            checks.build(tmp_path / "docs", tmp_path / "site")
            assert (tmp_path / "site" / "index.html").exists()
        else:
            with pytest.raises(exceptions.Abort):
                checks.build(tmp_path / "docs", tmp_path / "site")
            assert [r.levelname for r in caplog.records] == ["WARNING"] and warning in caplog.text


def test_a_picture_without_alternative_text_or_without_a_file(tmp_path):
    write(tmp_path, "a.png")
    text = "![Loss by step, falling](a.png)"
    assert checks.picture_problems(write(tmp_path, text=text)) == []
    text = "![](a.png) ![loss](a.png) ![Loss by step, falling](b.png)"
    assert checks.picture_problems(write(tmp_path, text=text)) == [
        "a.png has no alternative text that tells what it shows",
        "a.png has no alternative text that tells what it shows",
        "b.png is not there",
    ]


# --- pages of names


def test_a_name_without_a_page(reference):
    pages = reference.pages()
    entries = list(registry.entries())
    assert checks.names_without_page(pages, entries) == []
    assert any(e.id == "linear_attention/linear" for e in entries)
    missing = {k: v for k, v in pages.items() if k != "reference/norm/rms.md"}
    assert checks.names_without_page(missing, entries) == ["norm rms"]
    empty = {**pages, "reference/attention/linear_attention/linear.md": ""}
    assert checks.names_without_page(empty, entries) == ["attention linear_attention/linear"]


def test_a_broken_plugin_has_a_page_that_says_so(reference, install):
    install("kerastf-bad", {"norm": {"half": "Half"}}, code="raise RuntimeError('on purpose')")
    pages = reference.pages()
    assert checks.names_without_page(pages, registry.entries()) == []
    text = pages["reference/norm/bad/half.md"]
    assert "This plugin does not load" in text and "kerastf-bad 1.0" in text and "on purpose" in text
    assert "bad/half" in pages["reference/index.md"]
