"""A pass through a model on shapes alone: each layer's `call` runs on Keras tensors, and a listener hears what happens.

No weight is allocated and no tensor computed, so the largest preset takes seconds, and every backend gives the same
answer, because none of them is asked. It touches private details of Keras, each with its reason, as `compat` does.
Written for Keras 3.15.
"""

import contextlib
import contextvars
import threading

import keras
from keras import KerasTensor

_listener = contextvars.ContextVar("listener", default=None)
_one_at_a_time = threading.RLock()  # the hooks are the whole process's
_ABSENT = object()


class Listener:
    """What a pass tells. A subclass overrides what it wants to hear."""

    def enter(self, layer):
        """A layer is called."""

    def leave(self, layer, outputs):
        """It has returned."""

    def operation(self, operation, args, kwargs, outputs):
        """An operation of `keras.ops` was applied; all of them have shapes."""

    def missed(self, what):
        """Something could not be followed: the name of a layer or operation. Only the shape of its output is known."""

    @contextlib.contextmanager
    def repeated(self, count):
        """What happens within the block happens `count` times."""
        yield

    def dearest(self, branches):
        """Runs functions of which only one would be run; returns the outputs of the first."""
        outputs = [branch() for branch in branches]
        return outputs[0]


def run(model, inputs, listener):
    """Calls a model on shapes, as in inference.

    Args:
        model: A Keras model or layer; built, though its weights need not be allocated.
        inputs: What it is called with: (nested) Keras tensors, all of their sizes known.
        listener: A function of no arguments that makes a `Listener`; a backend may need a second pass.

    Returns:
        The listener.
    """
    from keras.src import backend

    heard = []

    def follow():
        heard.append(listener())
        token = _listener.set(heard[-1])
        try:
            with _one_at_a_time, _hooks():
                model(inputs, training=False)
        finally:
            _listener.reset(token)

    # Within a scratch graph of the backend, so that what has no Keras tensor in it is not computed either.
    backend.compute_output_spec(follow)
    return heard[-1]


@contextlib.contextmanager
def _hooks():
    """While a pass runs, Keras's own functions ask the listener first."""
    from keras.src import backend
    from keras.src.backend.common.variables import Variable
    from keras.src.layers import layer as layers

    def unavailable(*args, **kwargs):
        raise NotImplementedError  # then Keras and `compat` take the plain loop

    changes = [
        (keras.layers.Layer, "symbolic_call", _layer_call(keras.layers.Layer.symbolic_call)),
        (keras.Operation, "symbolic_call", _operation_call(keras.Operation.symbolic_call)),
        (layers, "Node", _unless_listening(layers.Node, lambda *args, **kwargs: None)),  # no traces in the user's model
        (backend, "rnn", _unless_listening(backend.rnn, _rnn)),
        (backend, "lstm", _unless_listening(backend.lstm, unavailable)),
        (backend, "gru", _unless_listening(backend.gru, unavailable)),
        (backend, "convert_to_tensor", _convert(backend.convert_to_tensor)),
        (backend.core, "custom_gradient", _unless_listening(backend.core.custom_gradient, _forward_only)),
        # Without these, a constant to the left of a Keras tensor would try to compute with it.
        (KerasTensor, "__array_ufunc__", None),
        (KerasTensor, "__jax_array__", _ABSENT),
    ]
    for sign in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
        left, right = getattr(Variable, f"__{sign}__"), getattr(KerasTensor, f"__r{sign}__")
        changes.append((Variable, f"__{sign}__", _variable_first(left, right)))
    before = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in changes]
    try:
        for change in changes:
            _set(*change)
        yield
    finally:
        for change in before:
            _set(*change)


def _set(owner, name, value):
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _unless_listening(original, new):
    """Another thread may build a model meanwhile: it gets the original."""
    return lambda *args, **kwargs: (original if _listener.get() is None else new)(*args, **kwargs)


def _silently(function, *args, **kwargs):
    token = _listener.set(None)
    try:
        return function(*args, **kwargs)
    finally:
        _listener.reset(token)


def _layer_call(original):
    def symbolic_call(self, *args, **kwargs):
        listener = _listener.get()
        if listener is None:
            return original(self, *args, **kwargs)
        listener.enter(self)
        outputs = None
        try:
            outputs = self.call(*args, **kwargs)
        except Exception:
            # A stranger's layer may do anything, such as call its backend by name: its shapes are still known.
            listener.missed(self.name)
            outputs = _silently(original, self, *args, **kwargs)
        finally:
            listener.leave(self, outputs)
        return outputs

    return symbolic_call


def _operation_call(original):
    def symbolic_call(self, *args, **kwargs):
        listener = _listener.get()
        if listener is None:
            return original(self, *args, **kwargs)
        follow = _INNER.get(type(self).__name__)
        if follow is not None:
            return follow(listener, self, *args, **kwargs)
        outputs = _silently(self.compute_output_spec, *args, **kwargs)  # an operation may ask another one for its shape
        listener.operation(self, args, kwargs, outputs)
        return outputs

    return symbolic_call


def _variable_first(original, reflected):
    def operator(self, other):
        return reflected(other, self) if isinstance(other, KerasTensor) else original(self, other)

    return operator


def _convert(original):
    def convert_to_tensor(x, dtype=None, **kwargs):
        if isinstance(x, KerasTensor):
            return x if dtype in (None, x.dtype) else keras.ops.cast(x, dtype)
        return original(x, dtype, **kwargs)

    return convert_to_tensor


def _forward_only(function):
    return lambda *args, **kwargs: function(*args, **kwargs)[0]


def like(tree, lead=None):
    """New Keras tensors shaped like those of a tree, with an axis of `lead` before the others where it is given."""

    def new(x):
        if not hasattr(x, "shape"):
            return x
        shape = tuple(x.shape)
        return KerasTensor(shape if lead is None else (lead, *shape), dtype=keras.backend.standardize_dtype(x.dtype))

    return keras.tree.map_structure(new, tree)


# --- operations that call functions, some of them many times


def _first(tree):
    return keras.tree.map_structure(lambda x: KerasTensor(tuple(x.shape)[1:], dtype=x.dtype), tree)


def _size(tree):
    return keras.tree.flatten(tree)[0].shape[0]


def _rnn(
    step, inputs, initial_states, go_backwards=False, mask=None, constants=None, unroll=False, input_length=None,
    time_major=False, zero_output_for_mask=False, return_all_outputs=True,
):  # fmt: skip
    axis = 0 if time_major else 1
    length = keras.tree.flatten(inputs)[0].shape[axis]

    def now(x):
        return KerasTensor((*x.shape[:axis], *x.shape[axis + 1 :]), dtype=x.dtype)

    with _listener.get().repeated(length):
        output, states = step(keras.tree.map_structure(now, inputs), [*like(list(initial_states)), *(constants or ())])
    count = length if return_all_outputs else 1
    outputs = keras.tree.map_structure(
        lambda x: KerasTensor((count, *x.shape) if time_major else (x.shape[0], count, *x.shape[1:]), dtype=x.dtype),
        output,
    )
    return output, outputs, like(states)


def _scan(listener, operation, f, init, xs=None):
    count = operation.length if operation.length is not None else _size(xs)
    with listener.repeated(count):
        carry, y = f(like(init), None if xs is None else _first(xs))
    return like(carry), None if y is None else like(y, count)


def _map(listener, operation, *arguments):
    function, xs = arguments if len(arguments) == 2 else (operation.function, *arguments)
    with listener.repeated(_size(xs)):
        y = function(_first(xs))
    return like(y, _size(xs))


def _associative_scan(listener, operation, f, elems):
    with listener.repeated(2):  # up the tree of pairs and down again: about two results for each element
        return like(f(elems, elems))


def _fori_loop(listener, operation, init):
    if not (isinstance(operation.lower, int) and isinstance(operation.upper, int)):
        listener.missed("ForiLoop")  # nobody knows how often: counted once
        return like(operation.body_fun(0, like(init)))
    with listener.repeated(operation.upper - operation.lower):
        return like(operation.body_fun(operation.lower, like(init)))


def _while_loop(listener, operation, loop_vars):
    if operation.maximum_iterations is None:
        listener.missed("WhileLoop")
    values = like(loop_vars)
    with listener.repeated(operation.maximum_iterations or 1):
        operation.cond(*values)
        operation.body(*values)
    return like(loop_vars)


def _cond(listener, operation, pred, true_fn, false_fn):
    return listener.dearest([true_fn, false_fn])


def _switch(listener, operation, index, branches, *operands):
    return listener.dearest([lambda branch=branch: branch(*operands) for branch in branches])


_INNER = {
    "Scan": _scan, "Map": _map, "VectorizedMap": _map, "AssociativeScan": _associative_scan, "ForiLoop": _fori_loop,
    "WhileLoop": _while_loop, "Cond": _cond, "Switch": _switch,
}  # fmt: skip
