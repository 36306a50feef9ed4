"""Layers that are alike are traced once.

On TensorFlow a training step is traced before it runs, operation by operation, which for the layers of a deep model
takes longer than to run them. They differ in nothing but their weights. So the first one is traced as a function of its
input and its weights, and the others call that.
"""

import contextvars

import keras
import numpy as np

from kerastf import ahead, compat, streams, tracing

BARE = frozenset(vars(keras.layers.Layer()))  # what any layer has: Keras's book-keeping, but for
TOLD = ("_trainable", "autocast", "activity_regularizer", "_remat_mode")
PLAIN = (int, float, str, bytes, bool, type(None))

_inside = contextvars.ContextVar("inside", default=False)
_half = contextvars.ContextVar("half", default=False)


def call(layer, function, *tensors):
    """`function(*tensors)`, which computes with the layer's weights and state; in training on TensorFlow traced once.

    Not under XLA, which would compile such a step anew each time.

    Args:
        layer: A layer that is built.
        function: A method of the layer; it takes tensors, or None, and gives one tensor.
        *tensors: What it is given.
    """
    alone = _inside.get() or keras.backend.is_keras_tensor(tensors[0]) or compat.compiling()
    graph = None if alone else tracing.graph()
    if graph is None:
        return function(*tensors)
    known = tracing.kept(graph, "alike")  # as long as the step that is traced now
    traced = next((traced for other, traced in known if alike(layer, other)), None)
    if traced is None:
        traced = tracing.trace(_Apart(layer, function), whole=tracing.trains_on_cpu())
        known.append((layer, traced))
    found, state, losses = _in_halves(layer, traced, tensors) or _run(layer, traced, tensors)
    if losses:
        layer.add_loss(losses)
    for variable, value in zip(layer.non_trainable_variables, state, strict=True):
        if value is not None:
            variable.assign(value)
    return found


def _run(layer, traced, tensors, state=None):
    """What the traced function gives for the tensors and the layer's weights, and its state unless another is given."""
    state = [None] * len(layer.non_trainable_variables) if state is None else state
    pairs = zip(layer.non_trainable_variables, state, strict=True)
    other = [tracing.read(v) if x is None else x for v, x in pairs]
    found, changed, losses = traced(tensors, [v.value for v in layer.trainable_variables], other)
    return found, [old if new is None else new for old, new in zip(state, changed, strict=True)], losses


def _in_halves(layer, traced, tensors):
    """As `_run`, each half of the batch by itself; None where that does not pay or gives something else.

    A loss that a layer adds is of the whole batch, and so is a state other than that of random numbers.
    """
    if not streams.divides(tensors, layer.trainable_variables):
        return None
    first, second = streams.halves(tensors)
    with compat.switched(_half, True):
        found, state, losses = _run(layer, traced, first)
    seeds = {id(v) for v in layer.non_trainable_variables} - {id(v) for v in layer.non_trainable_weights}
    changed = {id(v) for v, x in zip(layer.non_trainable_variables, state, strict=True) if x is not None}
    if losses or changed - seeds:
        return None
    other, state, _ = _run(layer, traced, second, state)
    return streams.join([found, other]), state, losses


class _Apart:
    """A method of a layer as a function of its input and of all that the layer holds."""

    def __init__(self, layer, function):
        self.layer, self.function = layer, function

    def __call__(self, tensors, trainable, other):
        if _half.get():
            ahead.halve(tracing.graph())
        held = [*self.layer.trainable_variables, *self.layer.non_trainable_variables]
        given = list(zip(held, [*trainable, *other], strict=True))
        with compat.switched(_inside, True), keras.StatelessScope(given, collect_losses=True) as scope:
            found = self.function(*tensors)
        state = [scope.get_current_value(v) for v in self.layer.non_trainable_variables]
        changed = [new if new is not old else None for new, old in zip(state, other, strict=True)]
        return found, changed, list(scope.losses)


def alike(a, b):
    """Whether two layers compute the same function of their input and their weights, as far as can be seen.

    Their settings must be equal, with those of the layers inside, and each weight must have the same place in both;
    anything that cannot be compared counts as different.
    """
    pairs = {}
    if not _alike(a, b, pairs):
        return False
    first, second = ([*x.trainable_variables, *x.non_trainable_variables] for x in (a, b))
    return len(first) == len(second) and all(pairs.get(id(x)) == id(y) for x, y in zip(first, second, strict=True))


def _alike(a, b, pairs):
    """Whether two objects are alike; `pairs` knows which of two layers' parts have met, both ways."""
    if type(a) is not type(b):
        return False
    if isinstance(a, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator):
        if id(a) in pairs or id(b) in pairs:
            return pairs.get(id(a)) == id(b)
        pairs[id(a)], pairs[id(b)] = id(b), id(a)
    if isinstance(a, keras.Variable):
        return (a.shape, a.dtype, a.trainable) == (b.shape, b.dtype, b.trainable)
    if isinstance(a, keras.random.SeedGenerator):
        return _alike(a.state, b.state, pairs)
    if isinstance(a, keras.layers.Layer):
        same = a.dtype_policy.name == b.dtype_policy.name and all(vars(a)[n] == vars(b)[n] for n in TOLD)
        return same and _alike(_own(a), _own(b), pairs)
    if a is b or isinstance(a, keras.initializers.Initializer):
        return True
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike(a[n], b[n], pairs) for n in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(_alike(x, y, pairs) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return isinstance(a, PLAIN) and a == b


def _own(layer):
    """What a layer holds beyond what any layer has, and beyond what TensorFlow notes about it."""
    return {n: x for n, x in vars(layer).items() if n not in BARE and not n.startswith("_self_")}
