"""Every page of the built site in a real Chromium: no console error, no failed or external request, a working search.

Run by `make test-site`, which builds the site first; needs Chromium and playwright.
"""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("path", ["/", "/course/01-rnn/", "/reference/attention/multi_head/", "/quickstart/", "/api/"])
def test_nothing_is_wider_than_a_phone(browser, address, path):
    page, wrong = visit(browser, address, path, viewport={"width": 390, "height": 800})
    assert not wrong
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.close()


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
