"""A layer that is copied is the layer that would have been built."""

import contextlib

import keras
import numpy as np
import pytest
from trees import tracked

import kerastf
from kerastf import alike, compat, copying, registry

SIZES = {"vocab_size": 11, "dim": 8, "num_layers": 3, "num_heads": 2, "max_length": 8, "dropout": 0.1}
BLOCKS = [
    (slot, e.id) for slot in ("attention", "norm", "feedforward", "position") for e in registry.entries(slot)
    if not e.id.endswith("_2d")
]  # fmt: skip
tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="nothing is copied elsewhere")


@pytest.fixture
def copied(monkeypatch):
    """The paths of the layers that were copied."""
    found = []

    class Spy(copying._Copier):
        def __init__(self, parts, here, there, given):
            super().__init__(parts, here, there, given)
            found.append(there)

    monkeypatch.setattr(copying, "_Copier", Spy)
    return found


def filled(arrays, build, given=None):
    """A model whose weights are those arrays, by path, from the beginning."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    copies = contextlib.nullcontext() if given is None else copying.copies(given)
    with compat.initialised_by(lambda path, shape: arrays.get(path)), copies:
        return build()


def pair(build):
    """A model that was built, one that was copied where that is possible, and the arrays of both."""
    keras.backend.clear_session(free_memory=False)
    rng = np.random.default_rng(0)
    arrays = {w.path: rng.normal(size=w.shape).astype(w.dtype) for w in build().weights}
    fresh = {path: array.copy() for path, array in arrays.items()}
    return filled(arrays, build), filled(fresh, build, fresh.__contains__), arrays


def require_same(plain, copy, arrays):
    assert [v.path for v in copy.variables] == [v.path for v in plain.variables]
    assert tracked(copy) == tracked(plain)
    assert copy.get_config() == plain.get_config()
    assert len({id(v) for v in copy.variables}) == len(copy.variables)
    for weight in copy.weights:
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), arrays[weight.path])


def step(model, x):
    model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=False)
    model.fit(x, x, batch_size=2, verbose=0)
    return [keras.ops.convert_to_numpy(w) for w in model.weights]


@tensorflow
@pytest.mark.parametrize("slot, id", BLOCKS)
def test_every_block(copied, slot, id):
    example = registry.find(slot, id).manifest.get("example", {})
    options = {k: v for k, v in example.items() if k not in ("num_heads", "max_length")}
    plain, copy, arrays = pair(lambda: kerastf.create_model("gpt", **SIZES, **{slot: {"name": id, **options}}))
    assert copied == ["layer_1", "layer_2"]
    require_same(plain, copy, arrays)
    assert alike.alike(copy.blocks[0], copy.blocks[2]) == alike.alike(plain.blocks[0], plain.blocks[2])
    x = np.arange(16).reshape(2, 8) % 11
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(x)) for m in (plain, copy)))


@tensorflow
@pytest.mark.parametrize("family", ["bert", "vit", "transformer"])
def test_every_family(copied, family):
    example = {**registry.find("model", family).manifest["example"], "num_layers": 2}
    require_same(*pair(lambda: kerastf.create_model(family, **example)))
    assert copied


@tensorflow
def test_training_saving_and_adapting(tmp_path):
    plain, copy, arrays = pair(lambda: kerastf.create_model("gpt", **{**SIZES, "dropout": 0.0}))
    x = np.arange(16).reshape(2, 8) % 11
    for a, b in zip(step(plain, x), step(copy, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert any(np.abs(keras.ops.convert_to_numpy(w) - arrays[w.path]).max() > 1e-3 for w in copy.blocks[1].weights)
    copy.save(tmp_path / "copy.keras")
    loaded = kerastf.load_model(tmp_path / "copy.keras")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(m(x)) for m in (copy, loaded)))
    dense = copy.blocks[1].attention.qkv
    others = [copy.blocks[i].attention.qkv for i in (0, 2)]
    dense.enable_lora(2)
    assert dense.lora_enabled and not any(d.lora_enabled for d in others)
    assert [len(d.weights) for d in (dense, *others)] == [4, 2, 2]


@tensorflow
def test_a_copy_holds_nothing_of_the_first():
    """From the copy no layer, variable, tracker or container of the first can be reached, by whatever way."""
    _, copy, _ = pair(lambda: kerastf.create_model("gpt", **SIZES))

    def reached(start):
        found, todo = {}, [start]
        while todo:
            x = todo.pop()
            own = isinstance(x, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator | dict | list | set)
            if id(x) in found or not (own or hasattr(x, "__closure__") or type(x).__name__ in KINDS):
                continue
            found[id(x)] = x
            todo += list(x.values()) if isinstance(x, dict) else list(x) if isinstance(x, list | set | tuple) else []
            todo += list(vars(x).values()) if hasattr(x, "__dict__") and own else []
            todo += [c.cell_contents for c in getattr(x, "__closure__", None) or ()]
            todo += [x.__self__] if hasattr(x, "__self__") else []
            todo += [vars(x)] if type(x).__name__ == "Tracker" else []
        return found

    KINDS = ("tuple", "Tracker", "method", "function", "TrackableReference")
    first, second = (reached(copy.blocks[i].attention) for i in (0, 1))
    shared = [x for key, x in second.items() if key in first and not callable(x) and not isinstance(x, tuple)]
    assert shared == []
    assert len(first) == len(second) > 100


class Odd:
    """Something that nobody knows how to copy."""


def unfinished():
    """A function that waits for what it will look at."""

    def look():
        return later

    if not look:
        later = None
    return look


@tensorflow
@pytest.mark.parametrize("make", [Odd, unfinished])
def test_what_is_not_known_is_built(copied, make):
    @kerastf.register("norm", f"with_{make.__name__.lower()}_thing", supports=("causal",))
    class WithOddThing(keras.layers.Layer):
        def build(self, shape):
            self.odd = make()

        def call(self, x):
            return x

    plain, copy, arrays = pair(lambda: kerastf.create_model("gpt", **SIZES, norm=f"with_{make.__name__.lower()}_thing"))
    require_same(plain, copy, arrays)
    assert copied == []
    assert len({id(layer.attention_norm.odd) for layer in copy.blocks}) == 3


@tensorflow
@pytest.mark.parametrize("outside", [True, False])
def test_what_is_shared_stays_shared(copied, outside):
    """Known by its path where it was built outside, and otherwise because the file has its weights once."""
    shared = []

    def share(shape):
        shared.append(keras.layers.Dense(shape[-1], name="shared"))
        shared[0].build(shape)

    @kerastf.register("norm", f"with_part_{'outside' if outside else 'inside'}", supports=("causal",))
    class WithSharedPart(keras.layers.Layer):
        def build(self, shape):
            if not shared:
                share(shape)
            self.part = shared[0]

        def call(self, x):
            return self.part(x)

    def build():
        shared.clear()
        if outside:
            share((None, None, SIZES["dim"]))
        return kerastf.create_model("gpt", **SIZES, norm=WithSharedPart)

    arrays = {w.path: np.ones(w.shape, w.dtype) for w in build().weights}
    model = filled(arrays, build, (lambda path: True) if outside else arrays.__contains__)
    assert len({id(layer.attention_norm.part) for layer in model.blocks}) == 1
    assert copied == []


@tensorflow
def test_weights_that_no_file_gives_are_drawn(copied):
    model = filled({}, lambda: kerastf.create_model("gpt", **SIZES), lambda path: "qkv" in path)
    kernels = [keras.ops.convert_to_numpy(layer.feedforward.expand.kernel) for layer in model.blocks]
    assert copied == [] and np.abs(kernels[0] - kernels[1]).max() > 0.01


@tensorflow
def test_other_settings_are_built(copied):
    build = lambda: kerastf.create_model("gpt", **SIZES, norm=["layer", "rms", "layer"])  # noqa: E731
    require_same(*pair(build))
    assert copied == ["layer_2"]


@tensorflow
def test_seeds_differ():
    _, copy, _ = pair(lambda: kerastf.create_model("gpt", **SIZES))
    states = [tuple(keras.ops.convert_to_numpy(v)) for v in copy.non_trainable_variables]
    assert len(states) == len(set(states)) == 10
