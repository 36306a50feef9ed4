"""The house's own rules: imports point down, importing is light, the manifest tells the truth, nothing is left out."""

import ast
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import kerastf
from kerastf import registry

ROOT = Path(kerastf.__file__).parent

# A module may import modules of lower storeys, and of its own where both are listed together.
STOREYS = [
    {"building", "copying", "errors", "garbage", "standing_in", "versions"}, {"plugins", "supervisor", "evolution"}, {"registry"}, {"schema"}, {"slots"}, {"config", "keras_hook"}, {"trust"},
    {"ahead", "chance", "compat", "cutting", "fitting", "jax_kernels", "kernels", "lookups", "products", "replicas", "shapes", "streams", "tracing"},
    {"alike", "chunked_attention", "chunked_loss", "halves", "looped"},
    {"functional", "text", "checkpoint", "symbolic", "arithmetic"}, {"vectors"}, {"blocks"},
    {"decoding"}, {"models"}, {"counting"},
    {"bilm_files", "describe", "data", "metrics", "plots", "convert", "experiments"}, {"create"},
    {"testing"}, {"plugin_tools"}, {"training"}, {"demo"}, {"cli_plugin"}, {"cli_training"}, {"cli"},
]  # fmt: skip
HEIGHT = {name: level for level, names in enumerate(STOREYS) for name in names}


def modules():
    return sorted(p for p in ROOT.rglob("*.py") if p.name not in ("__init__.py", "__main__.py") or p.parent != ROOT)


def imports_of(path):
    """The kerastf modules a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kerastf":
            below = node.module.split(".")[1:]
            yield from [below[0]] if below else [a.name for a in node.names]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("kerastf."))


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in HEIGHT, f"{own} has no storey"
    for other in imports_of(path):
        if other in HEIGHT and other != own:
            assert HEIGHT[other] <= HEIGHT[own], f"{own} imports {other}, which stands above it"


def test_no_model_imports_another():
    shared = {"kerastf.models.base", "kerastf.models.encoder_decoder"}
    parts = ("base.py", "encoder_decoder.py", "from_features.py", "generation.py", "saved.py", "__init__.py")
    for path in (ROOT / "models").glob("*.py"):
        if path.name not in parts:
            names = {n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)}
            assert {n for n in names if n and n.startswith("kerastf.models")} <= shared


def test_tensor_code_is_keras_ops_only():
    backends = {
        "ahead.py", "building.py", "chance.py", "copying.py", "compat.py", "fitting.py", "kernels.py", "lookups.py", "products.py", "replicas.py", "shapes.py", "streams.py", "tracing.py", "versions.py", "devices.py",
    }  # fmt: skip
    allowed = backends | {"batching.py", "examples.py", "pictures.py"}
    for path in ROOT.rglob("*.py"):
        if path.name in allowed or path.parent.name == "jax_kernels":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {n.split(".")[0] for n in names} & {"tensorflow", "jax", "torch"}, path


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_is_light():
    listing = "import kerastf, sys; kerastf.list_models(); kerastf.list_blocks()"
    loaded = run(f"{listing}; print([m for m in sys.modules if m.split('.')[0] in ('keras', 'tensorflow', 'numpy')])")
    assert loaded == "[]"


def test_annotations_are_compiled_once_while_keras_is_imported():
    code = """
import collections, sys, typing

texts, watching = collections.Counter(), [True]
def count(event, given):
    if event == "compile" and given[1] == "<string>" and watching[0]:
        texts[given[0]] += 1
sys.addaudithook(count)
import kerastf, keras
watching[0] = False
assert "compile" not in vars(typing)
asked = [text for text in texts if text and b"_atypes." in text]
print(len(asked), max(texts[text] for text in asked))
"""
    different, most = map(int, run(code).split())
    assert different > 10 and most == 1


def test_listing_imports_no_plugin():
    loaded = run("import kerastf, sys; kerastf.list_blocks(); print('kerastf_linear_attention' in sys.modules)")
    assert loaded == "False"


def test_using_a_name_imports_only_its_owner():
    code = "import kerastf, sys; kerastf.create_block('norm', 'template/unit'); "
    loaded = run(code + "print('kerastf_template' in sys.modules, 'kerastf_linear_attention' in sys.modules)")
    assert loaded == "True False"


@pytest.mark.parametrize("entry", registry.entries(), ids=lambda e: f"{e.kind}:{e.id}")
def test_the_manifest_tells_the_truth(entry):
    cls = registry.resolve(entry.kind, entry.id)
    assert entry.manifest.get("summary"), "the manifest says nothing of it"
    assert sorted(entry.manifest.get("supports", ())) == sorted(cls.supports)
    assert set(entry.manifest) <= {"summary", "supports", "tags", "example", "presets"}


def test_the_manifest_names_nothing_that_is_not_there():
    for plugin in kerastf.plugins.discover().values():
        offered = {(e.kind, e.name) for e in plugin.entries}
        described = {(kind, name) for kind, names in plugin.manifest.items() for name in names}
        assert described <= offered


def test_every_public_layer_is_registered():
    # Parts of models, and abstract classes.
    helpers = {
        "TransformerLayer",
        "Dense",
        "Dropout",
        "AttentionDecoder",
        "Recurrent",
        "RecurrentLayer",
        "ConvAttention",
        "Attention",
        "Projected",
        "Unprojected",
        "Cell",
        "Highway",
        "ScalarMix",
        "ExtraTokens",
        "Segment",
        "Asked",
    }
    for module_info in pkgutil.iter_modules([str(ROOT / "blocks")]):
        module = importlib.import_module(f"kerastf.blocks.{module_info.name}")
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if cls.__module__ == module.__name__ and issubclass(cls, keras.layers.Layer) and not name.startswith("_"):
                assert name in helpers or "registry_entry" in vars(cls), f"{name} is not registered"


def test_no_word_of_asserts_outside_tests():
    for path in ROOT.rglob("*.py"):
        assert not [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Assert)], path
