"""Plain values as TOML: Python reads it, and writes none."""

from collections.abc import Mapping
from typing import Any


def write_toml(tables: Mapping[str, Any]) -> str:
    """Tables of plain values as TOML; None is left out, as TOML has none."""
    lines: list[str] = []
    for section, content in tables.items():
        for table in content if isinstance(content, list) else [content]:
            lines += ["", f"[[{section}]]" if isinstance(content, list) else f"[{section}]"]
            lines += [f"{_key(k)} = {_value(v)}" for k, v in table.items() if v is not None]
    return "\n".join(lines).strip() + "\n"


def _key(key):
    plain_key = key and all(c.isalnum() or c in "_-" for c in key) and key.isascii()
    return key if plain_key else _value(key)


def _value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(str(k))} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped) + '"'
    return repr(value)
