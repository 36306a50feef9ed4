"""Checks that every block and every model keeps."""

import inspect
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import ops

from kerastf import compat, config
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.subjects import KINDS, LENGTH, difference, joined, numpy

ALL = (*KINDS, "model")
TOLERANCE = 1e-5


@check("documented", ALL, "every constructor parameter is in the docstring and in get_config")
def documented(subject):
    names = [n for n in config.options_of(subject.cls) if n not in ("name", "dtype", "trainable")]
    text = inspect.getdoc(subject.cls) or ""
    section = re.search(r"^Args:\n(.*?)(?:^\S|\Z)", text, re.S | re.M)
    described = re.findall(r"^\s+(\w+):", section.group(1), re.M) if section else []
    missing = [n for n in names if n not in described]
    if missing:
        raise Broken(f"the docstring's Args say nothing of {', '.join(missing)}")
    kept = subject.new().get_config()
    lost = [n for n in names if n not in kept]
    if lost:
        raise Broken(f"get_config forgets {', '.join(lost)}, so a loaded copy would have the default")


@check("config", ALL, "the configuration is plain JSON and makes the same object again")
def config_round_trip(subject):
    first = subject.make()
    kept = first.get_config()
    try:
        again = json.loads(json.dumps(kept))
    except TypeError as error:
        raise Broken(f"get_config holds something that is not JSON: {error}") from None
    second = subject.cls.from_config(again)
    if second.get_config() != kept:
        changed = [k for k in kept if second.get_config().get(k) != kept[k]]
        raise Broken(f"after get_config and from_config, {', '.join(changed)} changed")
    inputs = subject.inputs()
    subject.call(second, inputs)
    copy_weights(first, second)
    gap = difference(subject.call(first, inputs), subject.call(second, inputs))
    if gap > TOLERANCE:
        raise Broken(f"a copy made from get_config, with the same weights, differs by {gap:.2g}")


def copy_weights(source, target):
    """Copies all weights, and says so where they do not match."""
    shapes = [[tuple(w.shape) for w in layer.weights] for layer in (source, target)]
    if shapes[0] != shapes[1]:
        raise Broken(f"a copy made from get_config has other weights: {shapes[0]} became {shapes[1]}")
    target.set_weights(source.get_weights())


@check("shapes", ALL, "symbolic and eager shapes agree")
def shapes(subject):
    if subject.kind == "cell":
        raise NotAsked("a cell's shapes are its state_size and output_size")
    layer = subject.make()
    inputs = subject.inputs()
    actual = _shapes(subject.raw(layer, inputs))
    given = {k: v.shape for k, v in inputs.items()}
    if subject.kind == "model":
        promised = layer.compute_output_shape(given if len(given) > 1 else next(iter(given.values())))
        symbolic = layer.outputs
    else:
        promised = layer.compute_output_shape(*given.values())
        symbolic = keras.tree.flatten(subject.raw(layer, subject.symbolic(inputs)))
    if keras.tree.map_shape_structure(tuple, promised) != actual:
        raise Broken(f"compute_output_shape says {promised}, the output has {actual}")
    for symbol, output in zip(symbolic, keras.tree.flatten(subject.raw(layer, inputs)), strict=True):
        _require_same_shape(symbol.shape, tuple(output.shape))


def _shapes(output):
    return keras.tree.map_structure(lambda v: tuple(v.shape), output)


def _require_same_shape(symbolic, actual):
    if len(symbolic) != len(actual) or any(s not in (None, a) for s, a in zip(symbolic, actual, strict=True)):
        raise Broken(f"a symbolic call gives {tuple(symbolic)}, an eager one {actual}")


@check("gradients", ALL, "gradients reach every weight and are finite")
def gradients(subject):
    layer = subject.make()
    if not layer.trainable_variables:
        raise NotAsked("it has no weights")
    inputs = subject.inputs()
    shape = subject.call(layer, inputs).shape
    target = ops.convert_to_tensor(np.random.default_rng(5).normal(size=shape).astype("float32"))

    def loss():
        return ops.sum(ops.cast(subject.call(layer, inputs), "float32") * target)

    for variable, gradient in zip(
        layer.trainable_variables, compat.gradients(loss, layer.trainable_variables), strict=True
    ):
        if gradient is None or not np.any(gradient):
            raise Broken(f"no gradient reaches {variable.path}")
        if not np.all(np.isfinite(gradient)):
            raise Broken(f"the gradient of {variable.path} is not finite")


@check("length", ("attention", "norm", "feedforward", "embedding", "head", "model"), "one object takes any length")
def length(subject):
    layer = subject.make()
    for n in (1, LENGTH - 2, LENGTH + 3):
        inputs = subject.inputs(length=n)
        shape = subject.call(layer, inputs).shape
        expected = subject.call(subject.make(), inputs).shape
        if tuple(shape) != tuple(expected):
            raise Broken(f"at length {n} the output has shape {tuple(shape)}, a fresh object's {tuple(expected)}")


@check("precision", ALL, "mixed precision stays finite and near float32")
def precision(subject):
    if not subject.make().trainable_variables and subject.kind == "position":
        raise NotAsked("it has no weights")
    exact = subject.make()
    inputs = subject.inputs()
    for policy in ("mixed_float16", "mixed_bfloat16"):
        layer = subject.make(dtype=policy)
        layer.set_weights(exact.get_weights())
        for scale in (1.0, 100.0):
            scaled = {k: v * scale if v.dtype == np.float32 else v for k, v in inputs.items()}
            output = numpy(subject.call(layer, scaled))
            if not np.all(np.isfinite(output)):
                raise Broken(f"under {policy} the output is not finite for inputs of size {scale:g}")
            if scale == 1.0:
                want = numpy(subject.call(exact, scaled))
                gap = np.max(np.abs(output - want)) / (1 + np.max(np.abs(want)))
                if gap > 0.1:
                    raise Broken(f"under {policy} the output is off by {gap:.2g} of its size")


@check("graph", ALL, "eager and graph agree")
def graph(subject):
    _compare_compiled(subject, lambda function, layer: compat.graph(function), "a graph")


@check("xla", ALL, "eager and XLA agree", level="full")
def xla(subject):
    _compare_compiled(subject, compat.compiled, "XLA")


def _compare_compiled(subject, compile_function, what):
    layer = subject.make()
    inputs = subject.inputs()
    names = list(inputs)

    def run(*values):
        return subject.call(layer, dict(zip(names, values, strict=True)))

    output = compile_function(run, layer)(*[ops.convert_to_tensor(v) for v in inputs.values()])
    gap = difference(output, subject.call(layer, inputs))
    if gap > TOLERANCE:
        raise Broken(f"{what} gives another result than eager execution, by {gap:.2g}")


@check("seed", ALL, "the same seed gives the same weights and output; inference is not random")
def seed(subject):
    outputs = []
    for _ in range(2):
        keras.utils.set_random_seed(11)
        layer = subject.new()
        outputs.append(numpy(subject.call(layer, subject.inputs(), training=True)))
    if not np.array_equal(*outputs):
        raise Broken("two objects made and called under the same seed differ")
    layer = subject.make()
    if difference(subject.call(layer, subject.inputs()), subject.call(layer, subject.inputs())) > 0:
        raise Broken("two calls with training=False differ: something random is active in inference")


@check(
    "batch",
    ("attention", "norm", "feedforward", "embedding", "cell", "head", "model"),
    "a row does not depend on the batch around it",
)
def batch(subject):
    _require_rows_alone(subject, subject.make(), training=False)
    if subject.kind in ("attention", "norm", "feedforward"):  # `fit` may take a batch through them in halves
        layer, inputs = subject.make(), subject.inputs()
        twice = [numpy(subject.call(layer, inputs, training=True)) for _ in range(2)]
        if difference(*twice) <= TOLERANCE:  # otherwise random numbers differ, too
            _require_rows_alone(subject, subject.make(), training=True)


def _require_rows_alone(subject, layer, training):
    inputs = subject.inputs()
    whole = numpy(subject.call(layer, inputs, training=training))
    for row in range(whole.shape[0]):
        single = subject.call(layer, {k: v[row : row + 1] for k, v in inputs.items()}, training=training)
        gap = difference(single, whole[row : row + 1])
        if gap > TOLERANCE:
            when = " in training" if training else ""
            raise Broken(f"row {row} alone differs from row {row} in a batch{when} by {gap:.2g}")


@check(
    "mask_rules",
    ("attention", "norm", "feedforward", "embedding", "head"),
    "supports_masking, and compute_mask returns None",
)
def mask_rules(subject):
    layer = subject.make()
    if not layer.supports_masking:
        raise Broken("set self.supports_masking = True, or Keras warns and drops masks")
    if layer.compute_mask(ops.convert_to_tensor(next(iter(subject.inputs().values()))), None) is not None:
        raise Broken("compute_mask must return None: masks are passed on by hand")


def saved_copy(subject, folder):
    """A small Keras model around the subject, saved; returns the model, its inputs by name and the path."""
    path = Path(folder) / "subject.keras"
    inputs = subject.inputs()
    if subject.kind == "model":
        model = subject.make()
    else:
        layer = subject.make()
        symbols = {n: keras.Input(batch_shape=a.shape, dtype=str(a.dtype), name=n) for n, a in inputs.items()}
        model = keras.Model(symbols, layer(*symbols.values()))
    model.save(path)
    return model, inputs, path


@check(
    "save",
    tuple(k for k in ALL if k != "cell"),
    "a saved model with it loads with plain Keras and gives the same output",
)
def save(subject):
    with tempfile.TemporaryDirectory() as folder:
        model, inputs, path = saved_copy(subject, folder)
        loaded = keras.saving.load_model(path)
        gap = difference(_run(loaded, inputs), _run(model, inputs))
    if gap > 0:
        raise Broken(f"after saving and loading, the output differs by {gap:.2g}")


def _run(model, inputs):
    """Calls a model with a dict of arrays, or with the one array where it has one input of its own."""
    tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
    return joined(model(tensors if isinstance(model.input, dict) else next(iter(tensors.values()))))


FRESH = """
import sys, numpy as np, kerastf, keras
from kerastf import compat
from kerastf.testing.subjects import joined
for name in sys.argv[1:]:
    data = np.load(name + ".npz")
    model = keras.saving.load_model(name + ".keras")
    inputs = {k: keras.ops.convert_to_tensor(data[k]) for k in data.files if k != "output"}
    with compat.exact_products():
        output = model(inputs if isinstance(model.input, dict) else list(inputs.values())[0])
    output = keras.ops.convert_to_numpy(joined(output))
    print(name, float(np.max(np.abs(output - data["output"]), initial=0.0)), flush=True)
"""


def load_in_fresh_process(subjects):
    """Saves each subject in a model of its own, and loads all of them in one new Python process.

    Returns:
        By subject id: the largest difference of the outputs.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = {}
        for i, subject in enumerate(subjects):
            model, inputs, path = saved_copy(subject, folder)
            name = str(Path(folder) / f"subject_{i}")
            path.rename(f"{name}.keras")
            np.savez(f"{name}.npz", output=numpy(_run(model, inputs)), **inputs)
            names[name] = f"{subject.kind}:{subject.id}"
        done = subprocess.run([sys.executable, "-c", FRESH, *names], capture_output=True, text=True, check=False)
    found = {names[n]: float(gap) for n, gap in (line.rsplit(" ", 1) for line in done.stdout.splitlines())}
    if done.returncode:
        missing = next(iter(v for v in names.values() if v not in found), "?")
        last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message"
        raise Broken(f"a new process cannot load a model with {missing}: {last}")
    return found


@check(
    "fresh_process",
    tuple(k for k in ALL if k != "cell"),
    "a new process loads it and gives the same output",
    level="full",
)
def fresh_process(subject):
    if subject.entry.plugin is None:
        raise NotAsked("a class of a script or notebook is not there in a new process")
    gap = load_in_fresh_process([subject])[f"{subject.kind}:{subject.id}"]
    if gap > 1e-6:
        raise Broken(f"loaded in a new process, the output differs by {gap:.2g}")
