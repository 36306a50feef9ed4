"""What pages show from data: attention maps to point at, tables of samples, and the mending of the theme's markup.

A hook of mkdocs. An element with `data-source="path.json"` gets the data: a list of rows becomes a table, everything
else is handed to a script as it is, inside the page, so that it works without a server as well.
"""

import json
import re
from html import escape
from pathlib import Path

from mkdocs.exceptions import PluginError

SOURCE = re.compile(r'<(figure|div)([^>]*) data-source="([^"]+)"([^>]*)>')
MENU = re.compile(
    r'(?P<start><nav class="md-nav" data-md-level="(?P<level>[1-9])" )aria-labelledby="\w+"(?P<rest>[^>]*>\s*'
    r'<label class="md-nav__title"[^>]*>\s*<span class="md-nav__icon md-icon"></span>\s*(?P<title>.*?)\s*</label>)',
    re.S,
)


def on_page_content(html, page, config, files):
    """Puts the data into the elements that name it."""

    def fill(match):
        tag, before, source, after = match.groups()
        path = (Path(page.file.abs_src_path).parent / source).resolve()
        if not path.is_file():
            raise PluginError(f"{page.file.src_uri} shows {source}, which does not exist: python docs/_site/draw.py")
        return f"<{tag}{before}{after}>{shown(json.loads(path.read_text('utf-8')))}"

    return SOURCE.sub(fill, html)


def shown(data) -> str:
    """The data as HTML: rows as a table, everything else for a script; costs of blocks as both."""
    if isinstance(data, list):
        return table(data)
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    tables = "".join(f"<h3>{name}</h3>{table(rows)}" for name, rows in cost_rows(data).items())
    return f'<script type="application/json">{text}</script>{tables}'


def cost_rows(data) -> dict:
    """For each family, how each block changes its first preset."""
    found = {}
    for family, known in data.get("families", {}).items():
        preset, facts = next(iter(known["presets"].items()))
        rows = [{"slot": "the preset", "block": "", **_told(data["measures"], facts["cost"], "")}]
        for key, change in facts["changes"].items():
            if "+" not in key:
                slot, _, block = key.partition(":")
                rows.append({"slot": slot, "block": f"`{block}`", **_told(data["measures"], change, "+")})
        found[f"{family}.{preset}"] = rows
    return found


def _told(measures, numbers, sign):
    return {m.replace("_", " "): f"{n:{sign},}" for m, n in zip(measures, numbers, strict=True)}


def table(data) -> str:
    """A list of rows as an HTML table."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in data[0])
    rows = "".join("<tr>" + "".join(f"<td>{_cell(v)}</td>" for v in row.values()) + "</tr>" for row in data)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(value):
    text = escape(str(value)).replace("\n", "<br>")
    return re.sub(r"^`(.+)`$", r"<code>\1</code>", text)


def on_post_page(output, page, config):
    """Names what the theme leaves without a name: the search, and menus whose title is a link."""
    dialog = 'data-md-component="search" role="dialog"'
    output = output.replace(dialog, f'{dialog} aria-label="Search"')
    outer = ""

    def name(match):
        nonlocal outer
        title = re.sub("<[^>]+>", "", match["title"]).strip()
        outer = title if match["level"] == "1" else outer
        label = title if match["level"] == "1" else f"{outer}: {title}"
        return f'{match["start"]}aria-label="{label}"{match["rest"]}'

    return MENU.sub(name, output)
