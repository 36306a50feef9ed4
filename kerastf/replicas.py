"""What several replicas of a model need beyond what Keras gives them. Written for Keras 3.15 on TensorFlow.

A replica is one device's copy of a model. `tf.distribute` runs a step on every replica, each with its part of the
batch, and adds up the gradients. On other backends there is one replica, and nothing here does anything.

What Keras 3.15 does not do, and `mended` does while our models train or are evaluated:

- All replicas draw the same random numbers, so that dropout drops the same units of every part of the batch.
- Gradients are clipped on each replica, before they are added up; so the step depends on how many replicas there are.
- A gradient that comes as the rows of a table that were read has a row as often as it was read, and it is squared row
  by row: `a^2 + b^2` stands for `(a + b)^2`, in Adam's second moment and in the norm by which gradients are clipped.
  Two replicas read every position twice. It is so on one device, too, where a token stands twice in a batch; JAX and
  PyTorch have whole gradients. It is mended with one replica as with many.
- What layers add to the loss stands in a list of the layer, and replicas share the layer. They take turns while a step
  is traced, so that one reads what another added: a value of another part of the batch, without a gradient here.
- With several workers, the logs of a step cannot be reduced: a mean over axis 0 is asked of scalars.
"""

import contextlib
import functools
import threading
import warnings

import keras
from keras import ops

from kerastf import versions

SHIFT = 1_000_003  # between the seeds of two replicas; a prime, so that layers with seeds 0, 1, 2 stay apart


def number():
    """How many replicas train together, counted over all workers. 1 where there is no strategy."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def total(x):
    """The sum of a tensor over all replicas; the tensor itself outside of a replica, or where there is one only.

    A loss divides by it, because the mean is over the whole batch: tokens are spread unevenly, and the mean of means is
    another number. Keras adds up what the replicas return, so each returns its part: `sum(losses) / total(count)`.
    No gradient flows through it.
    """
    x = ops.stop_gradient(x)
    if number() == 1:
        return x
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    return x if replica is None else replica.all_reduce(tf.distribute.ReduceOp.SUM, x)


def specs(epoch_iterator):
    """The symbolic batch of one replica, from the types of a distributed data set; None where they do not say.

    Why: Keras builds metrics and optimizer from a batch that it takes and throws away. With several workers it cannot
    convert it to a tensor, and a data set whose every pass is another epoch has lost its first epoch.
    """
    import tensorflow as tf

    def of_replica(spec):
        spec = spec._value_specs[0] if hasattr(spec, "_value_specs") else spec  # several replicas on this worker
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank is None:
            raise TypeError
        return keras.KerasTensor(tuple(spec.shape), dtype=spec.dtype.name)

    try:
        return keras.tree.map_structure(of_replica, epoch_iterator._distributed_dataset.element_spec)
    except (AttributeError, TypeError):
        return None


@contextlib.contextmanager
def mended(model):
    """Within the block, `model` trains with several replicas as it would with one. See the top of the file.

    The changes are to functions that Keras calls while it traces a step, so they hold as long as the block. A block
    inside another of the same model does nothing; a callback may well train another model.
    """
    if keras.backend.backend() != "tensorflow" or any(m is model for m in _running):
        yield
        return
    several = model.distribute_strategy.num_replicas_in_sync > 1
    optimizer = getattr(model, "optimizer", None)
    with contextlib.ExitStack() as stack:
        if several and not any(m.distribute_strategy.num_replicas_in_sync > 1 for m in _running):
            stack.enter_context(_changed_keras())
        if optimizer is not None:
            stack.enter_context(_changed_optimizer(optimizer))
        _running.append(model)
        stack.callback(_running.remove, model)
        yield


_running = []  # the models whose `fit` or `evaluate` runs
_first = []  # the optimizers, inner ones too, whose gradients have been added up before they are applied


@contextlib.contextmanager
def _changed_keras():
    """Keras with our own of what all models share."""
    from keras.src.backend.tensorflow import trainer
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    if keras.__version__.rpartition(".")[0] != versions.TRIED["keras"]:
        warnings.warn(
            f"Several replicas were tried with Keras {versions.TRIED['keras']}; this is Keras {keras.__version__}. "
            "If a step fails, see kerastf/replicas.py for what is changed in Keras.",
            stacklevel=6,
        )
    add_up = TFOptimizer._all_reduce_sum_gradients

    def add_up_once(self, grads_and_vars):
        return grads_and_vars if any(o is self for o in _first) else add_up(self, grads_and_vars)

    seeds = keras.random.SeedGenerator
    changes = (
        (seeds, "next", _next_of_replica(seeds.next)),
        (trainer, "reduce_per_replica", _reduce(trainer.reduce_per_replica)),
        (TFOptimizer, "_all_reduce_sum_gradients", add_up_once),
        *_losses_of_replica(keras.layers.Layer),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in before:
            setattr(owner, name, old)


@contextlib.contextmanager
def _changed_optimizer(optimizer):
    """An optimizer that is given sums: of all replicas, and of all readings of a row."""
    import tensorflow as tf

    apply_gradients = optimizer.apply_gradients

    def apply_sums(grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        if number() > 1:
            sums = tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.SUM, [g for g, _ in grads_and_vars if g is not None]
            )
            sums = iter(sums)
            grads_and_vars = [(g if g is None else next(sums), v) for g, v in grads_and_vars]
        return apply_gradients([(_whole(g, v), v) for g, v in grads_and_vars])

    both = optimizer, getattr(optimizer, "inner_optimizer", optimizer)
    try:
        object.__setattr__(optimizer, "apply_gradients", apply_sums)  # a plain assignment would be tracked by Keras
        _first.extend(both)
        yield
    finally:
        del optimizer.apply_gradients
        for one in both:
            _first.remove(one)  # others train, too


def _whole(gradient, variable):
    """A gradient that comes as the rows of a table that were read, as one of the whole table."""
    import tensorflow as tf

    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])


def _next_of_replica(next_seed):
    """`SeedGenerator.next` with a seed of each replica's own: `[seed + SHIFT * replica, counter]`.

    The state stays the same on all replicas, and so does what a checkpoint holds.
    """
    import tensorflow as tf

    @functools.wraps(next_seed)
    def wrapped(self, ordered=True):
        seed = next_seed(self, ordered)
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return seed
        shift = SHIFT * tf.cast(replica.replica_id_in_sync_group, seed.dtype)
        return seed + tf.stack([shift, tf.zeros_like(shift)])

    return wrapped


def _losses_of_replica(layer):
    """What to change in the class of layers, so that a replica sees only the losses that it added itself.

    Each replica is traced in a thread of its own, so a loss belongs to its thread.
    """
    add_loss, own_losses, clear_losses = layer.add_loss, layer._get_own_losses, layer._clear_losses
    threads = {}  # by id of a loss; it lives as long as it stands in the list of its layer

    def is_own(loss):
        return threads.get(id(loss), threading.get_ident()) == threading.get_ident()

    @functools.wraps(add_loss)
    def add(self, loss):
        before = len(self._losses)
        add_loss(self, loss)
        threads.update((id(loss), threading.get_ident()) for loss in self._losses[before:])

    def own(self):
        return [loss for loss in own_losses(self) if is_own(loss)]

    def clear(self):
        others = [loss for loss in self._losses if not is_own(loss)]
        clear_losses(self)  # the losses of inner layers, too
        self._losses.extend(others)

    return (layer, "add_loss", add), (layer, "_get_own_losses", own), (layer, "_clear_losses", clear)


def _reduce(reduce_per_replica):
    """Keras's function, but for the mean over several workers."""
    import tensorflow as tf

    @functools.wraps(reduce_per_replica)
    def wrapped(values, strategy, reduction):
        several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        if several and reduction in ("auto", "mean"):
            return keras.tree.map_structure(lambda v: strategy.reduce("MEAN", v, axis=None), values)
        return reduce_per_replica(values, strategy, reduction)

    return wrapped
