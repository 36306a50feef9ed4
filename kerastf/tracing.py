"""How a step is traced: where, and what of it TensorFlow may share or compile, each with its reason."""

import contextlib
import contextvars
import functools
import math
import os
import platform

import keras

from kerastf import ahead, compat, versions

_fusing = contextvars.ContextVar("fusing", default=False)

LARGE = 2**17  # numbers of one row of a batch from which on a program of XLA pays,
NARROW = 1024  # up to so many channels without oneDNN: in wider models of float32 products take all the time there


def fusing():
    """Within the block, what is traced runs often: programs may be compiled, products take a form."""
    return compat.switched(_fusing, True)


def program(function):
    """The function as a program of XLA, compiled anew for each shape. TensorFlow only.

    Its gradient is that of the function's own operations: with one of the program's, TensorFlow would have the program
    give what that needs, whether it is asked for or not.

    Args:
        function: Takes tensors, None, or structures of them; returns tensors, or a structure.
    """
    import tensorflow as tf

    compiled = tf.function(function, jit_compile=True, autograph=False)

    def run(*arguments):
        returned = []

        def call(function, tensors):
            left = iter(tensors)
            return function(*tf.nest.map_structure(lambda x: None if x is None else next(left), arguments))

        @compat.custom_gradient
        def apply(*tensors):
            tensors = [tf.identity(x) for x in tensors]  # those of another graph have no gradient of a gradient

            def gradient(*above):
                learnt = [x for x in tensors if x.dtype.is_floating]
                with tf.GradientTape() as tape:
                    tape.watch(learnt)
                    found = tf.nest.flatten(call(function, tensors))
                slopes = iter(tape.gradient(found, learnt, above))
                return [next(slopes) if x.dtype.is_floating else None for x in tensors]

            returned.append(call(compiled, [tf.stop_gradient(x) for x in tensors]))
            call(functools.partial(ahead.begin, compiled), tensors)
            return tf.nest.flatten(returned[0]), gradient

        found = apply(*(x for x in tf.nest.flatten(arguments) if x is not None))
        return tf.nest.pack_sequence_as(returned[0], found)

    return run


def rounded_program(function):
    """As `program`; half precision is computed in float32 there, and rounded once to what the first tensor has."""

    def rounded_once(*tensors):
        dtype = tensors[0].dtype
        found = function(*(keras.ops.cast(x, keras.backend.result_type(x.dtype, "float32")) for x in tensors))
        return keras.ops.cast(found, dtype)

    return program(rounded_once)


def trains_on_cpu():
    """Whether `fit` is tracing its step for TensorFlow's own kernels on a CPU."""
    if not _fusing.get() or keras.backend.backend() != "tensorflow" or compat.compiling() or on_accelerator():
        return False
    return graph() is not None


def fuses(x, least=None):
    """Whether `fit` on a CPU computes what goes through `x` by programs of XLA.

    Why: TensorFlow goes through the numbers once for each operation. GELU, its bias and its slope take half the time
    as programs, and some 0.1 s each to compile. Each shape is compiled anew, so only rows of a known and large size
    are: they differ from batch to batch in their number alone.

    Args:
        x: `(B, .., C)`.
        least: How many numbers a row of the batch has at least; `LARGE` by default.
    """
    if not trains_on_cpu() or None in x.shape[1:] or math.prod(x.shape[1:]) < (LARGE if least is None else least):
        return False
    return one_dnn() or x.shape[-1] <= NARROW or keras.backend.standardize_dtype(x.dtype) == "bfloat16"


@functools.cache
def one_dnn():
    """Whether TensorFlow computes products of float32 by oneDNN: on x86, unless it is told not to."""
    chosen = os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0"
    return chosen and platform.machine().lower() in ("x86_64", "amd64")


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


def kept(graph, name):
    """A list that belongs to a graph and ends with it.

    Why not a collection of TensorFlow's: those are copied into each function within, and some of these serve other
    models later. So they would hold what a model was made of for ever.
    """
    name = f"_kerastf_{name}"
    if not hasattr(graph, name):
        setattr(graph, name, [])
    return getattr(graph, name)


@contextlib.contextmanager
def fewer_passes():
    """Within the block, TensorFlow's graph optimizer goes once through a function that is called, on a CPU.

    Why: it goes through each twice, and the second time finds next to nothing; and it looks for memory to be swapped
    and images to be turned, as GPUs need it. That takes a tenth of the way to the first step of gpt.nano. What the user
    has set stays.
    """
    if on_accelerator() or not versions.tried():
        yield
        return
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    held = context.context()
    plain = held.function_call_options
    config = config_pb2.ConfigProto.FromString(plain.config_proto_serialized)
    passes = config.graph_options.rewrite_options
    passes.meta_optimizer_iterations = passes.meta_optimizer_iterations or passes.ONE  # 0 is where nothing is set
    passes.memory_optimization = passes.memory_optimization or passes.NO_MEM_OPT
    passes.layout_optimizer = passes.layout_optimizer or passes.OFF
    held.function_call_options = context.FunctionCallOptions(plain.executor_type, config)
    try:
        yield
    finally:
        held.function_call_options = plain


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


def read(variable):
    """The value of a Keras variable as a tensor, for which a function need not be traced anew. TensorFlow only."""
    import tensorflow as tf

    return tf.convert_to_tensor(variable.value)


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
