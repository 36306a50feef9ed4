"""A page for every registered name, made from its docstring, its manifest and what the registry knows of it.

A hook of mkdocs: the pages exist only while the site is built. A plugin that cannot be loaded gives a page that says
so.
"""

import inspect
import json
import re
import textwrap
from pathlib import Path

import equations
from mkdocs.structure.files import File

from kerastf import config, describe, plugins, registry
from kerastf.testing import CHECKS

MATRIX = Path(__file__).parent / "matrix.json"
KIND_TITLES = {
    "model": "Models", "attention": "Attention", "norm": "Norms", "feedforward": "Feed-forward",
    "position": "Positions", "embedding": "Embeddings", "cell": "Cells", "head": "Heads", "sampler": "Samplers",
    "converter": "Converters",
}  # fmt: skip
FLAGS = {
    "causal": "position `t` need not see later positions",
    "causal_only": "can do nothing else: it is refused where positions see both sides",
    "cross": "attends to a context",
    "decode": "works step by step, with a state",
    "rotation": "takes positions that turn queries and keys, such as `rotary`",
    "bias": "takes positions that add to the scores, such as `alibi`; as a position: adds to the scores",
    "weights": "gives its attention weights",
    "embeddings": "is added to the embeddings",
}


def on_config(config):
    """Puts the generated pages into the menu, by kind, under the section that holds the reference's index."""
    section = next(v for item in config.nav for v in item.values() if isinstance(v, list) and "reference/index.md" in v)
    for kind in plugins.KINDS:
        found = [{e.id: f"reference/{kind}/{e.id}.md"} for e in registry.entries(kind)]
        if found:
            section.append({KIND_TITLES.get(kind, kind): found})
    return config


def on_files(files, config):
    """Adds the generated pages."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """By path: the text of every generated page."""
    found = {f"reference/{entry.kind}/{entry.id}.md": page(entry) for entry in registry.entries()}
    return {"reference/index.md": index(), **found}


def on_page_markdown(markdown, page, config, files):
    """Draws the equations of lessons, outside of their code."""
    if not page.file.src_uri.startswith("course/"):
        return markdown
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.S | re.M)
    return "".join(part if part.lstrip().startswith("```") else _prose(part) for part in parts)


def index() -> str:
    lines = [
        "# Reference",
        "",
        "Every name that is registered where this site was built, the installed plugins' included. "
        "`kerastf info NAME` shows the same on the command line. The [public functions](../api.md) have a page of "
        "their own.",
    ]
    for kind in plugins.KINDS:
        entries = list(registry.entries(kind))
        if not entries:
            continue
        lines += ["", f"## {KIND_TITLES.get(kind, kind)}", "", "| name | what it is | from |", "|---|---|---|"]
        for entry in entries:
            origin = entry.plugin.distribution if entry.plugin else "local"
            summary = _cell(entry.manifest.get("summary", ""))
            lines.append(f"| [`{entry.id}`]({kind}/{entry.id}.md) | {summary} | {origin} |")
    return "\n".join(lines) + "\n"


def page(entry) -> str:
    """The page of one entry."""
    try:
        cls = registry.resolve(entry.kind, entry.id)
    except Exception as error:
        # Anything may go wrong in a stranger's package; the page says what.
        return (
            f"# `{entry.id}`\n\n!!! failure \"This plugin does not load\"\n\n"
            f"    It comes from {entry.owner}.\n\n```text\n{error}\n```\n"
        )  # fmt: skip
    sections = docstring_sections(inspect.getdoc(cls) or "")
    parts = [
        f"# `{entry.id}`",
        f"*{entry.kind} from {entry.owner}*",
        _prose(sections.pop("", "")),
        _use(entry),
        _options(cls, sections),
        _table("Call arguments", sections.get("Call arguments", "")),
        _text("Returns", sections.get("Returns", "")),
        _supports(cls),
        _presets(entry),
        _slots(entry, cls),
        _fits(entry),
        _examples(sections.get("Examples", "")),
        _contract(entry),
        _papers(cls),
        _source(cls),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def docstring_sections(doc: str) -> dict[str, str]:
    """A Google docstring by section; the text before the first has the key `""`."""
    found, name = {"": []}, ""
    for line in doc.splitlines():
        if re.fullmatch(r"[A-Z][A-Za-z ]+:", line):
            name = line[:-1]
            found[name] = []
        else:
            found[name].append(line)
    return {k: textwrap.dedent("\n".join(v)).strip() for k, v in found.items()}


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def _prose(text):
    """The description, with each equation between backticks drawn."""

    def draw(match):
        code = re.sub(r"\s+", " ", match.group(1))
        if not is_equation(code):
            return match.group(0)
        try:
            # In a span, because Markdown would make a paragraph of its own of an equation at the start of a line.
            return f'<span class="equation">{equations.mathml(code)}</span>'
        except equations.NotAnEquation:
            return match.group(0)

    return re.sub(r"`([^`]+)`", draw, text)


def is_equation(code: str) -> bool:
    """Whether what stands between backticks says that something equals something, and is not Python."""
    return "=" in code and not re.search(r"[\"']\w|\w=\w", code)


def _items(section):
    """The `name: description` items of a section."""
    found = re.findall(r"^(\*{0,2}\w[\w, ]*): (.*?)(?=^\*{0,2}\w[\w, ]*: |\Z)", section, re.S | re.M)
    return [(name, " ".join(text.split())) for name, text in found]


def _table(title, section):
    rows = _items(section)
    if not rows:
        return ""
    lines = [f"## {title}", "", "| name | what it is |", "|---|---|"]
    return "\n".join([*lines, *[f"| `{name}` | {_cell(text)} |" for name, text in rows]])


def _text(title, section):
    return f"## {title}\n\n{section}" if section else ""


def _options(cls, sections):
    texts = dict(_items(sections.get("Args", "")))
    types = describe.option_texts(cls)
    if not types:
        return "## Options\n\nIt has none of its own."
    rows = [f"| `{name}` | {_cell(kind)} | {_cell(texts.get(name, ''))} |" for name, kind in types.items()]
    return "\n".join(["## Options", "", "| name | takes | what it does |", "|---|---|---|", *rows])


def _use(entry):
    example = entry.manifest.get("example", {})
    given = "".join(f", {k}={v!r}" for k, v in example.items())
    call = f'kerastf.create_model("{entry.id}"{given})'
    if entry.kind != "model":
        call = f'kerastf.create_block("{entry.kind}", "{entry.id}"{given})'
    if entry.kind == "sampler":
        call = f'model.generate(prompt, sampler="{entry.id}")'
    if entry.kind == "converter":
        family, origin = registry.resolve("converter", entry.id).family, registry.resolve("converter", entry.id).origin
        call = f'kerastf.create_model("{family}", weights="folder")  # or "hf:NAME"'
        call = call if origin == "hf" else "kerastf.convert.from_keras_hub(backbone)"
    return f"```text\n{call}\n```"


def _supports(cls):
    found = sorted(getattr(cls, "supports", ()))
    if getattr(cls, "model_types", None):  # a converter
        heads = [f"- `{theirs}`: the head `{ours}`" for theirs, ours in cls.heads.items()]
        return "\n".join(["## Reads and writes", "", *heads])
    return "\n".join(["## Supports", "", *[f"- `{f}`: {FLAGS.get(f, '')}" for f in found]]) if found else ""


def _presets(entry):
    presets = registry.presets(entry) if entry.kind == "model" else {}
    if not presets:
        return ""
    lines = ["## Presets", "", "| preset | parameters | one forward pass | options |", "|---|---|---|---|"]
    for name, options in presets.items():
        count, work = describe.preset_texts(entry, name)
        shown = ", ".join(f"{k}={v}" for k, v in options.items())
        lines.append(f"| `{entry.id}.{name}` | {count} | {work} | {_cell(shown)} |")
    page = f"{_up(entry)}../cost.md"
    how = f"FLOPs are of one row, two for a multiplication with addition: see [what a model costs]({page})."
    return "\n".join([*lines, "", how])


def _up(entry):
    """The way from an entry's page to the folder of the reference: a plugin's page lies one folder deeper."""
    return "../../" if entry.namespace else "../"


def _slots(entry, cls):
    if entry.kind != "model":
        return ""
    defaults = {n: p.default for n, p in config.options_of(cls).items()}
    lines = ["## Slots", "", "| slot | takes | by default |", "|---|---|---|"]
    for slot, per_layer in cls.slots.items():
        kind = config.slot_kind(slot)
        wanted = "one per layer" if per_layer else "one"
        link = f"[{kind}]({_up(entry)}index.md#{KIND_TITLES[kind].lower()})"
        lines.append(f"| `{slot}` | {wanted}, of kind {link} | `{defaults.get(slot)}` |")
    return "\n".join(lines)


def _fits(entry):
    """The row of the matrix of blocks and models, as an executed check found it."""
    if not MATRIX.exists():
        return ""
    own = "model" if entry.kind == "model" else "block"
    rows = [r for r in json.loads(MATRIX.read_text()) if r[own] == entry.id and entry.kind in ("model", r["kind"])]
    if not rows:
        return ""
    title = "## Blocks that fit" if entry.kind == "model" else "## Where it fits"
    how = "From an executed check: built, decoded step by step, trained, saved and loaded."
    lines = [title, "", how, "", "| slot | block | fits |", "|---|---|---|"]
    for r in rows:
        verdict = "yes" if r["outcome"] == "ok" else _cell(r["outcome"])
        lines.append(f"| `{r['model']}` `{r['slot']}` | `{r['block']}` | {verdict} |")
    return "\n".join(lines)


def _examples(section):
    return f"## Example\n\n```pycon\n{section}\n```" if section else ""


def _contract(entry):
    rows = [c for c in CHECKS if entry.kind in c.kinds]
    lines = ["## Contract", "", f"`kerastf check {entry.id} --kind {entry.kind}` proves these, where they apply:", ""]
    return "\n".join([*lines, *[f"- **{c.name}**: {c.promise}" for c in rows]])


def _papers(cls):
    section = docstring_sections(inspect.getdoc(cls) or "").get("References", "")
    return f"## Papers\n\n{section}" if section else ""


def _source(cls):
    text = textwrap.indent(inspect.getsource(cls), "    ")
    return f'??? note "Source: {cls.__module__}"\n\n    ```python\n{text}    ```'
