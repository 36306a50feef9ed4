"""What a contract is checked on: how to make a block or model of each kind, feed it and call it.

Shapes: B batch, T time, C channels.
"""

import math

import keras
import numpy as np
from keras import ops

from kerastf import config, registry
from kerastf.functional import pair

DIM = 16
LENGTH = 6
BATCH = 3
KINDS = ("attention", "norm", "feedforward", "position", "embedding", "cell", "head")
SEQUENCE_KINDS = ("attention", "norm", "feedforward")


class Subject:
    """A registered class with the options it is checked with."""

    def __init__(self, kind, id, options):
        self.kind = kind
        self.cls = registry.resolve(kind, id)
        self.entry = registry.entry_of(kind, self.cls)
        self.id = self.entry.id
        self.options = {**self.entry.manifest.get("example", {}), **options}
        self.supports = frozenset(getattr(self.cls, "supports", ()))

    def new(self, **extra):
        """A fresh object, not built."""
        return self.cls(**self.options, **extra)


class BlockSubject(Subject):
    """A layer of one of the block kinds."""

    def inputs(self, batch=BATCH, length=LENGTH, seed=0):
        """Arguments for a call, by name, as NumPy arrays."""
        rng = np.random.default_rng(seed)
        if self.kind == "embedding" and "images" in self.supports:
            sides = pair("patch_size", self.options.get("patch_size", 16))
            shape = (batch, length * sides[0], 2 * sides[1], 3)  # as many rows of patches as there are positions
            return {"images": rng.normal(size=shape).astype("float32")}
        if self.kind == "embedding" and "vectors" in self.supports:
            return {"vectors": rng.normal(size=(batch, length, DIM)).astype("float32")}
        if self.kind == "embedding":
            if "characters" in self.supports:  # one token is a row of characters
                layer = self.new()
                return {"tokens": rng.integers(1, layer.num_ids, (batch, length, *layer.token_shape)).astype("int32")}
            size = self.options.get("vocab_size", 11)
            return {"tokens": rng.integers(0, size, (batch, length)).astype("int32")}
        if self.kind == "cell":
            return {"x": rng.normal(size=(batch, DIM)).astype("float32")}
        if self.kind == "position" and "rotation" in self.supports:
            x = rng.normal(size=(batch, length, 4, DIM)).astype("float32")
            return {"x": x, "where": np.arange(length, dtype="int32")}
        if self.kind == "position" and "bias" in self.supports:
            where = np.arange(length, dtype="int32")
            return {"query_positions": where, "key_positions": where}
        return {"x": rng.normal(size=(batch, length, DIM)).astype("float32")}

    def call(self, layer, inputs, training=False, **kwargs):
        """The layer's output as one tensor."""
        return joined(self.raw(layer, inputs, training, **kwargs))

    def raw(self, layer, inputs, training=False, **kwargs):
        """The layer's output, whatever its structure."""
        values = [v if keras.backend.is_keras_tensor(v) else ops.convert_to_tensor(v) for v in inputs.values()]
        if self.kind == "cell":
            # Not zeros: a recurrent kernel would have no influence on the first step.
            sizes = keras.tree.flatten(layer.state_size)
            states = [ops.cast(ops.ones((values[0].shape[0], n)) * 0.5, layer.compute_dtype) for n in sizes]
            return layer(values[0], states, training=training)[0]
        if "training" in _parameters(layer.call):
            kwargs["training"] = training
        return layer(*values, **kwargs)

    def make(self, seed=1, dtype=None, length=LENGTH, with_context=False):
        """A built block with weights that are neither zeros nor ones, so that each of them matters."""
        layer = self.new() if dtype is None else self.new(dtype=dtype)
        inputs = self.inputs(length=length)
        if with_context:
            layer(inputs["x"], ops.convert_to_tensor(self.context()))
        else:
            self.call(layer, inputs)
        shake(layer, seed)
        return layer

    def context(self, batch=BATCH, length=5, seed=9):
        return np.random.default_rng(seed).normal(size=(batch, length, DIM)).astype("float32")

    def symbolic(self, inputs):
        """Keras tensors shaped like the inputs, batch and time unknown where the layer has both."""
        free = {"x": (None, None), "tokens": (None, None), "vectors": (None, None), "images": (None, None, None)}
        if self.kind == "cell":
            free = {"x": (None,)}
        return {
            name: keras.KerasTensor((*free.get(name, ()), *a.shape[len(free.get(name, ())) :]), dtype=str(a.dtype))
            for name, a in inputs.items()
        }


class ModelSubject(Subject):
    """A model family with a small configuration."""

    def __init__(self, id, options):
        super().__init__("model", id, options)
        preset = config.preset_of(self.entry, id)
        if registry.split_id(id)[2]:  # what it leaves to the data, such as the vocabulary, is the example's
            known = config.options_of(self.cls)
            left = {k: v for k, v in self.options.items() if known[k].default in (known[k].empty, None)}
            self.options = {**left, **preset, **options}

    def make(self, seed=1, dtype=None, **extra):
        options = {**self.options, **({"dtype": dtype} if dtype else {}), **extra}
        model = config.build_model(self.entry.id, **options)
        shake(model, seed)
        return model

    @property
    def written(self):
        """The name of the input that a decoding model continues."""
        return list(self.inputs(batch=1, length=1))[-1]

    def inputs(self, batch=BATCH, length=LENGTH, seed=0):
        return self.cls.example_inputs(self.options, batch, length, np.random.default_rng(seed))

    def context(self, inputs):
        """What `init_state` is given beside the sizes: the source, where there is one."""
        return {k: ops.convert_to_tensor(v) for k, v in inputs.items() if k != self.written}

    def raw(self, model, inputs, training=False):
        """The model's output, whatever its structure."""
        tensors = {k: ops.convert_to_tensor(v) for k, v in inputs.items()}
        return model(tensors if len(tensors) > 1 else next(iter(tensors.values())), training=training)

    def call(self, model, inputs, training=False):
        """The model's output as one tensor."""
        return joined(self.raw(model, inputs, training))


class OwnModelSubject(ModelSubject):
    """A user's model: copies of it, with its weights."""

    def __init__(self, model):
        super().__init__(type(model).registry_entry.id, {})
        self.options = {k: v for k, v in model.options.items() if k != "name"}
        self.weights = {path: numpy(w) for path, w in model.learnt_weights().items()}

    def make(self, seed=1, dtype=None, **extra):
        model = config.build_model(self.entry.id, **{**self.options, **({"dtype": dtype} if dtype else {}), **extra})
        for weight in model.weights:
            weight.assign(ops.cast(self.weights[weight.path], weight.dtype))
        shake(model, seed, scale=1e-3)
        return model


def joined(output):
    """Several outputs side by side, as one `(B, n)` tensor; a single one as it is."""
    if not keras.tree.is_nested(output):
        return output
    leaves = keras.tree.flatten(output)
    return ops.concatenate([ops.reshape(ops.cast(v, "float32"), (v.shape[0], -1)) for v in leaves], axis=1)


def shake(layer, seed, scale=0.2):
    """Adds noise to every weight; to a wide kernel less, so that what it is given does not grow a hundredfold."""
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        width = math.prod(variable.shape[:-1])  # how many terms a product with it sums up
        noise = rng.normal(scale=min(scale, max(width, 1) ** -0.5), size=variable.shape).astype("float32")
        variable.assign(ops.cast(ops.convert_to_numpy(variable) + noise, variable.dtype))


def numpy(x):
    """A tensor as a float32 or integer NumPy array."""
    x = ops.convert_to_tensor(x)
    if keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype)):
        x = ops.cast(x, "float32")
    return ops.convert_to_numpy(x)


def difference(a, b):
    """The largest difference of two arrays; infinite where the shapes or finiteness differ."""
    a, b = numpy(a), numpy(b)
    if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    return float(np.max(np.abs(a - b), initial=0.0))


def _parameters(function):
    import inspect

    return inspect.signature(function).parameters
