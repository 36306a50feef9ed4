"""Which devices a training runs on: one, several of one machine, TPU cores, or several machines.

The strategies are TensorFlow's own. A model is made and compiled within `strategy.scope()`, and `fit` does the rest.
"""

import json
import os
import re

import keras

from kerastf.errors import ConfigError, InputError

KNOWN = {
    "auto": "several workers where TF_CONFIG names them, else all GPUs, else one device",
    "cpu": "one CPU device",
    "cpu:N": "N logical CPU devices of this machine",
    "gpu": "all GPUs of this machine",
    "gpu:N": "the first N GPUs",
    "tpu": "the TPU of this machine, or the one that TPU_NAME names",
    "tpu:ADDRESS": "the TPU of that name or address",
    "workers": "the processes that TF_CONFIG names",
}


def strategy(devices="auto"):
    """A `tf.distribute` strategy for the devices that are named.

    Args:
        devices: `"auto"`: several workers where TF_CONFIG names them, else all GPUs, else one device. `"cpu"` or
            `"cpu:4"`: one or four CPU devices, made for the purpose; they share the machine's cores. `"gpu"` or
            `"gpu:2"`: all GPUs, or the first two. `"tpu"` or `"tpu:ADDRESS"`: the TPU of this machine, or that of a
            name or address. `"workers"`: the processes of TF_CONFIG, each with all its GPUs or with one CPU device.

    Returns:
        A strategy: TensorFlow's default one for one device, `MirroredStrategy`, `TPUStrategy` or
        `MultiWorkerMirroredStrategy`. Make and compile the model within its `scope()`.

    Raises:
        ConfigError: There are no such devices, TensorFlow was used before they could be made, or the backend is not
            TensorFlow.

    Examples:
        >>> import kerastf
        >>> from kerastf import training
        >>> chosen = training.strategy("cpu")
        >>> chosen.num_replicas_in_sync
        1
        >>> with chosen.scope():
        ...     model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=1, num_heads=2)
        ...     model.compile("adamw")
    """
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            "Strategies are TensorFlow's. With KERAS_BACKEND=jax, use kerastf.training.layout, which shards a model "
            f"over devices; the backend is {keras.backend.backend()!r}. Received: devices={devices!r}"
        )
    kind, _, rest = devices.partition(":") if isinstance(devices, str) else ("", "", "")
    if devices == "auto":
        if _number_of_workers() > 1:
            return _workers(devices)
        return _gpus(None, devices) if _found("GPU") else _one("CPU")
    if kind == "cpu" and (not rest or _is_count(rest)):
        return _cpus(int(rest or 1), devices)
    if kind == "gpu" and (not rest or _is_count(rest)):
        return _gpus(int(rest) if rest else None, devices)
    if kind == "tpu" and not devices.endswith(":"):
        return _tpu(rest, devices)
    if devices == "workers":
        return _workers(devices)
    listed = "; ".join(f"'{name}': {meaning}" for name, meaning in KNOWN.items())
    raise ConfigError(
        f"`devices` is one of {listed}. Here there are {_inventory()}. Received: devices={devices!r}",
    )


def _is_count(text):
    return re.fullmatch("[1-9][0-9]*", text) is not None


def _found(kind):
    import tensorflow as tf

    return tf.config.list_physical_devices(kind)


def _inventory():
    """How many devices of each kind this machine has, in words."""
    return ", ".join(f"{len(_found(kind))} {kind}" for kind in ("CPU", "GPU", "TPU"))


def _one(kind):
    """One device: TensorFlow's default strategy, under which Keras does what it does without any."""
    import tensorflow as tf

    if kind == "CPU" and _found("GPU"):
        return tf.distribute.OneDeviceStrategy("CPU:0")  # the default would be a GPU
    return tf.distribute.get_strategy()


def _cpus(count, devices):
    import tensorflow as tf

    if count == 1:
        return _one("CPU")
    physical = _found("CPU")[0]
    try:
        made = tf.config.get_logical_device_configuration(physical)
        if made is None or len(made) < count:
            tf.config.set_logical_device_configuration(physical, [tf.config.LogicalDeviceConfiguration()] * count)
    except RuntimeError:
        pass  # TensorFlow runs already: with how many devices, we shall see
    found = tf.config.list_logical_devices("CPU")
    if len(found) < count:
        raise ConfigError(
            f"TensorFlow was used already, with {len(found)} CPU device{'s' * (len(found) > 1)}, and cannot be given "
            f"more. Call kerastf.training.strategy({devices!r}) before anything else. Received: devices={devices!r}"
        )
    # Added up on one of them: the default joins groups that two strategies of one process cannot both have.
    adding = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)], cross_device_ops=adding)


def _gpus(count, devices):
    import tensorflow as tf

    found = tf.config.list_logical_devices("GPU")
    count = max(1, len(found)) if count is None else count
    if len(found) < count:
        raise ConfigError(f"There are not so many GPUs, but {_inventory()}. Received: devices={devices!r}")
    if count == 1:
        return _one("GPU")
    return tf.distribute.MirroredStrategy([f"GPU:{i}" for i in range(count)])


def _tpu(address, devices):
    import tensorflow as tf

    address = address or os.environ.get("TPU_NAME") or "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as e:  # OSError: the name cannot be looked up
        why = (str(e).strip() or type(e).__name__).split(". ")[0].splitlines()[0]
        raise ConfigError(
            f"No TPU answers at {address!r}: {why}. Here there are {_inventory()}. Received: devices={devices!r}"
        ) from e


def _number_of_workers():
    """How many processes TF_CONFIG names; 0 where there is none, or it cannot be read."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, AttributeError, TypeError):
        return 0


def _workers(devices):
    import tensorflow as tf

    known = os.environ.get("TF_CONFIG")
    if _number_of_workers() < 1:
        example = '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}'
        raise ConfigError(
            f"Several workers need the environment variable TF_CONFIG, in each its own index, such as {example}; it is "
            f"{known!r}. Received: devices={devices!r}"
        )
    gpus = bool(_found("GPU"))
    kinds = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.AUTO if gpus else kinds.RING)
    try:
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except (RuntimeError, ValueError, KeyError) as e:
        raise ConfigError(
            f"The workers cannot be joined: {e}. TF_CONFIG is {known!r}, and kerastf.training.strategy must be called "
            f"before TensorFlow is used. Received: devices={devices!r}"
        ) from e


def distribute(strategy, feed, *, start=0):
    """What `fit` takes under a strategy, from one description of the global batch of each step.

    With one device or several of this machine, that is the data set of whole batches, which TensorFlow splits among the
    replicas. Of several workers, each reads its own rows of every batch, and nothing is sharded a second time.

    Args:
        strategy: What `kerastf.training.strategy` gave.
        feed: An object with `dataset(start=0, shard=(i, n))`, or a function with these arguments: a `tf.data.Dataset`
            of the rows that shard `i` of `n` has in the global batch of each step, from step `start` on.
        start: The first step.

    Returns:
        A `tf.data.Dataset`, or for several workers what `strategy.distribute_datasets_from_function` makes. Give it to
        `fit` together with `steps_per_epoch`, as it does not know its length there.

    Raises:
        InputError: The feed is neither, its rows cannot be divided among the replicas, or a TPU is given shapes that
            are not known beforehand.

    Examples:
        >>> import tensorflow as tf
        >>> from kerastf import training
        >>> def batches(start=0, shard=(0, 1)):
        ...     index, count = shard
        ...     rows = tf.data.Dataset.range(8).batch(4, drop_remainder=True).skip(start)
        ...     return rows.map(lambda row: row[index * 4 // count : (index + 1) * 4 // count])
        >>> [row.tolist() for row in training.distribute(training.strategy("cpu"), batches).as_numpy_iterator()]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """
    import tensorflow as tf

    make = getattr(feed, "dataset", feed)
    if not callable(make):
        raise InputError(
            "`feed` must have dataset(start=0, shard=(i, n)), or be such a function. "
            f"Received: feed={feed!r} (of type {type(feed).__name__})"
        )
    pipelines = _number_of_pipelines(strategy)
    if pipelines == 1:
        whole = make(start=start, shard=(0, 1))
        _check_rows(whole, strategy.num_replicas_in_sync, strategy)
        return whole

    def of_worker(context):
        rows = make(start=start, shard=(context.input_pipeline_id, context.num_input_pipelines))
        parts = context.num_replicas_in_sync // context.num_input_pipelines
        _check_rows(rows, parts, strategy)
        rows = rows if parts == 1 else _split(rows, parts)
        off = tf.data.Options()
        off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return rows.with_options(off)

    return strategy.distribute_datasets_from_function(of_worker)


def distribute_once(strategy, feed):
    """What `evaluate` takes under a strategy: every row of a feed once, each worker its own rows, and how many steps.

    Args:
        strategy: What `kerastf.training.strategy` gave, or None for one device.
        feed: A `Feed` of `kerastf.data`.

    Returns:
        The data set, and its number of batches where `evaluate` must be told, else None.
    """
    if strategy is None or _number_of_pipelines(strategy) == 1:
        return feed.once(), None
    import tensorflow as tf

    def of_worker(context):
        off = tf.data.Options()
        off.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return feed.once(shard=(context.input_pipeline_id, context.num_input_pipelines)).with_options(off)

    steps = int(feed.once().cardinality())
    return strategy.distribute_datasets_from_function(of_worker), steps


def wait_for_all(strategy):
    """Of several workers, none goes on before all have come here."""
    if strategy is None or _number_of_pipelines(strategy) == 1:
        return
    import tensorflow as tf

    strategy.reduce("SUM", strategy.run(lambda: tf.constant(1.0)), axis=None)


def is_chief():
    """Whether this process is the one of its workers that writes files: the chief, or the first worker."""
    if _number_of_workers() < 2:
        return True
    known = json.loads(os.environ["TF_CONFIG"])
    task = known.get("task", {})
    if "chief" in known["cluster"]:
        return task.get("type") == "chief"
    return task.get("index") == 0


def _number_of_pipelines(strategy):
    """How many processes read data: one for each worker, and one for each host of a TPU."""
    import tensorflow as tf

    if _is_tpu(strategy):
        return strategy.extended.num_hosts
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        spec = strategy.cluster_resolver.cluster_spec()
        return max(1, sum(spec.num_tasks(job) for job in spec.jobs if job in ("chief", "worker")))
    return 1


def _is_tpu(strategy):
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.TPUStrategy)


def _check_rows(dataset, parts, strategy):
    """Refuses batches that cannot be divided evenly, where their size is known, and shapes that a TPU cannot have."""
    import tensorflow as tf

    for spec in tf.nest.flatten(dataset.element_spec):
        shape = tuple(spec.shape) if spec.shape.rank is not None else (None,)
        if _is_tpu(strategy) and None in shape:
            raise InputError(
                "A TPU needs shapes that are known beforehand: rows of one length, and drop_remainder=True. "
                f"Received: shape {shape}"
            )
        if shape and shape[0] is not None and shape[0] % parts:
            raise InputError(
                f"The rows of a batch must be a multiple of the {parts} replicas that share it. "
                f"Received: a batch of {shape[0]} rows"
            )


def _split(dataset, parts):
    """One element per replica of this worker, in place of one per worker."""
    import tensorflow as tf

    def divided(*batch):
        batch = batch if len(batch) > 1 else batch[0]
        return tf.data.Dataset.from_tensor_slices(
            tf.nest.map_structure(lambda x: tf.stack(tf.split(x, parts)), batch)  # (parts, B / parts, ...)
        )

    return dataset.flat_map(divided)
