"""Private and backend-specific details of Keras, each with its reason. Written for Keras 3.15."""

import contextlib
import contextvars
import functools
import sys
import weakref

import keras
from keras import ops

from kerastf import building, versions
from kerastf.standing_in import StandIns


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

        def traced(*arguments):
            with switched(_compiling, True):
                return function(*arguments)

        return tf.function(traced, jit_compile=True, autograph=False)
    if backend == "jax":
        import jax

        def pure(values, *arguments):
            with switched(_compiling, True), keras.StatelessScope(zip(owner.variables, values, strict=True)):
                return function(*arguments)

        jitted = jax.jit(pure)
        return lambda *arguments: jitted([v.value for v in owner.variables], *arguments)
    import torch

    return torch.no_grad()(function)


_compiling = contextvars.ContextVar("compiling", default=False)


@contextlib.contextmanager
def switched(variable, value):
    """Within the block, a `contextvars.ContextVar` holds the value; then what it held before."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def compiling():
    """Whether what is called now is being traced for XLA, by `compiled` or `as_compiled`."""
    return _compiling.get()


def op_by_op():
    """Whether each operation runs when it is called, and nothing is traced: on TensorFlow, outside its functions."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.executing_eagerly()


def as_compiled(model):
    """A block within which steps of a model are traced for XLA where it was compiled so, and `compiling` knows it.

    Why: Keras tells a layer nothing of `jit_compile`.
    """
    return switched(_compiling, compiling() or bool(model.jit_compile))


@contextlib.contextmanager
def rounded(model):
    """Within the block, weights of layers that compute in half precision are read from copies in that precision.

    Why: Keras rounds a weight whenever it is read, so a loop reads and rounds them all again at every step. What is no
    layer (decoding takes anything that has `step`) is left alone: nobody knows in which precision it computes.
    """
    if not isinstance(model, keras.layers.Layer):
        yield
        return
    halves = {
        id(v): layer.compute_dtype
        for layer in (model, *parts_of(model)) if layer.compute_dtype in ("bfloat16", "float16")
        for v in (*layer._trainable_variables, *layer._non_trainable_variables) if v._autocast and v.dtype == "float32"
    }  # fmt: skip
    if not halves:
        yield
        return
    known = [(v, v.value) for v in model.variables]
    with keras.StatelessScope(known) as scope:
        for variable, value in known:
            if id(variable) in halves:
                scope.state_mapping[id(variable)] = ops.cast(value, halves[id(variable)])
        yield


def unrounded(variable):
    """A variable's own numbers as a tensor, in the call of a layer that computes in half precision, too.

    Why: Keras rounds a weight whenever a layer reads it.
    """
    from keras.src.backend.common.variables import AutocastScope

    with AutocastScope(None):
        value = variable.value
    return ops.cast(value, value.dtype)  # `ops.convert_to_tensor` takes a variable of TensorFlow for a tensor


@contextlib.contextmanager
def exact_products():
    """Within the block, products and convolutions of float32 are computed in float32 on every device.

    Why: GPUs round their factors to 10 bits (TF32) unless told not to, each backend in its own way, so that two ways to
    compute the same differ by a thousandth.
    """
    backend = keras.backend.backend()
    with contextlib.ExitStack() as after:
        if backend == "tensorflow":
            import tensorflow as tf

            switch = tf.config.experimental.enable_tensor_float_32_execution
            after.callback(switch, tf.config.experimental.tensor_float_32_execution_enabled())
            switch(False)
        elif backend == "jax":
            import jax

            after.enter_context(jax.default_matmul_precision("highest"))
        else:
            import torch

            for part in (torch.backends.cuda.matmul, torch.backends.cudnn):
                after.callback(setattr, part, "allow_tf32", part.allow_tf32)
                part.allow_tf32 = False
        yield


def fewest_rows():
    """How many rows a compiled loop over tokens should have at least.

    Why: XLA writes a product of one row as sums, which on a GPU takes half as long again as the product of two.
    """
    if keras.backend.backend() != "jax":
        return 1
    import jax

    return 2 if jax.default_backend() == "gpu" else 1


def has_cudnn():
    """Whether recurrent layers may use cuDNN here and now: there is a GPU, and XLA for TensorFlow is not compiling."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        there = bool(tf.config.list_logical_devices("GPU")) and tf.test.is_built_with_cuda()
        return there and not compiling()  # XLA for TensorFlow cannot hold its kernels
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    import torch

    return torch.cuda.is_available() and torch.backends.cudnn.is_available()


def cudnn_recurrence(kind, x, states, kernel, recurrent_kernel, bias):
    """A whole sequence through cuDNN's LSTM or GRU, or None where the backend has no such path.

    Why: Keras uses the fused kernels only inside its own layers, and has no public function for them.

    Args:
        kind: "lstm" or "gru".
        x: `(B, T, C)`, without padding.
        states: The states before the first step, as the Keras layer of that name has them.
        kernel, recurrent_kernel, bias: The weights, in the order of that Keras layer.

    Returns:
        The outputs `(B, T, U)` and the last states, or None.
    """
    if not has_cudnn() or keras.backend.standardize_dtype(x.dtype) not in ("float16", "float32"):
        return None
    if kind == "gru" and keras.backend.backend() == "jax":
        return None  # Keras has a plain loop there, as we have
    from keras.src import backend as private

    try:
        _, outputs, states = getattr(private, kind)(
            x, *states, None, kernel, recurrent_kernel, bias, keras.activations.tanh, keras.activations.sigmoid,
            return_sequences=True,
        )  # fmt: skip
    except NotImplementedError:
        return None
    return outputs, states


def parts_of(layer, recursive=True):
    """All layers inside of a layer or model, at any depth, or only those that stand in it directly.

    Why: Keras walks them for itself only.
    """
    return list(layer._flatten_layers(include_self=False, recursive=recursive))


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


def custom_gradient(function):
    """Keras's `ops.custom_gradient`, which on TensorFlow forgets a graph that nobody else remembers.

    Why: TensorFlow notes the gradient of each call in a graph for good, and with it the graph, the model that was
    trained there, and its weights.

    Args:
        function: Takes tensors; returns tensors, and a function of their gradients that gives those of its arguments.
    """
    plain = ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow" or not versions.tried():
        return plain
    from tensorflow.python.framework import ops as private

    @functools.wraps(function)
    def call(*tensors):
        found = plain(*tensors)
        operation = None if op_by_op() else keras.tree.flatten(found)[0].op
        if operation is not None and operation.type == "IdentityN":
            noted = private.gradient_registry._registry[operation.get_attr("_gradient_op_type").decode()]
            noted["type"] = _Gradient(noted["type"], operation.graph)
        return found

    return call


class _Gradient:
    """A gradient that is noted for as long as its graph is there."""

    def __init__(self, function, graph):
        self.function = weakref.ref(function)
        if not hasattr(graph, "_kerastf_gradients"):
            graph._kerastf_gradients = []
        graph._kerastf_gradients.append(function)

    def __call__(self, *arguments):
        return self.function()(*arguments)


@contextlib.contextmanager
def without_allocation():
    """Within the block, models are built with shapes only: no weight is allocated, and none can be used.

    Why: GPT-2 XL's parameters can then be counted on a laptop. Keras's `StatelessScope` defers initialisation and
    keeps a list of deferred variables that a later scope would initialise; ours are taken off it again.
    """
    from keras.src.backend.common import global_state

    key = "uninitialized_variables"
    before = list(global_state.get_global_attribute(key, [], set_to_default=True))
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(key, before)


def _adopt(array, dtype):
    """A tensor of an array that nobody else will write to: on TensorFlow, in the array's own memory where that fits.

    Why: TensorFlow copies arrays twice, and its fresh memory costs more time than to read a file.
    """
    fits = array.flags.c_contiguous and array.flags.writeable and array.__array_interface__["data"][0] % 64 == 0
    if keras.backend.backend() == "tensorflow" and fits and array.dtype == dtype and array.size:
        import tensorflow as tf

        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return ops.convert_to_tensor(array, dtype)


_value = contextvars.ContextVar("value", default=None)


@contextlib.contextmanager
def initialised_by(value):
    """Within the block, variables begin with what `value(path, shape)` gives, where that is not None.

    Why: weights that are read from a file need not be drawn first; drawing those of GPT-2 takes longer than to read
    them, and their memory would be needed twice.
    """
    with _values.open(), switched(_value, value):
        yield


def _initialisation():
    whole = keras.Variable._initialize_with_initializer

    def initialise(variable, initializer):
        value = _value.get()  # another thread's variables begin as ever
        found = None if value is None else value(variable.path, tuple(variable.shape))
        whole(variable, initializer if found is None else (lambda shape, dtype: _adopt(found, dtype)))

    return [(keras.Variable, "_initialize_with_initializer", initialise)]


_values = StandIns(_initialisation)


def forget_metrics(model):
    """After `compile(metrics=[])`, as if no metrics had been given.

    Why: Keras wants even an empty list of metrics to have seen outputs, and a step from windows has none.
    """
    model._compile_metrics = None


@contextlib.contextmanager
def same_bits(asked=True):
    """Within the block, where asked for, TensorFlow's operations give the same bits each time.

    Why: the switch is TensorFlow's own, and Keras has no other name for it. Left on, no model compiles with XLA.
    """
    if not asked or keras.backend.backend() != "tensorflow":
        yield
        return
    from tensorflow.python.framework import config

    if config.is_op_determinism_enabled():
        yield
        return
    config.enable_op_determinism()
    try:
        yield
    finally:
        config.disable_op_determinism()


def settle(model):
    """In the middle of `fit`, makes the model's variables hold what the last step left.

    Why: on JAX, `fit` keeps them elsewhere while it runs.
    """
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def build_optimizer(model, postponed=None):
    """Makes the variables of a compiled model's optimizer, as the first step of `fit` would.

    Why: on TensorFlow, a step that makes variables while it is traced is traced twice.

    Args:
        model: The model.
        postponed: As `building.quickly` takes it.
    """
    if keras.backend.backend() == "tensorflow" and model.compiled and model.optimizer is not None:
        import tensorflow as tf

        strategy = model.distribute_strategy
        here = strategy is tf.distribute.get_strategy()  # as without any; to enter it would only make variables dearer
        with contextlib.nullcontext() if here else strategy.scope():
            if not model.optimizer.built:
                with building.quickly(postponed):
                    model.optimizer.build(model.trainable_variables)


def innermost(optimizer):
    """The optimizer that makes the steps, where others stand around it."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def keep_from_decay(optimizer, variables):
    """Exempts variables from an optimizer's weight decay, beside those that the user named.

    Why: what Keras is told last is all that it knows.
    """
    optimizer = innermost(optimizer)
    named = [getattr(optimizer, n, None) for n in ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")]
    optimizer.exclude_from_weight_decay(var_list=variables)
    optimizer._exclude_from_weight_decay |= named[0] or set()
    optimizer._exclude_from_weight_decay_pattern = named[1]


def build_metrics(model, batch):
    """Makes the variables of the metrics, as the first step of `fit` would.

    Why: what they had summed up in an earlier process is to be put into them before that step.
    """
    model._symbolic_build(data_batch=batch)


@contextlib.contextmanager
def averaged_weights(model):
    """Within the block, the weights are their moving averages, where the optimizer keeps some; then as before.

    Why: Keras's own callback swaps them by adding and subtracting, which changes the last bits of a training.
    """
    optimizer = innermost(getattr(model, "optimizer", None))
    if optimizer is None or not getattr(optimizer, "use_ema", False) or not optimizer.built:
        yield
        return
    pairs = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    before = []
    for variable, average in pairs:
        before.append((variable, ops.convert_to_numpy(variable).copy()))
        variable.assign(ops.copy(average.value))
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


@contextlib.contextmanager
def writing(temporary, path):
    """Within the block, what TensorFlow raises where it cannot write is an `OSError` of one line.

    Why: it has classes of its own for a full disk, which nobody catches who writes a file.

    Args:
        temporary: Where it writes.
        path: What the user calls it.
    """
    try:
        yield
    except Exception as error:
        tf = sys.modules.get("tensorflow")
        if tf is None or not isinstance(error, tf.errors.OpError):
            raise
        reason = " ".join(error.message.replace(str(temporary), str(path)).split())
        raise OSError(f"{path} cannot be written: {reason[:300]}") from None


def event_writer(folder):
    """A function of a step and numbers by name that writes them for TensorBoard; None without TensorFlow.

    Why: `tf.summary.scalar` and Keras's callback want the package tensorboard, which only a reader of the files needs.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    metadata = tf.compat.v1.SummaryMetadata(
        plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"),
        data_class=1,  # scalars
    )
    writer = tf.summary.create_file_writer(str(folder))

    def write(step, values):
        with writer.as_default():
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, "float32"), step, metadata)
        writer.flush()

    return write
