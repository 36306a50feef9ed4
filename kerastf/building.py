"""Layers and variables, made in less time; they come out the same."""

import contextlib
import contextvars
import functools
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from kerastf import versions
from kerastf.standing_in import Replacement, StandIns

# What holds no weight, and cannot come to hold one.
PLAIN = (type(None), bool, int, float, str, types.FunctionType, inspect.Signature)

_postponed: contextvars.ContextVar[list[Callable[[], Any]] | None] = contextvars.ContextVar("postponed", default=None)


@contextlib.contextmanager
def quickly(postponed: list[Callable[[], Any]] | None = None) -> Iterator[None]:
    """Within the block, layers and variables are made in less time on TensorFlow; elsewhere nothing changes.

    Why: whatever is assigned to a layer is examined for weights by Keras and twice by TensorFlow, and nearly all of it
    is flags, numbers and lists of them. Keras reads the signatures of a layer's methods for each layer anew. And a
    variable with a new name is a new kernel to TensorFlow, which takes twice as long to make as the rest of the
    variable; here all of them have one name. It is TensorFlow's own: what Keras calls a variable, and where it says
    it stands, are as ever.

    Args:
        postponed: Is given functions that fill variables, on TensorFlow; these hold nothing until then. By default each
            is filled when it is made.
    """
    import keras

    if keras.backend.backend() != "tensorflow" or not versions.tried():
        yield
        return
    import tensorflow as tf

    def nameless(make: Callable[..., Any], **options: Any) -> Any:
        with tf.name_scope(""):  # the name would begin with that of the scope
            return make(**{**options, "name": "variable"})

    token = _postponed.set(postponed)
    try:
        with _shortcuts.open(), tf.variable_creator_scope(nameless):
            yield
    finally:
        _postponed.reset(token)


class _Variables:
    """TensorFlow's variables: the first of a kind as TensorFlow makes it, the others like that one."""

    def __init__(self, tf: Any) -> None:
        from tensorflow.python.eager.context import anonymous_name

        self.tf, self.shared_name = tf, anonymous_name()
        self.numbers = itertools.count()
        self.patterns: dict[Any, Any] = {}
        self.plain = {*PLAIN, tf.TensorShape, tf.DType, tf.VariableSynchronization, tf.VariableAggregation}

    def initialisation(self, whole: Callable[..., None]) -> Callable[..., None]:
        """Keras's making of the TensorFlow variable that holds a variable's value."""
        tf = self.tf

        def initialise(variable: Any, value: Any) -> None:
            creators = tf.compat.v1.get_default_graph()._variable_creator_stack
            if len(creators) != 1 or not tf.executing_eagerly() or isinstance(value, tf.Variable):
                whole(variable, value)  # others have a say: a strategy, a graph
                return
            dtype = variable._dtype

            def made() -> Any:
                found = value() if callable(value) else value
                as_it_is = isinstance(found, tf.Tensor) and found.dtype == dtype
                return found if as_it_is else tf.convert_to_tensor(found, dtype)

            left = _postponed.get() if callable(value) else None
            tensor = made() if left is None else None
            shape = tuple(variable._shape if tensor is None else tensor.shape)
            kind = shape, dtype, variable.trainable, variable.aggregation, variable.synchronization
            pattern = self.patterns.get(kind)
            if pattern is None:
                whole(variable, value if tensor is None else tensor)
                self.patterns[kind] = self.pattern(variable._value)
                return
            variable._value = self.like(pattern, shape, dtype)
            fill = functools.partial(tf.raw_ops.AssignVariableOp, resource=variable._value.handle)
            if left is None:
                fill(value=tensor)
            else:
                left.append(lambda: fill(value=made()))

        return initialise

    def pattern(self, first: Any) -> Any:
        """What others of its kind have in common with this variable; None where that cannot be told."""
        common = {name: value for name, value in vars(first).items() if name not in ("_handle", "_unique_id")}
        known = vars(first.handle).keys() == {"_parent_trackable", "_name", "_unique_id"}
        if len(common) != len(vars(first)) - 2 or not known or not all(type(x) in self.plain for x in common.values()):
            return None
        return type(first), common, first.handle._name, first.handle._handle_data

    def like(self, pattern: Any, shape: Any, dtype: str) -> Any:
        """A variable that is still to be filled."""
        cls, common, name, data = pattern
        variable = object.__new__(cls)
        variable.__dict__.update(common)
        variable._unique_id = f"{name}_{next(self.numbers)}"
        variable._handle = handle = self.tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=shape, shared_name=self.shared_name, debug_name="variable"
        )
        handle._handle_data = data
        handle._parent_trackable = weakref.ref(variable)
        handle._name, handle._unique_id = name, variable._unique_id
        return variable


def _replacements() -> list[Replacement]:
    import tensorflow as tf
    from keras.src.backend import Variable
    from keras.src.layers import layer
    from keras.src.ops import operation

    return [
        (Variable, "_initialize", _Variables(tf).initialisation(Variable._initialize)),
        (layer.Layer, "__setattr__", _assignment(layer.Layer.__setattr__)),
        (layer, "inspect", _inspect),
        (operation, "inspect", _inspect),
    ]


_shortcuts = StandIns(_replacements)


def _assignment(whole: Callable[..., None]) -> Callable[..., None]:
    """Keras's assignment to a layer, shorter where nothing can hold a weight."""
    import keras
    import tensorflow as tf
    from keras.src.utils import tracking

    parts = (keras.Variable, keras.layers.Layer, keras.random.SeedGenerator)
    trackable = tf.__internal__.tracking.Trackable
    plain = dict.fromkeys((*PLAIN, keras.InputSpec, keras.DTypePolicy, tracking.Tracker), True)
    containers: dict[type, Any] = {
        tuple: None,
        list: (tracking.TrackedList, list.extend),
        dict: (tracking.TrackedDict, dict.update),
        set: (tracking.TrackedSet, set.update),
    }

    def is_plain(kind: type) -> bool:
        if kind not in plain:
            plain[kind] = issubclass(kind, keras.initializers.Initializer) and kind.__module__.startswith("keras.")
        return plain[kind]

    def assign(self: Any, name: str, value: Any) -> None:
        kind = type(value)
        if is_plain(kind) or name.startswith("_self_"):  # so begins what TensorFlow notes for itself
            object.__setattr__(self, name, value)
        elif kind in containers and all(is_plain(type(x)) for x in (value.values() if kind is dict else value)):
            contain(self, name, value)
        elif isinstance(value, parts):
            object.__setattr__(self, name, tracked(self, name, value))
        else:
            whole(self, name, value)

    def contain(self: Any, name: str, value: Any) -> None:
        """Assigns a container that will tell the layer of weights that are put into it."""
        by_tensorflow = getattr(self, "_self_setattr_tracking", True)
        if type(value) is tuple:
            object.__setattr__(self, name, value)
        elif tracking.is_tracking_enabled():
            wrapper, fill = containers[type(value)]
            if "_tracker" not in vars(self):
                self._initialize_tracker()
            watched = wrapper(None, self._tracker)
            fill(watched, value)
            if by_tensorflow and "_tracked" in vars(self):
                list.append(self._tracked, name)
            object.__setattr__(self, name, watched)
        elif by_tensorflow:
            whole(self, name, value)
        else:
            object.__setattr__(self, name, value)

    def tracked(self: Any, name: str, value: Any) -> Any:
        """A part of the layer, known to Keras and, once, to TensorFlow."""
        if "_tracker" not in vars(self):
            self._initialize_tracker()
        value = self._tracker.track(value)
        told = tracking.is_tracking_enabled() and getattr(self, "_self_setattr_tracking", True)
        if told and isinstance(value, trackable) and vars(self).get(name) is not value:
            self._track_trackable(value, name=name, overwrite=True)
        return value

    return assign


class _Inspect:
    """Python's module `inspect`, which remembers signatures."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    def signature(self, function: Any) -> inspect.Signature:
        plain = inspect.unwrap(function, stop=lambda f: hasattr(f, "__signature__"))
        if isinstance(plain, types.MethodType):
            return _signature_of_method(plain.__func__)
        kept = isinstance(plain, types.FunctionType) and {*plain.__code__.co_freevars} <= {"__class__"}
        return _signature(plain) if kept else inspect.signature(function)  # another may hold a layer

    getfullargspec = staticmethod(functools.lru_cache(maxsize=512)(inspect.getfullargspec))


@functools.lru_cache(maxsize=512)
def _signature_of_method(function: Any) -> inspect.Signature:
    return inspect.signature(types.MethodType(function, function))  # whatever it is bound to


_signature = functools.lru_cache(maxsize=512)(inspect.signature)
_inspect = _Inspect()
