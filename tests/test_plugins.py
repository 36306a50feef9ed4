"""Plugins: discovery, states, isolation, threads, processes, and that installing never changes a name's meaning."""

import importlib.metadata
import multiprocessing
import subprocess
import sys
import threading
import time

import pytest
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import kerastf
from kerastf import convert, plugins, registry
from kerastf.cli import main
from kerastf.errors import ConfigError, PluginError, RegistrationError, UnknownNameError

NORM = """
import keras
from kerastf import register

@register("norm", "half", supports=("causal",))
class Half(keras.layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def call(self, x):
        return x / 2
"""


def plugin(namespace):
    return next(p for p in plugins.discover().values() if p.namespace == namespace)


def test_states(install):
    install("kerastf-good", {"norm": {"half": "Half"}}, code=NORM)
    install("kerastf-bad", {"norm": {"half": "Half"}}, code="import a_module_that_is_not_there")
    install("kerastf-future", {"norm": {"half": "Half"}}, code=NORM, requires=["kerastf>=99"])
    install("kerastf-off", {"norm": {"half": "Half"}}, code=NORM)
    plugins.disable("off")
    assert plugin("good").state == "discovered"
    kerastf.create_block("norm", "good/half")
    assert plugin("good").state == "loaded" and plugin("good").load_seconds > 0
    with pytest.raises(PluginError, match="No module named 'a_module_that_is_not_there'"):
        kerastf.create_block("norm", "bad/half")
    assert plugin("bad").state == "failed"
    assert "a_module_that_is_not_there" in next(iter(plugin("bad").tracebacks.values()))
    assert plugin("future").state == "incompatible"
    with pytest.raises(PluginError, match=f"it needs kerastf>=99, and kerastf {kerastf.__version__} is installed"):
        kerastf.create_block("norm", "future/half")
    with pytest.raises(PluginError, match="disabled"):
        kerastf.create_block("norm", "off/half")
    plugins.enable("off")
    kerastf.create_block("norm", "off/half")
    assert kerastf.list_blocks("*/half") == ["bad/half", "future/half", "good/half", "off/half"]


@pytest.mark.parametrize("value, enabled", [("none", []), ("a", ["a"]), ("a,b", ["a", "b"]), ("all", ["a", "b", "c"])])
def test_variable(install, monkeypatch, value, enabled):
    for name in "abc":
        install(f"kerastf-{name}", {"norm": {"half": "Half"}}, code=NORM)
    monkeypatch.setenv("KERASTF_PLUGINS", value)
    plugins.rediscover()
    assert [n for n in "abc" if plugin(n).state != "disabled"] == enabled
    kerastf.create_block("norm", "rms")  # the built-ins are always there


@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('no')",
        "import sys; sys.exit(3)",
        "1 / 0",
        "def (",
        "Half = 3",
        "import kerastf_broken.missing",
    ],
)
def test_a_broken_plugin_costs_its_own_names_only(install, code):
    install("kerastf-broken", {"norm": {"half": "Half"}, "model": {"m": "M"}}, code=code, manifest="not = [toml")
    install("kerastf-good", {"norm": {"half": "Half"}}, code=NORM)
    for _ in range(2):
        with pytest.raises(PluginError, match="fails to import"):
            kerastf.create_block("norm", "broken/half")
    kerastf.create_block("norm", "good/half")
    assert "broken/m" in kerastf.list_models() and "gpt.nano" in kerastf.list_models()
    assert kerastf.create_model("gpt", vocab_size=5, dim=8, num_layers=1, num_heads=2, max_length=4) is not None


MANIFESTS = {
    "presets": ("[model.m.presets]\nx = 5", "`presets` of [model.m] must be a table of tables. Received: {'x': 5}"),
    "supports": ("[attention.fancy]\nsupports = 7", "`supports` of [attention.fancy] must be a list of strings. Received: 7"),
    "tags": ("[model.m]\ntags = [1]", "`tags` of [model.m] must be a list of strings. Received: [1]"),
    "summary": ("[model.m]\nsummary = []", "`summary` of [model.m] must be a string. Received: []"),
    "reads": ("[converter.c]\nsupports = 7", "`supports` of [converter.c] must be a list of strings. Received: 7"),
    "name": ("[model]\nm = 1", "model.m must be a table. Received: 1"),
    "kind": ("attention = true", "attention must be a table. Received: True"),
}  # fmt: skip


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_manifest_costs_its_own_names_only(install, capsys, name):
    manifest, problem = MANIFESTS[name]
    offers = {"attention": {"fancy": "F"}, "model": {"m": "M"}, "converter": {"c": "C"}}
    install("kerastf-bad", offers, code=NORM, manifest=manifest)
    assert main(["list"]) == 0
    assert "bad/m" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="does not support rotation"):
        kerastf.create_model("gpt", vocab_size=5, dim=8, num_heads=2, attention="bahdanau", position="rotary")
    with pytest.raises(ConfigError, match="No converter reads models of the type 'x'"):
        convert.converter_for("hf", "x")
    assert main(["plugins"]) == 0
    assert f"  problem: its manifest kerastf.toml: {problem}\n" in capsys.readouterr().out


def test_a_plugin_with_one_broken_module_keeps_its_other_names(install):
    package = install("kerastf-mixed", {"norm": {"half": "Half", "gone": "Gone"}}, code=NORM)
    for _ in range(2):
        with pytest.raises(PluginError, match="has no attribute 'Gone'"):
            kerastf.create_block("norm", "mixed/gone")
        kerastf.create_block("norm", "mixed/half")
    assert package == "kerastf_mixed"


def test_metadata_problems_are_told_and_harmless(install):
    install("kerastf-odd", {"atention": {"x": "X"}, "norm": {"9bad": "X", "Good-Name": "Half"}}, code=NORM)
    found = plugin("odd")
    assert [e.id for e in found.entries] == ["odd/good_name"]
    assert any("unknown kind `atention`" in p for p in found.problems)
    assert any("`9bad`" in p for p in found.problems)


def test_a_reserved_namespace_offers_nothing(install):
    install("kerastf-local", {"norm": {"half": "Half"}}, code=NORM)
    assert kerastf.list_blocks("local/*") == []
    assert "reserved" in plugin("local").problems[0]


def test_two_packages_of_one_namespace(install):
    install("kerastf-twin", {"norm": {"half": "Half", "own": "Half"}}, code=NORM)
    assert registry.find("norm", "twin/half").load.__self__.plugin.distribution == "kerastf-twin"
    install("twin", {"norm": {"half": "Half"}}, code=NORM)
    with pytest.raises(PluginError, match="claimed by kerastf-twin 1.0 .* and twin 1.0"):
        registry.find("norm", "twin/half").load()
    assert registry.find("norm", "twin/own").plugin.distribution == "kerastf-twin"


def test_a_bare_name_never_reaches_a_plugin():
    with pytest.raises(UnknownNameError, match="Did you mean `linear_attention/linear`?"):
        registry.find("attention", "linear")


def test_a_class_without_an_entry_point_is_refused(install):
    code = NORM + "\n@register('norm', 'other')\nclass Other(Half):\n    pass\n"
    install("kerastf-partial", {"norm": {"half": "Half"}}, code=code)
    with pytest.raises(PluginError, match="has no entry point for it"):
        kerastf.create_block("norm", "partial/half")


def test_a_class_without_the_decorator_works(install):
    install(
        "kerastf-plain",
        {"norm": {"half": "Half"}},
        code="import keras\n"
        + NORM.split("register\n")[1].replace('@register("norm", "half", supports=("causal",))\n', ""),
    )
    assert type(kerastf.create_block("norm", "plain/half")).__name__ == "Half"


def test_the_same_class_again_replaces_and_another_is_refused():
    def define():
        @kerastf.register("norm", "cell_run_again")
        class Again:
            pass

        return Again

    define()
    second = define()
    assert registry.resolve("norm", "cell_run_again") is second
    with pytest.raises(RegistrationError, match="exists already: .*Again"):
        kerastf.register("norm", "cell_run_again")(type("Other", (), {}))
    with pytest.raises(RegistrationError, match="exists already: kerastf"):
        kerastf.register("norm", "rms")(type("Other", (), {}))


def test_32_threads_load_a_slow_plugin_once(install):
    code = (
        "import time, builtins\nbuiltins.kerastf_loads = getattr(builtins, 'kerastf_loads', 0) + 1\ntime.sleep(0.3)\n"
        + NORM
    )
    install("kerastf-slow", {"norm": {"half": "Half"}}, code=code)
    found, barrier = [], threading.Barrier(32)

    def resolve():
        barrier.wait()
        found.append(registry.resolve("norm", "slow/half"))

    threads = [threading.Thread(target=resolve) for _ in range(32)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    import builtins

    assert len(found) == 32 and len(set(map(id, found))) == 1
    assert builtins.kerastf_loads == 1 and time.perf_counter() - start < 5


def test_32_threads_meet_a_failure_once(install):
    code = (
        "import builtins\nbuiltins.kerastf_fails = getattr(builtins, 'kerastf_fails', 0) + 1\nraise RuntimeError('no')"
    )
    install("kerastf-fails", {"norm": {"half": "Half"}}, code=code)
    errors = []

    def resolve():
        try:
            registry.resolve("norm", "fails/half")
        except PluginError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=resolve) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    import builtins

    assert len(errors) == 32 and builtins.kerastf_fails == 1


def work(name):
    import kerastf

    return type(kerastf.create_block("norm", name)).__name__


def test_a_worker_process_discovers_for_itself():
    code = (
        "import multiprocessing as m, kerastf\n"
        "def work(name):\n    import kerastf\n    return type(kerastf.create_block('norm', name)).__name__\n"
        "if __name__ == '__main__':\n"
        "    with m.get_context('{}').Pool(1) as pool: print(pool.apply(work, ['template/unit']))\n"
    )
    for method in ("spawn", "forkserver") if "forkserver" in multiprocessing.get_all_start_methods() else ("spawn",):
        import tempfile

        with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
            script.write(code.format(method))
            script.flush()
            done = subprocess.run([sys.executable, script.name], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "Unit"


# --- Installing a package never changes what an existing name means; listing never fails.


class Fake(importlib.metadata.Distribution):
    """A distribution that exists in memory only."""

    def __init__(self, name, entries, requires):
        self.files_by_name = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n" + "".join(f"Requires-Dist: {r}\n" for r in requires),
            "entry_points.txt": "".join(f"[kerastf.{k}]\n{n} = {t}\n" for k, n, t in entries),
        }  # fmt: skip

    def read_text(self, filename):
        return self.files_by_name.get(filename)

    def locate_file(self, path):
        return path


NAMES = st.sampled_from(["gpt", "rms", "multi_head", "half", "Half", "a-b", "a_b", "x", "9x", "é", "linear", "none"])
TARGETS = st.sampled_from(["os:path", "no_such_module:X", "json:JSONDecoder", "kerastf_x", "a b:c", "x:y [extra]"])
KIND = st.sampled_from([*plugins.KINDS, "atention", ""])
DISTRIBUTIONS = st.builds(
    Fake,
    st.sampled_from(["kerastf-a", "a", "A", "kerastf_a", "b", "kerastf-gpt", "local", "kerastf-local", "c.d", "c-d"]),
    st.lists(st.tuples(KIND, NAMES, TARGETS), max_size=5, unique_by=lambda e: e[:2]),
    st.lists(st.sampled_from(["kerastf>=99", "kerastf>=0.1", "kerastf [", "numpy", "kerastf-a"]), max_size=2),
)


def meanings():
    """By kind and id: what each name resolves to, or None where it is refused."""
    found = {}
    for entry in registry.entries():
        resolved = registry.find(entry.kind, entry.id)
        found[entry.kind, entry.id] = None if resolved.rivals else (resolved.target, resolved.plugin.distribution)
    return found


@settings(max_examples=examples(40, 150), deadline=None)
@given(installed=st.lists(DISTRIBUTIONS, max_size=6))
def test_no_id_ever_changes_meaning(installed):
    real = list(importlib.metadata.distributions())
    try:
        before = None
        for count in range(len(installed) + 1):
            plugins._discovered = plugins._read([*real, *installed[:count]])
            now = meanings()
            kerastf.list_models()
            kerastf.list_blocks("*")
            for plugin_found in plugins.discover().values():
                assert plugin_found.state in ("discovered", "loaded", "failed", "disabled", "incompatible")
            for key, meaning in (before or {}).items():
                assert key in now, "an id vanished"
                # A second claim makes an id refused; it never makes it mean something else.
                assert now[key] in (meaning, None)
                if meaning and meaning[1] == "kerastf":
                    assert now[key] == meaning
            before = now
    finally:
        plugins.rediscover()
