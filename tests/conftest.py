"""Shared helpers: fake installed packages."""

import os
import sys
import textwrap

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


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs fake packages, here and for child processes: `install(distribution, entries, code=..., ...)`."""
    from kerastf import plugins

    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def write(*args, **kwargs):
        package = write_plugin(site, *args, **kwargs)
        plugins.rediscover()
        return package

    yield write
    for name in [m for m in sys.modules if (site / m.partition(".")[0]).exists()]:
        del sys.modules[name]
    monkeypatch.undo()
    plugins.rediscover()


@pytest.fixture(autouse=True)
def forget_local_names():
    """What a test registers is gone after it."""
    from kerastf import registry

    before = dict(registry._local)
    yield
    registry._local.clear()
    registry._local.update(before)
