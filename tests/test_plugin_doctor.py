"""`kerastf plugin doctor`: every way in which an installed plugin can be ill is told."""

import json

import pytest

from kerastf import plugins
from kerastf.cli import main
from kerastf.plugin_tools.doctor import examine, origin

NORM = "import keras\n\n\nclass Half(keras.layers.Layer):\n    pass\n"
MANIFEST = '[norm.half]\nsummary = "Half."\n'


def told(install, **kwargs):
    install("kerastf-ill", {"norm": {"half": "Half"}}, **{"code": NORM, "manifest": MANIFEST, **kwargs})
    (finding,) = examine("ill")
    return finding, str(finding)


def test_a_healthy_one(install, site):
    finding, text = told(install, requires=["kerastf>=0.1,<1", "numpy>=1"])
    assert not finding.sick and "nothing is wrong with it" in text
    assert f"installed from {site}" in text and "editable" not in text
    assert finding.plugin.state == "loaded" and 0 <= finding.plugin.load_seconds < 1  # Keras is not counted


@pytest.mark.parametrize("kwargs, words", [
    ({"code": "import not_there"}, ["kerastf_ill fails to import:", "    ModuleNotFoundError: No module named 'not_there'"]),
    ({"requires": ["kerastf>=99"]}, ["it needs kerastf>=99, and kerastf "]),
    ({"requires": ["numpy>=99"]}, ["problem: it needs numpy>=99, and numpy "]),
    ({"requires": ["not-there>=1"]}, ["problem: it needs not-there>=1, which is not installed"]),
    ({"manifest": "not = [toml"}, ["problem: its manifest kerastf.toml cannot be read"]),
    ({"manifest": ""}, ["problem: it has no manifest kerastf.toml"]),
])  # fmt: skip
def test_an_ill_one(install, kwargs, words):
    finding, text = told(install, **kwargs)
    assert finding.sick and "nothing is wrong" not in text
    for part in words:
        assert part in text


def test_a_requirement_of_an_extra_is_not_missed(install):
    assert not told(install, requires=['not-there>=1; extra == "more"'])[0].sick


def test_rivals(install):
    install("ill", {"norm": {"half": "Half"}}, code=NORM)
    install("kerastf-ill", {"norm": {"half": "Half"}}, code=NORM)
    found = {f.plugin.distribution: f for f in examine("ill")}
    assert all(f.sick for f in found.values()) and "is claimed by ill 1.0 (ill:Half) too" in str(found["kerastf-ill"])


def test_where_it_comes_from(install, site, tmp_path):
    install("kerastf-ill", {"norm": {"half": "Half"}}, code=NORM)
    assert origin("kerastf-ill") == (site, False)
    source = tmp_path / "a folder"
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (site / "kerastf_ill-1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    assert origin("kerastf-ill") == (source, True)


def test_on_the_command_line(install, capsys):
    install("kerastf-ill", {"norm": {"half": "Half"}}, code="raise RuntimeError('on purpose')")
    assert main(["plugins"]) == 0
    assert "ill                  discovered    kerastf-ill 1.0" in capsys.readouterr().out
    assert main(["plugin", "doctor"]) == 1
    out = capsys.readouterr().out
    assert "ill                  failed        kerastf-ill 1.0" in out and "RuntimeError: on purpose" in out
    assert "installed from" in out and "linear-attention" in out
    assert main(["plugin", "doctor", "template"]) == 0
    assert main(["plugin", "doctor", "tmplate"]) == 2
    assert "Did you mean `template`?" in capsys.readouterr().err


def test_with_no_plugins(monkeypatch, capsys):
    monkeypatch.setattr(plugins, "discover", dict)
    assert main(["plugin", "doctor"]) == 0
    assert capsys.readouterr().out.startswith("No plugins are installed.")
