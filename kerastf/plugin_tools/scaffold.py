"""`kerastf plugin new`: writes a package of one small, sound block to start from."""

import json
import keyword
import os
import re
import tempfile
import tomllib
from importlib import resources
from pathlib import Path

from kerastf import __version__, plugins, registry
from kerastf.errors import RegistrationError

# Where each file of a new package stands, and the template it is made of. What stands between @ is filled in.
FILES = {
    "README.md": "README.md.txt",
    "LICENSE": "LICENSE.txt",
    "pyproject.toml": "pyproject.toml.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/test.yml": "test.yml.txt",
    "@package@/__init__.py": "@kind@.py.txt",
    "@package@/kerastf.toml": "kerastf.toml.txt",
    "tests/test_contract.py": "test_contract.py.txt",
}


def new(name: str, kind: str, *, block: str | None = None, out: str | Path = ".") -> Path:
    """Writes a package that installs, passes its own tests and can be published.

    Args:
        name: Name of the plugin, with or without a leading `kerastf-`; its namespace follows from it.
        kind: What it offers: `"attention"`, `"norm"`, ...
        block: Name of the block; by default that of the small example it begins with.
        out: Folder in which the package's folder is made.

    Returns:
        The package's folder.

    Raises:
        RegistrationError: The kind or a name cannot be.
        FileExistsError: There is something in that place already.
        FileNotFoundError: There is no folder `out`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = new("mine", "norm", out=folder)
        ...     sorted(p.name for p in made.iterdir() if p.is_dir())
        ['.github', 'kerastf_mine', 'tests']
    """
    values = _values(name, kind, block)
    target = Path(out) / values["distribution"]
    if not Path(out).is_dir():
        raise FileNotFoundError(f"There is no folder {out}. Received: out={str(out)!r}")
    if target.exists():
        raise FileExistsError(f"{target} exists already. Choose another name, or remove it first.")
    # Whole or not at all: the folder gets its name when every file is in it.
    with tempfile.TemporaryDirectory(prefix=".new-", dir=out) as folder:
        made = Path(folder) / values["distribution"]
        for place, template in FILES.items():
            path = made / _filled(place, values)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(_template(_filled(template, values)), values), "utf-8")
        os.rename(made, target)
    return target


def _values(name: str, kind: str, block: str | None) -> dict[str, str]:
    """What the templates leave open."""
    registry.require_kind(kind)
    namespace = plugins.normalise(name).removeprefix("kerastf_")
    if not plugins.is_name(namespace) or namespace in (plugins.LOCAL, "kerastf"):
        raise RegistrationError(
            "A plugin's name is a letter, then a-z 0-9 and -, and neither `local` nor `kerastf`. "
            f"Received: name={name!r}"
        )
    facts = tomllib.loads(_template("kinds.toml"))[kind]
    own = plugins.normalise(block) if block is not None else facts["block"]
    if not plugins.is_name(own):
        raise RegistrationError(f"A block's name is a letter, then a-z 0-9 _. Received: block={block!r}")
    major, minor, *_ = __version__.split(".")
    id = f"{namespace}/{own}"
    values = {
        "kind": kind, "namespace": namespace, "block": own, "id": id, "Class": _class_name(own, kind),
        "distribution": "kerastf-" + namespace.replace("_", "-"), "package": f"kerastf_{namespace}",
        "bounds": f">={major}.{minor},<{int(major) + 1}", "summary": facts["summary"],
        "sentence": facts["summary"][0].lower() + facts["summary"][1:],
        "check": "check_model" if kind == "model" else "check_block",
        "asked": f'"{id}"' if kind == "model" else f'"{kind}", "{id}"',
    }  # fmt: skip
    values["use"] = _filled(facts["use"], values)
    values["supports"] = _filled(json.dumps(facts["supports"]), values)
    if "example" in facts:
        values["supports"] += f"\nexample = {facts['example']}"
    return values


def _class_name(block: str, kind: str) -> str:
    """`my_block` is `MyBlock`; longer where the template means something else by that word."""
    name = "".join(word.capitalize() for word in block.split("_"))
    taken = keyword.iskeyword(name) or re.search(rf"\b{name}\b", _template(f"{kind}.py.txt"))
    return f"{name}Block" if taken else name


def _template(name: str) -> str:
    return (resources.files("kerastf.plugin_tools") / "templates" / name).read_text("utf-8")


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], text)
