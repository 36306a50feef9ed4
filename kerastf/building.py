"""Layers and variables, made in less time; they come out the same."""

import contextlib
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

# What holds no weight, and cannot come to hold one.
PLAIN = (type(None), bool, int, float, str, types.FunctionType, inspect.Signature)


@contextlib.contextmanager
def quickly() -> Iterator[None]:
    """Within the block, layers and variables are made in less time on TensorFlow; elsewhere nothing changes.

    Why: whatever is assigned to a layer is examined for weights by Keras and twice by TensorFlow, and nearly all of it
    is flags and numbers. And a variable with a new name is a new kernel to TensorFlow, which takes twice as long to
    make as the rest of the variable; here all of them have one name. It is TensorFlow's own: what Keras calls a
    variable, and where it says it stands, are as ever.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    def nameless(make: Callable[..., Any], **options: Any) -> Any:
        with tf.name_scope(""):  # the name would begin with that of the scope
            return make(**{**options, "name": "variable"})

    with _shortcut.open(keras), tf.variable_creator_scope(nameless):
        yield


class _Shortcut:
    """Stands in for Keras's assignment to a layer, as long as any thread is in a block."""

    def __init__(self) -> None:
        self.lock, self.users = threading.Lock(), 0
        self.whole: Any = None

    @contextlib.contextmanager
    def open(self, keras: Any) -> Iterator[None]:
        layer = keras.layers.Layer
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.whole = layer.__setattr__
                layer.__setattr__ = self.beside(self.whole, frozenset((*PLAIN, keras.InputSpec, keras.DTypePolicy)))
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    layer.__setattr__ = self.whole

    @staticmethod
    def beside(whole: Any, plain: frozenset[type]) -> Any:
        def assign(self: Any, name: str, value: Any) -> None:
            if type(value) in plain or name.startswith("_self_"):  # so begins what TensorFlow notes for itself
                object.__setattr__(self, name, value)
            else:
                whole(self, name, value)

        return assign


_shortcut = _Shortcut()
