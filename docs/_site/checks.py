"""The checks that guard pages and docstrings. Each takes what it looks at and tells what is wrong with it.

They are run on the real pages by `tests/test_docs.py` and `tests/test_site.py`, and on planted mistakes by
`tests/test_planted_docs.py`.
"""

import doctest
import inspect
import re
import textwrap
from pathlib import Path

import keras

ROOT = Path(__file__).parents[2]
LESSONS = sorted(ROOT.glob("docs/course/[0-9]*.md"))
# Pages whose code trains for up to two minutes, and draws what they show.
TRAINED = LESSONS + sorted(p for p in ROOT.glob("docs/gallery/*.md") if p.stem != "index")


class WrongExample(AssertionError):
    """An example on a page does not give what the page says."""


def code_of(path):
    """The Python code of a page, in order; a block that starts with `# not run:` says why."""
    found = re.findall(r"^( *)```python\n(.*?)^\1```", path.read_text("utf-8"), re.S | re.M)
    code = [textwrap.dedent(b) for _, b in found]
    return [b for b in code if not b.startswith("# not run:")]


def run(path):
    """Runs the code of a page from top to bottom, in the folder we are in."""
    scope = {"__name__": "page"}
    for code in code_of(path):
        if ">>>" in code:
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            test = doctest.DocTestParser().get_doctest(code, scope, path.name, str(path), 0)
            if runner.run(test, clear_globs=False).failed:
                raise WrongExample(f"An example of {path.name} fails; the output tells which.")
            scope = test.globs
        else:
            exec(compile(code, str(path), "exec"), scope)


def failing_examples(module):
    """How many examples in the docstrings of a module fail."""
    return doctest.testmod(module, extraglobs={"keras": keras, "__name__": "__main__"}).failed


def undocumented(thing):
    """The parameters of a function or class that its docstring says nothing of, under `Args` or `Attributes`."""
    call = thing.__init__ if inspect.isclass(thing) else thing
    own = [p for p in inspect.signature(call).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    sections = re.findall(r"^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", inspect.getdoc(thing) or "", re.S | re.M)
    names = [
        n for s in sections for line in re.findall(r"^    (\*{0,2}\w[\w, *]*): *\S", s, re.M) for n in line.split(",")
    ]
    told = {name.strip(" *") for name in names}
    return [p.name for p in own if p.name not in ("self", "cls", *told)]


def options_without_text(page, names):
    """Options of a generated page whose row in the table says nothing of them."""
    rows = {name: re.search(rf"^\| `{name}` \|.*\| (.*) \|$", page, re.M) for name in names}
    return [name for name, row in rows.items() if row is None or not row.group(1).strip()]


def picture_problems(path):
    """Pictures of a page that are not there, or have no alternative text that tells what they show."""
    found = []
    for label, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", path.read_text("utf-8")):
        if len(label) <= 10:
            found.append(f"{target} has no alternative text that tells what it shows")
        if not (path.parent / target).exists():
            found.append(f"{target} is not there")
    return found


def dead_links(path, is_generated=lambda page: False):
    """Links of a page to other pages, or to headings of them, that lead nowhere.

    Args:
        path: The page.
        is_generated: Whether a page that is no file, such as `docs/reference/norm/rms.md`, will be generated.
    """
    found = []
    for label, target in re.findall(r"\[([^\]]*)\]\(([^)\s]+)[^)]*\)", path.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        page, _, anchor = target.partition("#")
        where = (path.parent / page).resolve() if page else path
        if where.exists():
            if anchor and where.suffix == ".md" and anchor not in anchors(where):
                found.append(f"{label!r} leads to {target}, which has no such heading")
        elif not is_generated(where):
            found.append(f"{label!r} leads to {target}, which is not there")
    return found


def anchors(path):
    """What links may name of a page: its headings, in small letters with hyphens."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", path.read_text("utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def names_without_page(pages, entries):
    """Registered names that have no generated page, or one that says nothing of them.

    Args:
        pages: By path: the text.
        entries: The registry's entries.
    """
    return [
        f"{e.kind} {e.id}" for e in entries if f"# `{e.id}`\n" not in pages.get(f"reference/{e.kind}/{e.id}.md", "")
    ]


def matrix_problems(rows, cells):
    """What is wrong with the file of the matrix: cells that were never tried, that are gone, or that fail.

    Args:
        rows: What `kerastf matrix --json` wrote.
        cells: Family, slot and block of every cell that there is.
    """
    told = {(row["model"], row["slot"], row["block"]): row["outcome"] for row in rows}
    command = "kerastf matrix --block {} --json docs/_site/matrix.json"
    found = [f"{'.'.join(c[:2])} {c[2]} was never tried. Run: {command.format(c[2])}" for c in cells if c not in told]
    found += [f"{'.'.join(c[:2])} {c[2]} is gone. Run: {command.format(c[2])}" for c in told if c not in cells]
    return found + [f"{'.'.join(c[:2])} {c[2]}: {text}" for c, text in told.items() if " fails: " in text]


def build(docs, site):
    """Builds the pages of a folder as strictly as `make docs` does, with the rules of `mkdocs.yml` but plain looks.

    Raises:
        mkdocs.exceptions.Abort: There was a warning, such as a link that leads nowhere.
    """
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(
        str(ROOT / "mkdocs.yml"), docs_dir=str(docs), site_dir=str(site), strict=True, hooks=[], plugins=[],
        theme="mkdocs", extra_css=[], markdown_extensions=["tables", "admonition", {"toc": {"permalink": True}}],
    )  # fmt: skip
    config.nav = None  # every page of the folder
    build(config)
