"""How a step is traced: where, and what of it TensorFlow may share or compile, each with its reason."""

import contextvars
import functools
import math

import keras

from kerastf import compat

_fusing = contextvars.ContextVar("fusing", default=False)

LARGE = 2**17  # numbers of one row of a batch from which on a program of XLA pays,
NARROW = 1024  # up to so many channels: in wider models products take all the time


def fusing():
    """Within the block, what is traced runs often: `fused` may compile programs, products take a form."""
    return compat.switched(_fusing, True)


def fused(function, x):
    """`function(x)`, a function of each number by itself; in `fit` on a CPU with TensorFlow, as one program of XLA.

    Why: TensorFlow goes through the numbers once for each operation. GELU and its slope take half the time as one
    program, which is 5 % of a step of gpt.mini, nothing of gpt2's, and 0.1 s to compile. Each shape is compiled anew,
    so only rows of a known and large size are: they differ from batch to batch in their number alone.

    The result has no gradient.
    """
    if not _fuses(x):
        return function(x)
    import tensorflow as tf

    # Where a gradient might be asked for, TensorFlow would have the program give what that needs, too.
    return _program(function)(tf.stop_gradient(x))


def trains_on_cpu():
    """Whether `fit` is tracing its step for TensorFlow's own kernels on a CPU."""
    if not _fusing.get() or keras.backend.backend() != "tensorflow" or compat.compiling() or on_accelerator():
        return False
    return graph() is not None


def _fuses(x):
    known = trains_on_cpu() and None not in x.shape[1:]
    return known and x.shape[-1] <= NARROW and math.prod(x.shape[1:]) >= LARGE


@functools.cache
def _program(function):
    import tensorflow as tf

    return tf.function(function, jit_compile=True, autograph=False)


def on_accelerator():
    """Whether tensors live on a GPU or TPU, where only large pieces keep it busy. TensorFlow and JAX."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.default_backend() != "cpu"
    import tensorflow as tf

    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def graph():
    """The graph of a step that TensorFlow traces now, on one replica; else None."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    traced = tf.inside_function() and tf.distribute.get_strategy().num_replicas_in_sync == 1
    return tf.compat.v1.get_default_graph() if traced else None


def trace(function, whole=False):
    """The function, traced once per kind of its arguments. TensorFlow only.

    Why it may stay whole: otherwise TensorFlow writes it down once for each call, and then looks for what could be
    better in a graph of eleven thousand nodes instead of two, which for GPT-2 takes as long as a step.

    Args:
        function: Takes tensors, or None.
        whole: Whether it stays a function in the graph that calls it.
    """
    import tensorflow as tf

    kept = {"experimental_attributes": {"_noinline": True}} if whole else {}
    return tf.function(function, autograph=False, reduce_retracing=False, **kept)


@functools.cache
def shared(function, **settings):
    """A function of tensors that is traced once for all its calls with the same shapes and settings, on TensorFlow.

    Why: the layers of a model are alike, and to trace their operations again for each takes most of the time until the
    first step.

    Args:
        function: Takes tensors, or None, by position, and the settings by name.
        **settings: What is not a tensor; hashable.
    """
    bound = functools.partial(function, **settings)
    if keras.backend.backend() != "tensorflow":
        return bound
    import tensorflow as tf

    traced = trace(bound)

    def call(*tensors):
        return traced(*tensors) if tf.inside_function() else bound(*tensors)

    return call
