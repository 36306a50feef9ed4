"""Every page of the built site in a real Chromium: no console error, no failed or external request, a working search.

Also for readers who cannot see, have no mouse, no script or a small screen: axe and lighthouse judge each kind of page,
and the maps and the chooser are worked by pointer, finger and keyboard.

Run by `make test-site`, which builds the site first; needs Chromium and playwright, and npm for axe and lighthouse.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
SITE = Path(os.environ.get("KERASTF_SITE", Path(__file__).parents[1] / "site"))
TERMS = (
    "attention",
    "lstm",
    "rotary",
    "beam search",
    "plugin",
    "contract",
    "word2vec",
    "patch",
    "tokenizer",
    "with_head",
)
# One page of each kind.
KINDS = {
    "home": "/",
    "lesson": "/course/05-multi-head/",
    "guide": "/swap/",
    "reference": "/reference/model/gpt/",
    "functions": "/api/",
    "gallery": "/gallery/gpt/",
    "overview": "/gallery/",
    "chooser": "/choose/",
}
NODE = Path(__file__).parents[1] / ".node"  # `make test-site` installs axe and lighthouse here
PHONE = {"width": 320, "height": 800}
pytestmark = pytest.mark.site


@pytest.fixture(scope="module")
def address():
    if not (SITE / "index.html").exists():
        pytest.skip("the site is not built: make docs")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium") or pytest.skip("there is no chromium")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


def visit(browser, address, path, **options):
    """Opens a page and notes what goes wrong."""
    page = browser.new_page(**options)
    wrong = []
    page.on("console", lambda m: wrong.append(f"console: {m.text}") if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda e: wrong.append(f"error: {e}"))
    page.on("requestfailed", lambda r: wrong.append(f"failed: {r.url}"))
    page.on("response", lambda r: wrong.append(f"{r.status}: {r.url}") if r.status >= 400 else None)
    page.on(
        "request",
        lambda r: None if r.url.startswith((address, "data:", "blob:")) else wrong.append(f"external: {r.url}"),
    )
    page.goto(address + path, wait_until="load")
    return page, wrong


def test_every_page(browser, address):
    pages = sorted("/" + str(p.parent.relative_to(SITE)) + "/" for p in SITE.rglob("index.html"))
    assert len(pages) > 50
    for path in pages:
        page, wrong = visit(browser, address, path.replace("/./", "/"))
        assert not wrong, f"{path}: {wrong[:3]}"
        assert page.locator("img:not([alt])").count() == 0
        page.close()


NARROW = ["/", "/course/01-rnn/", "/reference/attention/multi_head/", "/quickstart/", "/api/", *KINDS.values()]


@pytest.mark.parametrize("width", [390, 320])
@pytest.mark.parametrize("path", sorted(set(NARROW)))
def test_nothing_is_wider_than_a_phone(browser, address, path, width):
    page, wrong = visit(browser, address, path, viewport={"width": width, "height": 800})
    assert not wrong
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.fixture(scope="module")
def node_modules():
    if not shutil.which("npm"):
        pytest.skip("there is no npm, which fetches axe and lighthouse")
    assert (NODE / "node_modules" / "axe-core").exists(), "axe is not installed: make test-site"
    return NODE / "node_modules"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 320])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing(browser, address, node_modules, kind, width, scheme):
    page, _ = visit(browser, address, KINDS[kind], viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.evaluate((node_modules / "axe-core" / "axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run().then(found => found.violations)")
    page.close()
    assert not [(v["impact"], v["id"], v["nodes"][0]["html"][:200]) for v in found]


@pytest.mark.parametrize("screen", ["mobile", "desktop"])
@pytest.mark.parametrize("kind", KINDS)
def test_lighthouse_gives_full_marks_for_accessibility(address, node_modules, tmp_path, kind, screen):
    program = shutil.which("chromium") or pytest.skip("there is no chromium")
    command = [
        "node", str(node_modules / "lighthouse" / "cli" / "index.js"), address + KINDS[kind], "--quiet",
        "--only-categories=accessibility", "--output=json", f"--output-path={tmp_path / 'report.json'}",
        "--chrome-flags=--headless=new --no-sandbox", *(["--preset=desktop"] if screen == "desktop" else []),
    ]  # fmt: skip
    subprocess.run(command, env={**os.environ, "CHROME_PATH": program}, check=True, timeout=300)
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    score = round(100 * report["categories"]["accessibility"]["score"])
    print(f"{kind}, {screen}: {score}")
    assert score >= 95, [a["title"] for a in report["audits"].values() if a["score"] == 0]


# === The attention map ===
def open_map(browser, address, path="/gallery/gpt/", **options):
    page, wrong = visit(browser, address, path, **options)
    return page, wrong, page.locator("figure.attention-map").first


def box(place, name):
    """The box with the choices of that name."""
    return place.get_by_role("combobox", name=name, exact=True)


def chosen(figure):
    return figure.locator("[role=radio][aria-checked=true]")


@pytest.mark.parametrize(
    "path", ["/gallery/gpt/", "/gallery/alignment/", "/gallery/bert/", "/gallery/vit/", "/course/03-attention/",
             "/course/05-multi-head/", "/course/08-bert/"],
)  # fmt: skip
def test_a_map_shows_what_a_token_looks_at(browser, address, path):
    page, wrong, figure = open_map(browser, address, path)
    data = json.loads(figure.locator("script").text_content())
    layer, head, query = data["start"]
    weights = data["layers"][layer][head][query]
    assert figure.locator("[role=radio]").count() == len(data["queries"])
    assert figure.locator("td[role=gridcell]").count() == len(data["queries"]) * len(data["keys"])
    shown = figure.locator(".map-answers > li").evaluate_all(
        "all => all.map(e => e.style.getPropertyValue('--weight'))"
    )
    assert [round(1000 * float(w)) for w in shown] == weights
    assert f"{round(max(weights) / 10)} %" in figure.locator(".map-said").inner_text()
    assert not wrong
    page.close()


def test_a_map_follows_the_pointer(browser, address):
    page, _, figure = open_map(browser, address)
    figure.locator("[role=radio]").nth(2).hover()
    assert chosen(figure).inner_text() == "mill"
    assert "“mill” (3) looks at" in figure.locator(".map-said").inner_text()
    figure.locator("tr").nth(4 + 1).locator("td[role]").nth(3).hover()  # row of the fifth token, column of the fourth
    assert "“?” (5) looks at “red” (4)" in figure.locator(".map-said").inner_text()
    page.close()


def test_a_map_on_a_phone_follows_the_finger(browser, address):
    page, _, figure = open_map(browser, address, viewport=PHONE, has_touch=True)
    figure.locator("[role=radio]").nth(5).tap()
    assert chosen(figure).inner_text() == "yes"
    figure.locator("tr").nth(1).locator("td[role]").nth(0).tap()
    assert "“is” (1) looks at “is” (1) 100 %" in figure.locator(".map-said").inner_text()
    page.close()


def test_a_map_follows_the_keyboard(browser, address):
    page, _, figure = open_map(browser, address)
    chosen(figure).focus()
    page.keyboard.press("Home")
    assert chosen(figure).inner_text() == "is"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert chosen(figure).inner_text() == "mill"
    page.keyboard.press("Tab")  # one stop for all tokens; the next is the grid
    assert page.evaluate("document.activeElement.getAttribute('role')") == "gridcell"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "“red” (4) looks at “the” (2)" in figure.locator(".map-said").inner_text()
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")  # the edge holds
    assert "“.” (17)" in figure.locator(".map-said").inner_text()
    page.close()


def test_layers_and_heads_of_a_map(browser, address):
    page, _, figure = open_map(browser, address)
    data = json.loads(figure.locator("script").text_content())
    box(figure, "Layer").select_option("1")
    box(figure, "Head").select_option(label="mean of all")
    query = data["start"][2]
    mean = [sum(head[query][k] for head in data["layers"][1]) / 4 for k in range(len(data["keys"]))]
    shown = figure.locator(".map-answers > li").evaluate_all(
        "all => all.map(e => +e.style.getPropertyValue('--weight'))"
    )
    assert shown == pytest.approx([w / 1000 for w in mean])
    page.close()


def test_nothing_moves_for_those_who_want_that(browser, address):
    page, _, figure = open_map(browser, address, reduced_motion="reduce")
    moves = figure.locator(".map-answers > li").first.evaluate(
        "e => getComputedStyle(e, '::before').transitionDuration"
    )
    assert moves == "0s"
    page.close()


@pytest.mark.parametrize("path, left", [("/gallery/gpt/", "figure img"), ("/choose/", ".chooser table")])
def test_without_a_script(browser, address, path, left):
    page, wrong = visit(browser, address, path, java_script_enabled=False)
    assert page.locator(left).first.is_visible()
    assert page.locator("[role=radio], .chooser select").count() == 0
    assert not wrong
    page.close()


# === Choose blocks ===
def costs(page):
    """By row of the table: the preset's cost, the choice's and the change."""
    rows = page.locator(".chooser-costs tbody tr").all()
    return {r.locator("th").inner_text(): [c.inner_text().strip() for c in r.locator("td").all()] for r in rows}


def test_choose_blocks(browser, address):
    page, wrong = visit(browser, address, "/choose/")
    data = json.loads(page.locator(".chooser script").text_content())["families"]["gpt"]
    box(page, "Preset").select_option("gpt2")
    assert costs(page)["Parameters"] == ["124,439,808", "124,439,808", "none"]
    box(page, "norm").select_option("rms")
    change = data["presets"]["gpt2"]["changes"]["norm:rms"][0]
    assert costs(page)["Parameters"][1] == f"{124439808 + change:,}"
    call = page.locator(".chooser-call code").inner_text()
    assert '"gpt.gpt2",' in call and 'norm="rms",' in call
    page.get_by_role("button", name="Back to the preset").click()
    assert "norm" not in page.locator(".chooser-call code").inner_text()
    assert not wrong
    page.close()


def test_what_is_refused_says_why(browser, address):
    page, _ = visit(browser, address, "/choose/")
    box(page, "attention").select_option("bahdanau")
    box(page, "position").select_option("rotary")
    assert "attention `bahdanau` does not support rotation" in page.locator(".chooser-why").inner_text()
    assert costs(page)["FLOPs"][1] == "refused"
    box(page, "attention").select_option("cosine")
    assert page.locator(".chooser-why").inner_text() == ""
    page.close()


@pytest.mark.parametrize(
    "family, swaps",
    [
        ("vit", {"norm": "rms"}),
        ("vit", {"feedforward": "gated_conv", "norm": "rms"}),  # the last layer computes all positions
        ("vit", {"head": "features", "attention": "cosine"}),
        ("bert", {"head": "classifier", "attention": "cosine", "position": "rotary"}),
        ("bert", {"head": "classifier", "attention": "linear_attention/linear"}),
        ("bert", {"head": "masked_language_model", "feedforward": "gated"}),
    ],
)
def test_costs_of_a_choice_are_those_that_the_code_counts(browser, address, family, swaps):
    import choices

    page, wrong = visit(browser, address, "/choose/")
    box(page, "Family").select_option(family)
    for slot, name in swaps.items():
        box(page, slot).select_option(name)
    data = json.loads(page.locator(".chooser script").text_content())["families"][family]
    preset = next(iter(data["presets"]))
    parameters, flops, _ = choices.cost_of(family, preset, {**choices.defaults_of(family, preset), **swaps})
    assert costs(page)["Parameters"][1] == f"{parameters:,}"
    number, unit = costs(page)["FLOPs"][1].split()
    assert float(number) * {"M": 1e6, "G": 1e9}[unit] == pytest.approx(flops, rel=0.005)
    assert not wrong
    page.close()


def test_every_call_of_the_chooser_is_one_that_works(browser, address):
    from kerastf import config, registry

    page, _ = visit(browser, address, "/choose/")
    for family in ("bert", "seq2seq", "vit"):
        box(page, "Family").select_option(family)
        box(page, "attention").select_option("window" if family != "seq2seq" else "luong")
        call = page.locator(".chooser-call code").inner_text()
        given = eval(
            re.sub(r"^.*create_model", "dict_of", call, flags=re.S), {"dict_of": lambda id, **o: {"id": id, **o}}
        )
        entry = registry.find("model", given["id"])
        options = {**config.preset_of(entry, given.pop("id")), **given}
        config.plan(registry.resolve("model", entry.id), options)
    page.close()


def test_the_call_is_copied(browser, address):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(address + "/choose/", wait_until="load")
    page.get_by_role("button", name="Copy", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator(".chooser-call code").inner_text()
    context.close()


@pytest.mark.parametrize("term", TERMS)
def test_search(browser, address, term):
    page, wrong = visit(browser, address, "/")
    page.keyboard.press("/")
    field, found = page.locator("input.md-search__input"), page.locator(".md-search-result__item")
    for _ in range(20):  # what is typed before the index has come is not looked up
        field.fill("")
        field.press_sequentially(term)
        page.wait_for_timeout(1000)
        if found.count():
            break
    assert found.count() > 0
    assert not wrong
    page.close()
