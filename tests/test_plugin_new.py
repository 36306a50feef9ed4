"""`kerastf plugin new`: what it writes is sound, and it writes the whole of it or nothing."""

import filecmp
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kerastf import plugins, registry, testing
from kerastf.plugin_tools import scaffold

ROOT = Path(__file__).parents[1]


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_a_new_block_keeps_its_contract_untouched(kind, tmp_path, install_project):
    made = scaffold.new(f"my-{kind}", kind, out=tmp_path)
    install_project(made)
    entry = next(e for e in registry.entries(kind) if e.namespace == f"my_{kind}")
    report = testing.run_checks(testing.subject(kind, entry.id), "quick")
    assert report.ok and len(report.verdicts) >= 3
    assert sorted(entry.manifest["supports"]) == sorted(registry.resolve(kind, entry.id).supports)


def test_what_it_is_made_of(tmp_path):
    made = scaffold.new("Kerastf-My.Block", "attention", block="soft-max", out=tmp_path)
    assert made.name == "kerastf-my-block" and [p.name for p in tmp_path.iterdir()] == [made.name]
    assert files(made) == [
        ".github/workflows/test.yml", ".gitignore", "LICENSE", "README.md", "kerastf_my_block/__init__.py",
        "kerastf_my_block/kerastf.toml", "pyproject.toml", "tests/test_contract.py",
    ]  # fmt: skip
    facts = tomllib.loads((made / "pyproject.toml").read_text())["project"]
    assert facts["entry-points"] == {"kerastf.attention": {"soft_max": "kerastf_my_block:SoftMax"}}
    for path in files(made):
        text = (made / path).read_text()
        assert text.endswith("\n") and "@Class" not in text and "@block" not in text, path


@pytest.mark.parametrize("kind, block, name", [
    ("norm", "none", "NoneBlock"), ("model", "model", "ModelBlock"), ("norm", "rms", "Rms"),
])  # fmt: skip
def test_a_class_name_that_means_something_else(kind, block, name, tmp_path):
    made = scaffold.new("x", kind, block=block, out=tmp_path)
    code = (made / "kerastf_x" / "__init__.py").read_text()
    assert f"class {name}(" in code
    compile(code, "new", "exec")


def test_the_template_is_what_new_writes(tmp_path):
    """`plugins/template` is kept as a package to look at; it is not a second copy to keep in step by hand."""
    made = scaffold.new("template", "norm", out=tmp_path)
    kept = ROOT / "plugins" / "template"
    assert [f for f in files(made) if not filecmp.cmp(made / f, kept / f, shallow=False)] == []
    tracked = subprocess.run(["git", "ls-files"], cwd=kept, capture_output=True, text=True, check=True).stdout.split()
    assert tracked == [] or tracked == files(made)


def test_the_page_shows_what_new_writes(tmp_path):
    scaffold.new("mine", "norm", out=tmp_path)
    page = (ROOT / "docs" / "plugins.md").read_text("utf-8")
    shown = re.findall(r'^```\w+ title="(kerastf-mine/\S+)"\n(.*?)^```$', page, re.S | re.M)
    assert len(shown) == 4
    for path, text in shown:
        assert text == (tmp_path / path).read_text("utf-8"), path


def test_what_it_writes_reads_well(tmp_path):
    for kind in plugins.KINDS:
        scaffold.new(f"my-{kind}", kind, out=tmp_path)
    for command in (["check"], ["format", "--check"]):
        subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--config", ROOT / "pyproject.toml", tmp_path],
            check=True, capture_output=True,
        )  # fmt: skip


def test_nothing_half_written(tmp_path, monkeypatch):
    template = scaffold._template

    def fails_late(name):
        if name == "test_contract.py.txt":
            raise OSError("the disk is full")
        return template(name)

    monkeypatch.setattr(scaffold, "_template", fails_late)
    with pytest.raises(OSError, match="the disk is full"):
        scaffold.new("mine", "norm", out=tmp_path)
    assert list(tmp_path.iterdir()) == []
