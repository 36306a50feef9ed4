"""Where TensorFlow leaves time behind in `fit`, each with its reason."""

import contextlib
import contextvars
import functools
import math
import os

import keras

from kerastf import ahead, compat, tracing, versions
from kerastf.standing_in import StandIns


def reuse_memory():
    """Lets TensorFlow use the memory of its tensors on a CPU again at the next step, unless the environment decides.

    Why: otherwise each step gives large tensors back to the system and asks for them anew, page by page, which takes 3
    to 5 % of a training step. It has an effect only before TensorFlow's first operation.
    """
    if keras.backend.backend() == "tensorflow" and hasattr(os, "sysconf"):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
        os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(memory))


@contextlib.contextmanager
def prompt_epochs():
    """Within the block, an epoch of arrays or of a generator ends with its last step. On TensorFlow.

    Why: tf.data's tuner wakes up after 10 ms, 20 ms, 40 ms, ... and the end of an epoch waits for it, so that one of 21
    seconds took 41. What is fed there, rows of arrays, has nothing to be tuned.
    """
    if keras.backend.backend() != "tensorflow" or not versions.tried():
        yield
        return
    with _iterators.open(), compat.switched(_prompt, True):
        yield


_prompt = contextvars.ContextVar("prompt", default=False)


def _prompt_iterator():
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter

    class Prompt(trainer.TFEpochIterator):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            feed = self._distributed_dataset
            arrays = isinstance(feed, tf.data.Dataset) and not isinstance(self.data_adapter, TFDatasetAdapter)
            if _prompt.get() and arrays:  # and not another thread's
                options = tf.data.Options()
                options.autotune.enabled = False
                self._distributed_dataset = feed.with_options(options)

    return [(trainer, "TFEpochIterator", Prompt)]


_iterators = StandIns(_prompt_iterator)


def one_graph(model, step, nested):
    """Keras's function that takes the next batch and runs a step, as one graph where nothing needs two.

    Why: Keras traces the step as a function within a function, so that XLA can compile it alone. Without XLA that buys
    nothing, and costs an input for each variable in both, and their joining before the first step: a tenth of it for
    gpt.nano.

    Args:
        model: The model.
        step: Takes a batch.
        nested: Keras's function of `step`: it takes an iterator.
    """
    if not in_one_graph(model):
        return nested
    import tensorflow as tf

    training, filling = step == model.train_step, []
    step = model._autoconvert_optionals(step)

    @functools.partial(tf.function, reduce_retracing=True, autograph=False)
    def taken(iterator):
        batch = iterator.get_next()
        # Where there is no next one, what needs no batch must not happen either: the count of steps, seeds.
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            found = step(batch)
        filled()
        return found

    def filled():
        while filling:
            filling[0].result()
            filling.pop()  # not before: who interrupts the trace must not interrupt the wait

    def function(iterator):
        if not isinstance(iterator, tf.data.Iterator):
            return nested(iterator)
        if training and not model.optimizer.built:
            filling.extend(_build_meanwhile(model))
        try:
            with tracing.fewer_passes():
                return taken(iterator)
        finally:
            filled()

    return function


def in_one_graph(model):
    """Whether nothing needs two graphs, so that `one_graph` makes one."""
    if keras.backend.backend() != "tensorflow" or not versions.tried():
        return False
    plain = not model.jit_compile and not model.run_eagerly and model.steps_per_execution == 1
    return plain and model._distribute_strategy is None


def _build_meanwhile(model):
    """Makes the optimizer's variables; returns futures of their being filled with zeros, where that is left to others.

    Why: memory that nobody has touched yet takes its time; for GPT-2 half a second, in which the step can be traced.
    """
    left = None if _adam_of(model.optimizer) is None else []  # others may read their variables as soon as they are made
    compat.build_optimizer(model, left)
    return [ahead.meanwhile(left)] if left else []


def _adam_of(optimizer):
    """Keras's Adam or AdamW that an optimizer is, or scales the loss for; else None."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return inner if type(inner) in (keras.optimizers.Adam, keras.optimizers.AdamW) else None


@contextlib.contextmanager
def one_pass_adam(optimizer):
    """Within the block, Adam and AdamW update a variable of float32 in one pass. On TensorFlow with one replica.

    Why: Keras writes a dozen tensors as large as the variable down on the way, a quarter of a step of GPT-2.
    """
    inner = _adam_of(optimizer)
    if keras.backend.backend() != "tensorflow" or inner is None or inner.amsgrad or not versions.tried():
        yield
        return
    import tensorflow as tf

    by_steps, decay_by_steps = inner._backend_update_step, inner._apply_weight_decay

    def fits(variables, gradients):
        return (
            tf.distribute.get_strategy().num_replicas_in_sync == 1
            and all(v.dtype == "float32" for v in variables)
            and not any(isinstance(g, tf.IndexedSlices) for g in gradients)
        )

    def update(gradients, variables, learning_rate):
        if not fits(variables, gradients):
            decay_by_steps(variables)
            by_steps(gradients, variables, learning_rate)
            return
        learning_rate = tf.cast(learning_rate, "float32")
        kept = 1 - learning_rate * (inner.weight_decay or 0.0)
        step = tf.cast(inner.iterations + 1, "float32")  # of updates, where several steps make one
        shared = {
            "beta1_power": tf.pow(inner.beta_1, step), "beta2_power": tf.pow(inner.beta_2, step), "lr": learning_rate,
            "beta1": tf.constant(inner.beta_1), "beta2": tf.constant(inner.beta_2),
            "epsilon": tf.constant(inner.epsilon),
        }  # fmt: skip
        by_program = tracing.one_dnn() and tracing.trains_on_cpu()
        for gradient, variable in zip(gradients, variables, strict=True):
            number = inner._get_variable_index(variable)
            held = [x.value for x in (variable, inner._momentums[number], inner._velocities[number])]
            decays = inner.weight_decay and inner._use_weight_decay(variable)
            if by_program and math.prod(variable.shape) >= MANY:
                compiled = _adam_program(tuple(variable.shape), inner.beta_1, inner.beta_2, inner.epsilon)
                powers = shared["beta1_power"], shared["beta2_power"]
                given = *held, _before_widening(gradient), kept if decays else None, learning_rate, *powers
                compiled(*given)
                ahead.begin(compiled, *given)
                continue
            if decays:
                with tf.control_dependencies([tf.identity(gradient)]):  # a step that fails has changed nothing
                    held[0].assign(held[0] * kept)  # as good as in place: the product is moved in
            var, m, v = (x.handle for x in held)
            tf.raw_ops.ResourceApplyAdam(var=var, m=m, v=v, grad=gradient, **shared)

    def decay(variables):
        """Nothing: `update` does it, each variable when its turn comes."""

    try:
        object.__setattr__(inner, "_backend_update_step", update)  # a plain assignment would be tracked by Keras
        object.__setattr__(inner, "_apply_weight_decay", decay)
        yield
    finally:
        del inner._backend_update_step, inner._apply_weight_decay


MANY = 2**20  # numbers of a variable from which on a program is worth its compiling


HUGE = 2**24  # numbers of a variable from which on it is gone through as a whole,
NEAR = 2**15  # and otherwise so many at a time


@functools.cache
def _adam_program(shape, beta_1, beta_2, epsilon):
    """One step of Adam, with its decay, as a program of XLA that writes in place; compiled for each shape.

    Why: with oneDNN it takes 0.6 of the time of TensorFlow's kernel and the decay before it, which writes the variable
    down once more. And it reads a gradient of half precision as it is, where the kernel wants float32.

    XLA goes through the numbers thrice, once for each variable. A few rows at a time are still in the cache when they
    are read again, which takes 0.7 of the time. But only one core does so: the largest matrix is an embedding, which is
    updated last, when there is nothing else to do.
    """
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla  # an assignment to a slice would not be in place

    rows, columns = math.prod(shape[:-1]), shape[-1]
    few = rows if math.prod(shape) >= HUGE else max(1, NEAR // columns)
    few = next((n for n in range(few, few // 2, -1) if rows % n == 0), few)  # what is left over is compiled as well

    @tf.function(jit_compile=True, autograph=False)
    def update(variable, mean, square, gradient, kept, learning_rate, power_1, power_2):
        rate = learning_rate * tf.sqrt(1 - power_2) / (1 - power_1)
        gradient = tf.reshape(gradient, (rows, columns))

        def advance(start, count, variable, mean, square):
            def part(x):
                return tf.slice(x, [start, 0], [count, columns])

            def put(x, part):
                return xla.dynamic_update_slice(x, part, [start, 0])

            slope = tf.cast(part(gradient), "float32")
            # What comes next reads what this has written: were it to read what was there before, XLA would copy that.
            mean = put(mean, part(mean) + (slope - part(mean)) * (1 - beta_1))
            square = put(square, part(square) + (slope * slope - part(square)) * (1 - beta_2))
            left = part(variable) if kept is None else part(variable) * kept
            return put(variable, left - rate * part(mean) / (tf.sqrt(part(square)) + epsilon)), mean, square

        held = variable, mean, square
        state = [tf.reshape(x, (rows, columns)) for x in held]
        whole = rows // few
        if whole > 1:
            _, *state = tf.while_loop(
                lambda i, *_: i < whole, lambda i, *state: (i + 1, *advance(i * few, few, *state)), (0, *state)
            )
        done = whole * few if whole > 1 else 0
        if done < rows:
            state = advance(done, rows - done, *state)
        for x, new in zip(held, state, strict=True):
            x.assign(tf.reshape(new, shape))

    return update


def _before_widening(gradient):
    """The tensor of bfloat16 that a gradient was cast from, if it was; else the gradient."""
    source = gradient.op.inputs[0] if gradient.op.type == "Cast" else gradient
    return source if source.dtype == "bfloat16" else gradient


def can_update_rows(model):
    """Whether `adagrad_rows` does what the model's optimizer would do: Adagrad without extras, on TensorFlow."""
    optimizer = model.optimizer
    extras = ("clipnorm", "clipvalue", "global_clipnorm", "weight_decay", "gradient_accumulation_steps",
              "loss_scale_factor")  # fmt: skip
    return (
        keras.backend.backend() == "tensorflow"
        and type(optimizer) is keras.optimizers.Adagrad
        and not optimizer.use_ema
        and not any(getattr(optimizer, e) for e in extras)
        and model.dtype_policy.name == "float32"
        and model.distribute_strategy.num_replicas_in_sync == 1
        and len(model.trainable_variables) == 2
    )


def adagrad_rows(function, optimizer):
    """One step of Adagrad that reads and writes only the rows of matrices that a loss looks at. TensorFlow only.

    Why: Keras goes through whole matrices, and the optimizer's private variables are needed to do otherwise. Two
    gradients of one row are summed first, as in a dense gradient.

    Args:
        function: Takes `take(variable, rows)`, by which it reads rows; returns a scalar to differentiate, a factor to
            its gradients, and what this function returns.
        optimizer: A Keras Adagrad; its accumulators and its count of steps are used.
    """
    import tensorflow as tf

    read = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def take(variable, rows):
            taken = tf.gather(variable.value, rows)
            tape.watch(taken)
            read.append((variable, rows, taken))
            return taken

        loss, factor, result = function(take)
    gradients = tape.gradient(loss, [taken for _, _, taken in read])
    rate = tf.cast(optimizer.learning_rate, "float32")
    for variable in {id(v): v for v, _, _ in read}.values():
        parts = [(r, g) for (v, r, _), g in zip(read, gradients, strict=True) if v is variable]
        rows = tf.concat([tf.reshape(r, [-1]) for r, _ in parts], 0)
        gradient = tf.concat([tf.reshape(g, [-1, variable.shape[-1]]) for _, g in parts], 0)
        rows, places = tf.unique(rows)
        gradient = factor * tf.math.unsorted_segment_sum(gradient, places, tf.size(rows))
        weights = variable.value.handle
        squares = optimizer._accumulators[optimizer._get_variable_index(variable)].value.handle
        tf.raw_ops.ResourceScatterAdd(resource=squares, indices=rows, updates=gradient * gradient)
        total = tf.raw_ops.ResourceGather(resource=squares, indices=rows, dtype="float32")
        step = rate * gradient * tf.math.rsqrt(total + optimizer.epsilon)
        tf.raw_ops.ResourceScatterSub(resource=weights, indices=rows, updates=step)
    optimizer.iterations.assign_add(1)
    return result
