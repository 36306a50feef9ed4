"""Every touch of a private or backend-specific Keras detail, each with its reason. Written for Keras 3.15."""

import contextlib

import keras
from keras import ops


def compiled(function, owner):
    """Compiles a tensor function that reads the variables of `owner`: XLA on TensorFlow and JAX, eager on PyTorch.

    Why: Keras compiles `fit` and `predict`, but has no public way to compile another function of a model.

    Args:
        function: Takes and returns (nested) tensors.
        owner: The model whose variables it reads; later values of the variables are seen.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True, autograph=False)
    if backend == "jax":
        import jax

        def pure(values, *arguments):
            with keras.StatelessScope(zip(owner.variables, values, strict=True)):
                return function(*arguments)

        jitted = jax.jit(pure)
        return lambda *arguments: jitted([v.value for v in owner.variables], *arguments)
    import torch

    return torch.no_grad()(function)


def graph(function):
    """The function traced into a graph, without XLA; unchanged on backends that have no such thing."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    return function


def gradients(function, variables):
    """The gradients of a scalar function of no arguments with respect to Keras variables, as NumPy arrays.

    Why: Keras differentiates inside `fit` only. A variable without influence gives None.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = function()
        found = tape.gradient(loss, [v.value for v in variables])
        return [None if g is None else ops.convert_to_numpy(ops.convert_to_tensor(g)) for g in found]
    if backend == "jax":
        import jax

        def pure(values):
            with keras.StatelessScope(zip(variables, values, strict=True)):
                return function()

        return [ops.convert_to_numpy(g) for g in jax.grad(pure)([v.value for v in variables])]
    for variable in variables:
        variable.value.grad = None
    function().backward()
    return [None if v.value.grad is None else ops.convert_to_numpy(v.value.grad) for v in variables]


@contextlib.contextmanager
def without_allocation():
    """Within the block, models are built with shapes only: no weight is allocated, and none can be used.

    Why: GPT-2 XL's parameters can then be counted on a laptop. Keras's `StatelessScope` defers initialisation and
    keeps a list of deferred variables that a later scope would initialise; ours are taken off it again.
    """
    from keras.src.backend.common import global_state

    key = "uninitialized_variables"
    before = list(global_state.get_global_attribute(key, [], set_to_default=True))
    with keras.StatelessScope(initialize_variables=False):
        yield
    global_state.set_global_attribute(key, before)
