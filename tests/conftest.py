"""Shared helpers: fake installed packages."""

import importlib
import json
import os
import sys
import textwrap
import tomllib

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def write_plugin(site, distribution, entries, *, code="", version="1.0", requires=(), manifest=""):
    """Lays an installed package into `site`, as pip would.

    Args:
        site: A folder on the path.
        distribution: Its name; the package has the same with underscores.
        entries: By kind: names to class names within the package.
        code: What its `__init__.py` says.
        version: Its version.
        requires: Lines of its requirements.
        manifest: What its `kerastf.toml` says.
    """
    package = distribution.replace("-", "_")
    (site / package).mkdir(parents=True)
    (site / package / "__init__.py").write_text(textwrap.dedent(code))
    if manifest:
        (site / package / "kerastf.toml").write_text(textwrap.dedent(manifest))
    info = site / f"{package}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
    lines += [f"Requires-Dist: {r}" for r in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    text = ""
    for kind, names in entries.items():
        text += f"[kerastf.{kind}]\n" + "".join(f"{n} = {package}:{c}\n" for n, c in names.items())
    (info / "entry_points.txt").write_text(text)
    return package


def lay_down(site, project):
    """Writes the metadata of a project's folder into `site`, as `pip install -e` would."""
    facts = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
    info = site / f"{facts['name'].replace('-', '_')}-{facts['version']}.dist-info"
    info.mkdir(exist_ok=True)
    lines = ["Metadata-Version: 2.4", f"Name: {facts['name']}", f"Version: {facts['version']}"]
    lines += [f"Requires-Dist: {r}" for r in facts.get("dependencies", ())]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    groups = facts.get("entry-points", {})
    points = "".join(f"[{g}]\n" + "".join(f"{n} = {t}\n" for n, t in names.items()) for g, names in groups.items())
    (info / "entry_points.txt").write_text(points)
    url = {"url": project.resolve().as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, for this process and its children."""
    from kerastf import plugins

    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    before = set(sys.modules)
    yield site
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    monkeypatch.undo()
    plugins.rediscover()


@pytest.fixture
def install(site):
    """Installs fake packages: `install(distribution, entries, code=..., ...)`."""
    from kerastf import plugins

    def write(*args, **kwargs):
        package = write_plugin(site, *args, **kwargs)
        plugins.rediscover()
        return package

    return write


@pytest.fixture
def install_project(site, monkeypatch):
    """Installs a project's folder where it stands: `install_project(folder)`."""
    from kerastf import plugins

    def write(project):
        lay_down(site, project)
        monkeypatch.syspath_prepend(str(project))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project), os.environ["PYTHONPATH"]]))
        importlib.invalidate_caches()
        plugins.rediscover()

    return write


@pytest.fixture(autouse=True)
def forget_local_names():
    """What a test registers is gone after it."""
    from kerastf import registry

    before = dict(registry._local)
    yield
    registry._local.clear()
    registry._local.update(before)
