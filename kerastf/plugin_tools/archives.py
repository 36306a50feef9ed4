"""The archives that a plugin is published as: built as pip builds them, without a network, and looked into."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

from kerastf.testing.report import Broken, NotAsked

BUILD = """
import functools, importlib, sys
name, out = sys.argv[1:]
module, _, rest = name.partition(":")
backend = functools.reduce(getattr, filter(None, rest.split(".")), importlib.import_module(module))
backend.build_sdist(out)
backend.build_wheel(out)
"""
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__")


def require_sound_archives(project):
    """Builds the sdist and the wheel of a project in a copy of its folder, and raises `Broken` where one is unsound."""
    system = project.text.get("build-system", {})
    backend = system.get("build-backend", "setuptools.build_meta")
    _ = project.source
    if "backend-path" in system or importlib.util.find_spec(backend.partition(":")[0].partition(".")[0]) is None:
        raise NotAsked(f"its build backend {backend} is not installed here")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        shutil.copytree(project.source, source, ignore=LEFT_OUT)
        out.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", BUILD, backend, str(out)], cwd=source, capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise Broken(f"it does not build: {last[-1]}. See: python -m pip wheel --no-deps {project.folder}")
        _look_into_wheel(project, next(out.glob("*.whl")))
        _look_into_sdist(project, next(out.glob("*.tar.gz")))


def _tops(project):
    return sorted({e.target.partition(":")[0].partition(".")[0] for e in project.known.entries})


def _look_into_wheel(project, path):
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        info = next(n for n in names if n.endswith(".dist-info/METADATA"))
        text = wheel.read(info)
    for top in _tops(project):
        if not {f"{top}/__init__.py", f"{top}.py"} & names:
            raise Broken(f"the wheel lacks the package {top}. Name it: [tool.setuptools] packages = [{top!r}]")
    if not any(f"{top}/kerastf.toml" in names for top in _tops(project)):
        raise Broken(
            "the wheel lacks kerastf.toml. Add to pyproject.toml: [tool.setuptools.package-data] "
            f'{_tops(project)[0]} = ["kerastf.toml"]'
        )
    foreign = sorted({n.partition("/")[0] for n in names if "/" in n} & {"tests", "test", "docs", "examples"})
    if foreign:
        raise Broken(
            f"the wheel installs a package `{foreign[0]}` for everybody. Name yours: [tool.setuptools] packages"
        )
    try:
        found = Metadata.from_email(text, validate=True)
    except Exception as problems:  # an ExceptionGroup of what an index would refuse
        told = "; ".join(str(e) for e in getattr(problems, "exceptions", [problems]))
        raise Broken(f"an index would refuse its metadata: {told}") from None
    if not (found.description or "").strip():
        raise Broken('its metadata hold no long description: write a README, and readme = "README.md"')


def _look_into_sdist(project, path):
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames()}
    wanted = ["pyproject.toml", *(f"{top}/kerastf.toml" for top in _tops(project))]
    lacking = [n for n in wanted if n not in names and f"src/{n}" not in names]
    if lacking:
        raise Broken(f"the sdist lacks {lacking[0]}. Add it to MANIFEST.in")
