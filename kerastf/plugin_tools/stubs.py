"""`kerastf stubs`: type stubs by which editors and type checkers know the names and options of what is installed here.

The stub of `kerastf` itself has one overload of `create_model` per family and one of `create_block` per block. The
other modules get stubs of their signatures, because a folder of stubs hides the package beneath it.
"""

import ast
import inspect
import shutil
import types
import typing
from pathlib import Path
from typing import Any

import kerastf
from kerastf import plugins, registry
from kerastf.checkpoint import appearing
from kerastf.schema import LAYER_OPTIONS, options_of
from kerastf.slots import slot_kind

HEAD = "# Written by `kerastf stubs`: what is installed here.\n# mypy: ignore-errors\n"


def write_stubs(out: str | Path = "typings") -> int:
    """Writes stubs of kerastf for what is installed here; those of an earlier time are replaced.

    Args:
        out: The folder that editors (`stubPath`) or mypy (`mypy_path`) look into.

    Returns:
        How many modules got one.
    """
    root = Path(kerastf.__file__).parent
    target = Path(out) / "kerastf"
    with appearing(target) as made:
        paths = [p for p in sorted(root.rglob("*.py")) if p.name != "__main__.py"]
        for path in paths:
            stub = (made / path.relative_to(root)).with_suffix(".pyi")
            stub.parent.mkdir(parents=True, exist_ok=True)
            own = path == root / "__init__.py"
            stub.write_text(HEAD + (_top_stub() if own else _module_stub(path.read_text("utf-8"))) + "\n", "utf-8")
        if target.exists():
            shutil.rmtree(target)
    return len(paths)


# --- the package itself


def _top_stub() -> str:
    """The public names of `kerastf`, with the names and options of what is installed."""
    lazy = [f"from {module} import {name} as {name}" for name, module in kerastf._LAZY.items()]
    modules = [f"from kerastf import {name} as {name}" for name in kerastf._MODULES]
    parts = [
        "from collections.abc import Mapping, Sequence", "from pathlib import Path",
        "from typing import Any, Literal, TypeAlias, overload", "",
        *(f"from kerastf.registry import {n} as {n}" for n in ("list_blocks", "list_models", "register")),
        *lazy, *modules, *_imports(), "",
        "__version__: str", f"__all__: list[str] = {list(kerastf.__all__)!r}", "", *_name_types(), "", *_overloads(),
    ]  # fmt: skip
    return "\n".join(parts)


def _usable(kind: str) -> list[tuple[plugins.Entry, type]]:
    """The entries of a kind that load, with their classes; a broken plugin costs its own names only."""
    found = []
    for entry in registry.entries(kind):
        if entry.namespace == plugins.LOCAL:
            continue
        try:
            found.append((entry, registry.resolve(kind, entry.id)))
        except ImportError:
            continue
    return found


def _imports() -> list[str]:
    """Imports of the built-in classes, which the overloads return."""
    return [f"from {cls.__module__} import {cls.__qualname__} as {_alias(entry)}"
            for kind in plugins.KINDS for entry, cls in _usable(kind) if not entry.namespace]  # fmt: skip


def _alias(entry: plugins.Entry) -> str:
    """How the stub calls the class of an entry; a plugin's need not be typed, so it is anything."""
    return "Any" if entry.namespace else f"_{entry.kind}_{entry.name}"


def _name_types() -> list[str]:
    """One type per kind: the names there are; and what a slot of that kind takes."""
    lines = [f"ModelName: TypeAlias = {_literal(_model_names())}"]
    for kind in plugins.KINDS[1:]:
        word = kind.capitalize()
        lines.append(f"{word}Name: TypeAlias = {_literal([e.id for e, _ in _usable(kind)])}")
        lines.append(f"_{word}: TypeAlias = {word}Name | Mapping[str, Any] | type")
        lines.append(f"_{word}Slot: TypeAlias = _{word} | Sequence[_{word}] | Mapping[int, Any]")
    return lines


def _model_names() -> list[str]:
    return [name for entry, _ in _usable("model") for name in _ids(entry)]


def _ids(entry: plugins.Entry) -> list[str]:
    return [entry.id, *(f"{entry.id}.{preset}" for preset in registry.presets(entry))]


def _literal(values: typing.Iterable[Any]) -> str:
    return f"Literal[{', '.join(map(repr, values))}]"


def _overloads() -> list[str]:
    lines = []
    for entry, cls in _usable("model"):
        shared = "config: str | Path | Mapping[str, Any] | None = ..., weights: str | Path | None = ..."
        # A preset, a file or a tokenizer may say what the constructor asks for, so nothing is required.
        options = ", ".join([shared, *_parameters(cls, required=False)])
        lines += ["@overload", f"def create_model(id: {_literal(_ids(entry))}, *, {options}) -> {_alias(entry)}: ..."]
    for kind in plugins.KINDS[1:]:
        for entry, cls in _usable(kind):
            options = ", ".join([*_parameters(cls, required=True), *_layer_options(cls)])
            given = f"kind: Literal[{kind!r}], block: Literal[{entry.id!r}]{', *, ' if options else ''}{options}"
            lines += ["@overload", f"def create_block({given}) -> {_alias(entry)}: ..."]
        given = f"kind: Literal[{kind!r}], block: Mapping[str, Any] | type, **facts: Any"
        lines += ["@overload", f"def create_block({given}) -> Any: ..."]
    return lines


def _parameters(cls: type, required: bool) -> list[str]:
    """The options of a class as parameters of a stub, with their types."""
    hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    slots = getattr(cls, "slots", {})
    found = []
    for name, parameter in options_of(cls).items():
        kind = f"_{slot_kind(name).capitalize()}Slot" if name in slots else _type_text(hints.get(name, Any))
        must = required and parameter.default is parameter.empty
        found.append(f"{name}: {kind}" + ("" if must else " = ..."))
    return found


def _layer_options(cls: type) -> list[str]:
    """`name`, `dtype` and `trainable`, where a class hands them on to Keras."""
    takes = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    return [f"{n}: Any = ..." for n in LAYER_OPTIONS if takes and n not in options_of(cls)]


def _type_text(hint: Any) -> str:
    """An annotation as a stub writes it. What is not plain data is `Any`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is None or hint is type(None):
        return "None"
    if hint in (int, float, str, bool):
        return hint.__name__
    if origin in (typing.Union, types.UnionType):
        texts = list(dict.fromkeys(_type_text(a) for a in arguments))
        return "Any" if "Any" in texts else " | ".join(texts)
    if origin is typing.Literal:
        return _literal(arguments)
    if origin in (list, tuple):
        return f"Sequence[{_type_text(arguments[0])}]"
    if dict in (hint, origin):
        return "Mapping[str, Any]"
    return "Any"


# --- the other modules


def _module_stub(source: str) -> str:
    """The signatures, annotations and docstrings of a module, without what its functions do."""
    tree = ast.parse(source)
    kept = [node for child in tree.body for node in _kept(child)]
    place = 1 if ast.get_docstring(tree) else 0
    tree.body = [*kept[:place], *ast.parse("from typing import Any as _Any").body, *kept[place:]]
    return ast.unparse(ast.fix_missing_locations(tree))


def _kept(node: ast.stmt) -> list[ast.stmt]:
    """What a stub keeps of a statement; none of it where it only does something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = [node.body[0]] if ast.get_docstring(node) else []
        node.decorator_list = [d for d in node.decorator_list if "wraps(" not in ast.unparse(d)]
        node.body = [*docstring, ast.Expr(ast.Constant(...))]
        return [node]
    if isinstance(node, ast.ClassDef):
        return [_class_stub(node)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        for name in node.names:  # a stub hands on only what it imports as itself
            name.asname = name.asname or (name.name if "." not in name.name and name.name != "*" else None)
        return [node]
    if isinstance(node, ast.AnnAssign):
        return [node]
    if isinstance(node, ast.Assign):
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        is_kept = names == ["__all__"] or ast.unparse(node.value).startswith("TypeVar(")
        return [node] if is_kept else [_anything(name) for name in names]
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return [node]
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return [node] if is_text else []


def _class_stub(node: ast.ClassDef) -> ast.ClassDef:
    """A class with what its methods assign to `self` as attributes, after its docstring."""
    stored = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    attributes = {n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"}
    body = [kept for child in node.body for kept in _kept(child)]
    named = {name for child in body for name in _names(child)}
    place = 1 if ast.get_docstring(node) else 0
    more = [_anything(name) for name in sorted(attributes - named)]
    node.body = [*body[:place], *more, *body[place:]] or [ast.Expr(ast.Constant(...))]
    return node


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


def _anything(name: str) -> ast.stmt:
    return ast.parse(f"{name}: _Any").body[0]
