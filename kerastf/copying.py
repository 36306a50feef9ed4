"""Copies of layers that are built, for weights that come from elsewhere.

The layers of a deep model differ in nothing but their weights. Where those are read from a file, the first layer is
built, and the others are copied from it, in half the time.
"""

import contextlib
import contextvars
import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras.src.random.seed_generator import make_default_seed
from keras.src.saving.serialization_lib import SerializableDict
from keras.src.utils import naming, tracking

from kerastf import versions

# What is never changed, so that two layers may hold the same.
SHARED = {type(None), bool, int, float, complex, str, bytes, range, inspect.Signature, keras.InputSpec,
          keras.DTypePolicy, SerializableDict, types.ModuleType, types.BuiltinFunctionType, np.dtype}  # fmt: skip

_open: contextvars.ContextVar[Any] = contextvars.ContextVar("copies", default=None)


@contextlib.contextmanager
def copies(given: Callable[[str], bool]) -> Iterator[None]:
    """Within the block, `parts` copies where it can; on TensorFlow only, where building takes long.

    Args:
        given: Whether the weight of a path will be given its value, by `compat.initialised_by`.
    """
    pays = keras.backend.backend() == "tensorflow" and versions.tried()
    token = _open.set((given, {}) if pays else None)
    try:
        yield
    finally:
        _open.reset(token)


def parts(layer: Any, shapes: tuple[Any, ...], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """By name, what a layer is made of: layers, built. They are copied where a layer like it was built in this block.

    Args:
        layer: The layer, of which `get_config` says all; it is being built.
        shapes: Of what it is built for.
        make: Makes and builds the parts.
    """
    if _open.get() is None:
        return make()
    given, built = _open.get()
    config = {k: x for k, x in layer.get_config().items() if k != "name"}
    key = f"{type(layer)}{config}{shapes}"
    if key in built:
        with contextlib.suppress(_Unknown):
            return _Copier(*built[key], layer.path, given).whole
    made = make()
    built.setdefault(key, (made, layer.path))
    return made


class _Unknown(Exception):
    """Something that cannot be copied."""


class _Copier:
    """Copies layers with all that they hold, and moves them to another path.

    Args:
        parts: By name, the layers.
        here: The path of the layer that they are parts of.
        there: The path of the one that gets the copies.
        given: Whether the weight of a path will be given its value.

    Raises:
        _Unknown: They hold something that is not known to be copied soundly.
    """

    def __init__(self, parts: dict[str, Any], here: str, there: str, given: Callable[[str], bool]):
        import tensorflow as tf

        self.reference = tf.__internal__.tracking.TrackableReference  # TensorFlow's note of a part
        self.here, self.there = f"{here}/", f"{there}/"
        self.done: dict[int, Any] = {}
        self.weights: list[tuple[Any, Any]] = []  # and what they begin with, where no file says it
        self.makers = {
            list: self._container, dict: self._container, set: self._container, tuple: self._tuple,
            tracking.TrackedList: self._watched, tracking.TrackedDict: self._watched,
            tracking.TrackedSet: self._watched, tracking.Tracker: self._tracker, types.FunctionType: self._function,
            types.MethodType: self._method, types.CellType: self._cell, functools.partial: self._partial,
            np.ndarray: np.copy, keras.Variable: self._variable, keras.random.SeedGenerator: self._generator,
        }  # fmt: skip
        self.whole = {name: self.copy(part) for name, part in parts.items()}
        if not all(given(variable.path) for variable, value in self.weights if value is None):
            raise _Unknown
        for variable, value in self.weights:
            variable._initialize_with_initializer(lambda shape, dtype, value=value: value)
        for tracker in [x for x in self.done.values() if type(x) is tracking.Tracker]:
            tracker.stored_ids = {name: {id(x) for x in store} for name, (_, store) in tracker.config.items()}

    def copy(self, x: Any) -> Any:
        kind = type(x)
        if kind in SHARED:
            return x
        if id(x) in self.done:
            return self.done[id(x)]
        make = self.makers.get(kind)
        if make is None:
            make = self._other(x)
        found = make(x)
        self.done[id(x)] = found
        return found

    def _other(self, x: Any) -> Callable[[Any], Any]:
        kind = type(x)
        if isinstance(x, keras.layers.Layer):
            return self._layer
        if kind is self.reference or (isinstance(x, tuple) and hasattr(x, "_fields")):
            return lambda x: kind(*map(self.copy, x))
        ready = isinstance(x, keras.Initializer) and kind.__module__.startswith(("keras.", "kerastf."))
        if ready or isinstance(x, type) or keras.ops.is_tensor(x):
            return lambda x: x
        raise _Unknown(kind)

    def _moved(self, path: str) -> str:
        if not f"{path}/".startswith(self.here):
            raise _Unknown(path)  # it is shared with others
        return (self.there + path[len(self.here) :]).rstrip("/")

    def _layer(self, layer: Any) -> Any:
        found = self.done[id(layer)] = object.__new__(type(layer))
        for name, value in vars(layer).items():
            found.__dict__[name] = value if type(value) in SHARED else self.copy(value)
        for name in ("_path", "_parent_path"):
            if vars(layer)[name] is not None:
                found.__dict__[name] = self._moved(vars(layer)[name])
        return found

    def _variable(self, variable: Any, value: Any = None) -> Any:
        found = self.done[id(variable)] = object.__new__(type(variable))
        for name, held in vars(variable).items():
            if name != "_value":
                found.__dict__[name] = held if type(held) in SHARED else self.copy(held)
        found.__dict__["_path"] = self._moved(variable.path)
        self.weights.append((found, value))
        return found

    def _generator(self, generator: Any) -> Any:
        found = self.done[id(generator)] = object.__new__(type(generator))
        seed = generator._initial_seed
        start = np.array([make_default_seed() if seed is None else seed, 0], generator.state.dtype)
        found.__dict__.update(vars(generator), state=self._variable(generator.state, start))
        if re.fullmatch(r"seed_generator(_\d+)?", generator.name):
            found.name = naming.auto_name("SeedGenerator")
            *before, _, last = found.state.path.split("/")
            found.state._path = "/".join((*before, found.name, last))
        return found

    def _tracker(self, tracker: Any) -> Any:
        found = self.done[id(tracker)] = object.__new__(type(tracker))
        found.__dict__.update(vars(tracker), config=self.copy(tracker.config), exclusions=self.copy(tracker.exclusions))
        return found

    def _container(self, x: Any) -> Any:
        found = self.done[id(x)] = type(x)()
        return self._fill(found, x)

    def _watched(self, x: Any) -> Any:
        found = self.done[id(x)] = type(x)()
        found.tracker = self.copy(x.tracker)
        return self._fill(found, x)

    def _fill(self, found: Any, x: Any) -> Any:
        if not x:
            return found
        if isinstance(x, dict):
            dict.update(found, {k: self.copy(v) for k, v in x.items()})
        elif isinstance(x, list):
            list.extend(found, map(self.copy, x))
        else:
            set.update(found, map(self.copy, x))
        return found

    def _tuple(self, x: Any) -> Any:
        return tuple(map(self.copy, x))

    def _function(self, function: Any) -> Any:
        """A function; where it holds what is copied, one that holds the copies."""
        if not function.__closure__ and not vars(function):
            return function
        cells = tuple(map(self.copy, function.__closure__ or ()))
        held = self.copy(vars(function))
        if all(a is b for a, b in zip(cells, function.__closure__ or (), strict=True)) and held == vars(function):
            return function
        found = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, cells
        )
        functools.update_wrapper(found, function, updated=())
        found.__kwdefaults__ = function.__kwdefaults__
        found.__dict__.update(held)
        return found

    def _method(self, method: Any) -> Any:
        return types.MethodType(method.__func__, self.copy(method.__self__))

    def _cell(self, cell: Any) -> Any:
        try:
            held = cell.cell_contents
        except ValueError:  # nothing is in it yet
            raise _Unknown(cell) from None
        content = self.copy(held)
        return cell if content is held else types.CellType(content)

    def _partial(self, partial: Any) -> Any:
        held = (partial.func, *partial.args, *partial.keywords.values())
        if any(self.copy(x) is not x for x in held):
            raise _Unknown(partial)
        return partial
