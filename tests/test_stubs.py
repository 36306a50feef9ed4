"""`kerastf stubs`: mypy accepts what is right by the names and options installed here, and refuses what is not."""

import ast
import subprocess
import sys

import pytest

import kerastf
from kerastf import registry
from kerastf.plugin_tools.stubs import write_stubs

RIGHT = """
import kerastf
from kerastf import create_block, create_model
from kerastf.plugins import Plugin, discover
from kerastf.testing import check_block
from kerastf.text import CharacterTokenizer

model = create_model("gpt.nano", vocab_size=65, norm="template/unit", attention={"name": "multi_head", "num_kv_heads": 1})
create_model("gpt", tokenizer=CharacterTokenizer("abc"), norm=["rms", "layer"], position="rotary")
create_model("bert.tiny", config="bert.toml", dropout=0.1)
model.fit(1)
attention = create_block("attention", "multi_head", num_heads=4, name="first")
create_block("attention", "linear_attention/linear", num_heads=4, chunk=8)
create_block("norm", {"name": "rms", "epsilon": 1e-5})
create_block("sampler", "top_k", k=3)
names: list[str] = kerastf.list_blocks("*", kind="norm")
plugin: Plugin = discover()["kerastf-template"]
plugin.entries.append(plugin.entries[0])
kerastf.info("gpt").parameters
kerastf.training.train("recipe.toml")
check_block("norm", "rms").failed
"""
WRONG = {
    'kerastf.create_model("gpt.nanoo", vocab_size=65)': 'No overload variant of "create_model" matches',
    'kerastf.create_model("gpt.nano", vocab_size=65, nrom="rms")': 'Unexpected keyword argument "nrom"',
    'kerastf.create_model("gpt.nano", vocab_size=65, norm="rmss")': 'No overload variant of "create_model" matches',
    'kerastf.create_model("gpt.nano", vocab_size="65")': 'No overload variant of "create_model" matches',
    'kerastf.create_model("gpt.nano", norm_order="before")': 'No overload variant of "create_model" matches',
    'kerastf.create_block("attention", "multi_head", num_head=4)': 'No overload variant of "create_block" matches',
    'kerastf.create_block("attention", "multi_head")': 'No overload variant of "create_block" matches',
    'kerastf.create_block("attention", "rms")': 'No overload variant of "create_block" matches',
    'kerastf.create_block("norm", "template/unity")': 'No overload variant of "create_block" matches',
    "kerastf.create_modell": 'Module has no attribute "create_modell"',
    "kerastf.plugins.discovr()": 'Module has no attribute "discovr"',
}  # fmt: skip


@pytest.fixture(scope="module")
def typings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    write_stubs(folder / "typings")
    return folder


def mypy(folder, code):
    (folder / "user.py").write_text(code)
    (folder / "mypy.ini").write_text("[mypy]\nmypy_path = typings\n")
    command = [sys.executable, "-m", "mypy", "user.py", "--config-file", "mypy.ini"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()


def test_mypy_accepts_what_is_right(typings):
    assert mypy(typings, RIGHT) == ["Success: no issues found in 1 source file"]


def test_mypy_refuses_what_is_wrong(typings):
    told = mypy(typings, "import kerastf\n\n" + "".join(f"{line}\n" for line in WRONG))
    for number, (line, words) in enumerate(WRONG.items(), 3):
        about = [text for text in told if text.startswith(f"user.py:{number}: error: ")]
        assert about and words in about[0], (line, told)


def test_no_public_name_is_hidden(typings):
    folder = typings / "typings" / "kerastf"
    tree = ast.parse((folder / "__init__.pyi").read_text())
    known = {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    known |= {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert set(kerastf.__all__) <= known
    for name in kerastf._MODULES:
        assert (folder / f"{name}.pyi").exists() or (folder / name / "__init__.pyi").exists()


def test_every_installed_name_has_an_overload(typings):
    text = (typings / "typings" / "kerastf" / "__init__.pyi").read_text()
    for entry in registry.entries():
        assert f"'{entry.id}'" in text
    for name in kerastf.list_models():
        assert f"'{name}'" in text


def test_a_broken_plugin_costs_its_own_names_only(install, tmp_path):
    install("kerastf-broken", {"norm": {"half": "Half"}}, code="import not_there")
    write_stubs(tmp_path / "typings")
    text = (tmp_path / "typings" / "kerastf" / "__init__.pyi").read_text()
    assert "'broken/half'" not in text and "'template/unit'" in text


def test_earlier_stubs_are_replaced(tmp_path):
    (tmp_path / "kerastf").mkdir()
    (tmp_path / "kerastf" / "gone.pyi").write_text("")
    assert write_stubs(tmp_path) > 50
    assert not (tmp_path / "kerastf" / "gone.pyi").exists() and [p.name for p in tmp_path.iterdir()] == ["kerastf"]
