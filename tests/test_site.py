"""The site's own code: equations, a page for every name, data inside of pages, names for what has none."""

import inspect
import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kerastf import registry

pytest.importorskip("mkdocs")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
import checks
import equations
import reference
import widgets

ENTRIES = list(registry.entries())


def text_of(element):
    """What a reader sees, with the structure of scripts and fractions in brackets."""
    tag = element.tag.rpartition("}")[2]
    parts = [text_of(child) for child in element]
    if tag in ("msub", "msup", "mfrac"):
        sign = {"msub": "_", "msup": "^", "mfrac": "/"}[tag]
        return f"({parts[0]}{sign}{parts[1]})"
    if tag == "msubsup":
        return f"({parts[0]}_{parts[1]}^{parts[2]})"
    if tag == "msqrt":
        return f"root({''.join(parts)})"
    return (element.text or "").strip() + "".join(parts)


@pytest.mark.parametrize(
    "text, seen",
    [
        ("h_t = tanh(W x_t + b)", "(h_t)=tanh(W(x_t)+b)"),
        ("softmax(Q K^T / sqrt(D)) V", "softmax((Q(K^T)/root(D)))V"),
        ("y = (a + b) / (c d)", "y=(a+b/cd)"),
        ("y = W2 act(W1 x)", "y=(W_2)act((W_1)x)"),
        ("g * x", "g⊙x"),
        ("|x|^2 + epsilon", "(|x|^2)+ε"),
        ("s_{t-1}^T k", "(s_t−1^T)k"),
        ("base^(2i/C)", "(base^(2i/C))"),
        ("x + gated_conv(x)", "x+gated conv(x)"),
    ],
)
def test_equations(text, seen):
    element = ElementTree.fromstring(equations.mathml(text))
    assert text_of(element) == seen
    assert element.get("alttext") == text


@pytest.mark.parametrize("text", ["y = (x", "y = x)", "a /", "x_", "sqrt x", "y = |x"])
def test_what_is_no_equation(text):
    with pytest.raises(equations.NotAnEquation):
        equations.mathml(text)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.kind}:{e.id}")
def test_equations_of_docstrings_are_drawn(entry):
    doc = reference.docstring_sections(inspect.getdoc(registry.resolve(entry.kind, entry.id)))[""]
    for code in re.findall(r"`([^`]+)`", doc):
        code = re.sub(r"\s+", " ", code)
        if reference.is_equation(code):
            ElementTree.fromstring(equations.mathml(code))


@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.kind != "model"], ids=lambda e: f"{e.kind}:{e.id}")
def test_page_of_a_block(entry):
    text = reference.page(entry)
    names = reference.describe.option_texts(registry.resolve(entry.kind, entry.id))
    assert checks.options_without_text(text, names) == []
    assert f"kerastf check {entry.id}" in text


def test_page_of_a_model(monkeypatch):
    monkeypatch.setattr(reference.describe, "preset_texts", lambda entry, name: ("17", "3 GFLOPs for 5 tokens"))
    text = reference.page(registry.find("model", "gpt"))
    assert "| `gpt.nano` | 17 | 3 GFLOPs for 5 tokens | num_layers=3, num_heads=3, dim=48 |" in text
    assert "| `attention` | one per layer, of kind [attention](../index.md#attention) | `multi_head` |" in text


def test_a_broken_plugin_gives_a_page_that_says_so(monkeypatch):
    def fail(kind, id):
        raise ImportError("no module named nowhere")

    monkeypatch.setattr(reference.registry, "resolve", fail)
    text = reference.page(ENTRIES[0])
    assert "This plugin does not load" in text and "no module named nowhere" in text


def test_the_index_names_everything():
    text = reference.index()
    for entry in ENTRIES:
        assert f"[`{entry.id}`]({entry.kind}/{entry.id}.md)" in text


def test_equations_of_lessons_are_drawn_and_code_is_left_alone():
    class Page:
        class file:
            src_uri = "course/01-rnn.md"

    text = "So `h_t = tanh(x)`.\n\n```python\nx = `y = 1`\n```\n\nAnd `a = b`."
    drawn = reference.on_page_markdown(text, Page, None, None)
    assert drawn.count("<math") == 2
    assert "```python\nx = `y = 1`\n```" in drawn


class Shown:
    """A page of the site, as a hook sees it."""

    def __init__(self, path):
        self.file = type("File", (), {"src_uri": path.name, "abs_src_path": str(path)})


def test_data_is_put_into_the_page(tmp_path):
    (tmp_path / "map.json").write_text(json.dumps({"title": "</script>", "queries": ["a"]}))
    (tmp_path / "rows.json").write_text(json.dumps([{"model": "`gpt`", "text": "a < b\nc"}]))
    page = Shown(tmp_path / "page.md")
    text = '<figure class="attention-map" data-source="map.json"><img></figure><div data-source="rows.json"></div>'
    found = widgets.on_page_content(text, page, None, None)
    script = re.search(r'<figure class="attention-map"><script type="application/json">(.*?)</script><img>', found)
    assert json.loads(script.group(1)) == {"title": "</script>", "queries": ["a"]}
    assert '<th scope="col">model</th>' in found
    assert "<td><code>gpt</code></td><td>a &lt; b<br>c</td>" in found


def test_data_that_is_not_there_stops_the_build(tmp_path):
    with pytest.raises(widgets.PluginError, match=r"page.md shows gone.json, which does not exist"):
        widgets.on_page_content('<div data-source="gone.json"></div>', Shown(tmp_path / "page.md"), None, None)


def test_costs_have_tables_for_those_without_a_script():
    known = {"cost": [1000], "changes": {"norm:rms": [-12], "attention:a+position:b": [5]}}
    data = {"measures": ["parameters"], "families": {"gpt": {"presets": {"nano": known}}}}
    assert widgets.cost_rows(data) == {
        "gpt.nano": [
            {"slot": "the preset", "block": "", "parameters": "1,000"},
            {"slot": "norm", "block": "`rms`", "parameters": "-12"},
        ]
    }


def test_the_theme_s_menus_and_search_get_names():
    text = (
        '<div class="md-search" data-md-component="search" role="dialog"></div>'
        '<nav class="md-nav" data-md-level="1" aria-labelledby="__nav_3_label" aria-expanded="false">'
        '<label class="md-nav__title" for="__nav_3"><span class="md-nav__icon md-icon"></span>\n Course &amp; more\n</label>'
    )
    found = widgets.on_post_page(text, None, None)
    assert 'role="dialog" aria-label="Search"' in found
    assert 'aria-label="Course &amp; more" aria-expanded' in found and "labelledby" not in found
