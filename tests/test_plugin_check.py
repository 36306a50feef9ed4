"""`kerastf plugin check`: a new package passes, and each planted break is caught by its own check and named."""

import re

import pytest

from kerastf import plugins
from kerastf.cli import main
from kerastf.plugin_tools import scaffold
from kerastf.plugin_tools.checks import PLUGIN_CHECKS, check_plugin

CODE, MANIFEST, PROJECT = "kerastf_mine/__init__.py", "kerastf_mine/kerastf.toml", "pyproject.toml"
QUICK = [c.name for c in PLUGIN_CHECKS if c.level == "quick"]
AFTER = "\n\n# after the class\n"

# By check: a file, a text in it (None for the end of the file) and what takes its place; then what the verdict says.
BREAKS = [
    ("name", PROJECT, 'name = "kerastf-mine"', 'name = "kerastf-local"', "gives the namespace `local`, which is reserved"),
    ("metadata", PROJECT, 'description = "', '# "', "says no `description`"),
    ("metadata", PROJECT, 'version = "0.1.0"', 'version = "one"', "Invalid version: 'one'"),
    ("metadata", PROJECT, 'requires-python = ">=3.11"', 'requires-python = "three"', "Invalid specifier"),
    ("readme", PROJECT, 'readme = "README.md"', "", "names no README"),
    ("readme", "README.md", None, None, "no such file with text in it"),
    ("license", PROJECT, 'license = "MIT"', "", "says no license"),
    ("license", PROJECT, 'license = "MIT"', 'license = "free for all"', "is not an identifier of spdx.org/licenses"),
    ("license", "LICENSE", None, None, "no file with the text of the license"),
    ("requires", PROJECT, "kerastf>=0.1,<1", "kerastf>=0.1", "has no upper bound"),
    ("requires", PROJECT, "kerastf>=0.1,<1", "kerastf>=7,<8", "leaves out kerastf"),
    ("requires", PROJECT, "kerastf>=0.1,<1", "numpy", "it does not require kerastf"),
    ("entry_points", PROJECT, '"kerastf.norm"', '"kerastf.nrom"', "under an unknown kind `nrom`"),
    ("entry_points", PROJECT, 'unit = "kerastf_mine:Unit"', "", "it offers nothing"),
    ("tests", "tests/test_contract.py", None, None, "it has no tests"),
    ("tests", "tests/test_contract.py", "mine/unit", "mine/other", "no test names mine/unit"),
    ("manifest", MANIFEST, None, None, "there is no kerastf.toml"),
    ("manifest", MANIFEST, "[norm.unit]", "[norm.unit", "kerastf.toml cannot be read"),
    ("manifest", MANIFEST, "[norm.unit]", "[norm.unity]", "says no summary of norm `unit`"),
    ("manifest", MANIFEST, "supports", "sumary = 'x'\nsupports", "an unknown key `sumary`"),
    ("manifest", MANIFEST, "supports", "aliases = ['unit']\nsupports", "the alias `unit` of `unit` is a name"),
    ("manifest", MANIFEST, "[norm.unit]", "[norm.gone]\nsummary = 'x'\n\n[norm.unit]", "which no entry point offers"),
    ("imports", CODE, "import keras\n", "import keras\nimport not_there\n", "No module named 'not_there'"),
    ("imports", PROJECT, "kerastf_mine:Unit", "kerastf_mine:Unity", "has no entry point for it"),
    ("side_effects", CODE, AFTER, "\nprint('hello')\n", "it prints 'hello'"),
    ("side_effects", CODE, AFTER, "\nkeras.config.set_floatx('float16')\n", "it changes Keras's settings"),
    ("side_effects", CODE, AFTER, "\nimport os\nos.environ['PLANTED'] = '1'\n", "it changes environment variables"),
    ("side_effects", CODE, AFTER, "\nimport random\nrandom.seed(0)\n", "it seeds Python's random numbers"),
    ("side_effects", CODE, AFTER, "\nkeras.saving.get_custom_objects()['relu'] = Unit\n", "the Keras object 'relu'"),
    ("side_effects", CODE, AFTER, "\nkeras.saving.get_custom_objects()['kerastf>norm.x'] = Unit\n", "'kerastf>norm.x'"),
    ("side_effects", CODE, AFTER, "\nregister('norm', 'more')(type('More', (), {'__module__': 'elsewhere'}))\n", "under `local`"),
    ("import_time", CODE, AFTER, "\nimport time\ntime.sleep(1.1)\n", "importing it took"),
    ("frameworks", CODE, AFTER, "\n\ndef more():\n    import tensorflow as tf\n\n    return tf\n", "imports tensorflow"),
    ("docstrings", CODE, '    """Scales', '    f"""Scales', "the class Unit has no docstring"),
    ("docstrings", CODE, '"""A plugin', 'X = """A plugin', "the module kerastf_mine has no docstring"),
    ("supports", MANIFEST, '["causal"]', "[]", "kerastf.toml says supports = [], @register says ['causal']"),
    ("example", MANIFEST, "supports", "example = { width = 3 }\nsupports", "made with {'width': 3}, it raises"),
]  # fmt: skip


@pytest.fixture
def mine(tmp_path, install_project, monkeypatch):
    """A new package and a way to break it."""
    import keras

    made = scaffold.new("mine", "norm", out=tmp_path)

    def broken(file=None, old=None, new=None):
        if file:
            path = made / file
            if new is None:
                path.unlink()
            elif old == AFTER:
                path.write_text(path.read_text() + new)
            else:
                assert old in path.read_text()
                path.write_text(path.read_text().replace(old, new, 1))
        install_project(made)
        return made

    floatx = keras.config.floatx()
    monkeypatch.setenv("PLANTED", "0")
    yield broken
    keras.config.set_floatx(floatx)
    for name in ("relu", "kerastf>norm.x"):
        keras.saving.get_custom_objects().pop(name, None)


def wrong(report):
    return report.failed + report.warned


def sentence(report):
    return next(v.sentence for v in report.verdicts if v.name in wrong(report))


def test_a_new_package_is_sound(mine):
    report = check_plugin(str(mine()), level="full")
    assert wrong(report) == [] and all(v.outcome == "ok" for v in report.verdicts)
    assert len(report.verdicts) == len(PLUGIN_CHECKS) + 1 and report.verdicts[-1].name == "contract norm mine/unit"


@pytest.mark.parametrize("name, file, old, new, words", BREAKS, ids=[f"{b[0]}-{i}" for i, b in enumerate(BREAKS)])
def test_a_break_is_caught_by_its_check_alone(mine, name, file, old, new, words):
    report = check_plugin(str(mine(file, old, new)), only=QUICK)
    assert wrong(report) == [name]
    assert words in sentence(report)


def test_every_check_has_a_planted_break():
    tried_below = {"installed", "rivals", "build"}
    assert {b[0] for b in BREAKS} | tried_below == {c.name for c in PLUGIN_CHECKS}


def test_not_installed(tmp_path):
    report = check_plugin(str(scaffold.new("mine", "norm", out=tmp_path)), only=QUICK)
    assert report.failed == ["installed"] and "python -m pip install -e " in sentence(report)


def test_installed_otherwise(mine):
    folder = mine()
    path = folder / PROJECT
    path.write_text(path.read_text().replace("unit = ", 'second = "kerastf_mine:Unit"\nunit = '))
    (folder / "tests" / "test_more.py").write_text("mine/second")
    report = check_plugin(str(folder), only=QUICK)
    assert report.failed == ["installed"] and "is not what pyproject.toml says now" in sentence(report)


def test_rivals(mine, install):
    folder = mine()
    install("mine", {"norm": {"unit": "Unit"}})
    report = check_plugin(str(folder), only=QUICK)
    assert report.failed == ["rivals"] and "is claimed by mine 1.0 (mine:Unit) too" in sentence(report)


@pytest.mark.parametrize("file, old, new, words", [
    (PROJECT, 'kerastf_mine = ["kerastf.toml"]', "", "the wheel lacks kerastf.toml"),
    (PROJECT, 'packages = ["kerastf_mine"]', 'packages = ["tests"]', "the wheel lacks the package kerastf_mine"),
    (PROJECT, 'packages = ["kerastf_mine"]', 'packages = ["kerastf_mine", "tests"]', "installs a package `tests`"),
    (PROJECT, 'packages = ["kerastf_mine"]', 'packages = "kerastf_mine"', "it does not build"),
    ("MANIFEST.in", AFTER, "exclude kerastf_mine/kerastf.toml\n", "lacks kerastf"),
])  # fmt: skip
def test_archives(mine, file, old, new, words):
    folder = mine()
    if file == "MANIFEST.in":
        (folder / file).write_text("")
    report = check_plugin(str(mine(file, old, new)), level="full", only=[*QUICK, "build"])
    assert report.failed == ["build"] and words in sentence(report)


def test_a_broken_contract_is_named(mine):
    report = check_plugin(str(mine(CODE, "axis=-1, keepdims=True", "axis=1, keepdims=True")))
    assert report.failed == ["contract norm mine/unit"]
    assert "causal: outputs up to 0 changed" in sentence(report) and "kerastf check mine/unit" in sentence(report)


def test_a_name_that_does_not_begin_with_kerastf(mine, tmp_path):
    report = check_plugin(str(mine(PROJECT, 'name = "kerastf-mine"', 'name = "mine"')), only=QUICK)
    assert report.failed == [] and report.warned == ["name"]


def test_by_namespace_and_on_the_command_line(mine, capsys, monkeypatch):
    folder = mine()
    monkeypatch.setattr("kerastf.plugin_tools.checks._contracts", lambda project: [])
    assert main(["plugin", "check", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("plugin `mine` (kerastf-mine 0.1.0): ") and "It is sound, as far as these checks see." in out
    (folder / "LICENSE").unlink()
    assert main(["plugin", "check", str(folder)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^  FAIL  license +there is no file", out, re.M) and "It is not sound yet: license." in out


def test_installed_without_its_source(install):
    install(
        "kerastf-good", {"norm": {"half": "Half"}}, code="import keras\nclass Half(keras.layers.Layer):\n    'Half.'\n"
    )
    report = check_plugin("good", only=QUICK)
    skipped = [v.name for v in report.verdicts if v.outcome == "skip"]
    assert skipped == ["metadata", "readme", "license", "tests", "installed"]
    assert report.failed == ["requires", "manifest"]
    assert plugins.discover()["kerastf-good"].state == "loaded"
