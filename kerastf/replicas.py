"""What several replicas of a model need beyond what Keras gives them. Written for Keras 3.15 on TensorFlow.

A replica is one device's copy of a model. `tf.distribute` runs a step on every replica, each with its part of the
batch, and adds up the gradients. On other backends there is one replica, and nothing here does anything.

What Keras 3.15 does not do, and `mended` does while `fit`, `evaluate` or `predict` of our models run:

- All replicas draw the same random numbers, so that dropout drops the same units of every part of the batch.
- Gradients are clipped on each replica, before they are added up; so the step depends on how many replicas there are.
- The norm of a gradient that comes as rows of a table counts a row that was read twice as two rows. So does the norm by
  which one device clips, and it is mended there, too.
- With several workers, the logs of a step cannot be reduced: a mean over axis 0 is asked of scalars.
"""

import contextlib
import functools
import warnings

import keras
from keras import ops

WRITTEN_FOR = "3.15"
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

    Nothing is changed where there is one replica. The changes are to functions that Keras calls while it traces a step,
    so they hold as long as the block; a block inside another does nothing.
    """
    if keras.backend.backend() != "tensorflow" or _mended:
        yield
        return
    from keras.src.backend.tensorflow import trainer
    from keras.src.backend.tensorflow.optimizer import TFOptimizer

    changes, add_up, optimizer = [], TFOptimizer._all_reduce_sum_gradients, getattr(model, "optimizer", None)
    if model.distribute_strategy.num_replicas_in_sync > 1:
        seeds = keras.random.SeedGenerator
        changes = [
            (seeds, "next", _next_of_replica(seeds.next)),
            (trainer, "reduce_per_replica", _reduce(trainer.reduce_per_replica)),
            (TFOptimizer, "_all_reduce_sum_gradients", lambda self, grads_and_vars: grads_and_vars),
        ]
        if keras.__version__.rpartition(".")[0] != WRITTEN_FOR:
            warnings.warn(
                f"Several replicas were tried with Keras {WRITTEN_FOR}; this is Keras {keras.__version__}. If a step "
                "fails, see kerastf/replicas.py for what is changed in Keras.",
                stacklevel=3,
            )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, new in changes:
            setattr(owner, name, new)
        if optimizer is not None and (changes or _clips(optimizer)):
            # Not a plain assignment, which Keras would track.
            object.__setattr__(optimizer, "apply_gradients", _apply_after(add_up, optimizer))
        _mended.append(model)
        yield
    finally:
        _mended.clear()
        for owner, name, old in before:
            setattr(owner, name, old)
        if optimizer is not None:
            vars(optimizer).pop("apply_gradients", None)


_mended = []  # the model whose `fit` runs


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


def _clips(optimizer):
    """Whether an optimizer, or the one inside of it, clips gradients."""
    parts = (optimizer, getattr(optimizer, "inner_optimizer", optimizer))
    return any(getattr(part, name, None) for part in parts for name in ("clipnorm", "global_clipnorm", "clipvalue"))


def _apply_after(add_up, optimizer):
    """`optimizer.apply_gradients` of gradients that are added up over the replicas first, and not again after."""
    import tensorflow as tf

    apply_gradients, clips = optimizer.apply_gradients, _clips(optimizer)

    def wrapped(grads_and_vars):
        grads_and_vars = list(grads_and_vars)
        if number() > 1:
            grads_and_vars = add_up(optimizer, grads_and_vars)
        if clips:  # the rows of a table that were read, repeated ones included, become a gradient of the whole table
            grads_and_vars = [(g if g is None else tf.convert_to_tensor(g), v) for g, v in grads_and_vars]
        return apply_gradients(grads_and_vars)

    return wrapped


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
