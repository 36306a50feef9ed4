"""Which devices there are to train on, how they are given their data, and what is said where that cannot be."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicas import cases

from kerastf import training
from kerastf.errors import ConfigError, InputError

INVENTORY = ", ".join(f"{len(tf.config.list_physical_devices(k))} {k}" for k in ("CPU", "GPU", "TPU"))


# --- which devices


@pytest.mark.parametrize("devices", ["four", "cpu:0", "cpu:x", "gpu:-1", "tpu:", None, 4])
def test_unknown_devices(devices):
    with pytest.raises(ConfigError) as e:
        training.strategy(devices)
    assert str(e.value) == (
        "`devices` is one of 'auto': several workers where TF_CONFIG names them, else all GPUs, else one device; "
        "'cpu': one CPU device; 'cpu:N': N logical CPU devices of this machine; 'gpu': all GPUs of this machine; "
        "'gpu:N': the first N GPUs; 'tpu': the TPU of this machine, or the one that TPU_NAME names; 'tpu:ADDRESS': the "
        "TPU of that name or address; 'workers': the processes that TF_CONFIG names. "
        f"Here there are {INVENTORY}. Received: devices={devices!r}"
    )


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    tf.constant(0)  # TensorFlow is used
    expected = {
        "gpu:99": f"There are not so many GPUs, but {INVENTORY}. Received: devices='gpu:99'",
        "cpu:3": "TensorFlow was used already, with 1 CPU device, and cannot be given more. Call "
        "kerastf.training.strategy('cpu:3') before anything else. Received: devices='cpu:3'",
        "tpu": "No TPU answers at 'local': TPUs not found in the cluster. "
        f"Here there are {INVENTORY}. Received: devices='tpu'",
        "workers": "Several workers need the environment variable TF_CONFIG, in each its own index, such as "
        '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, "task": {"type": "worker", "index": 0}}; it is None. '
        "Received: devices='workers'",
    }
    for devices, message in expected.items():
        with pytest.raises(ConfigError) as e:
            training.strategy(devices)
        assert str(e.value) == message


def test_strategies_are_tensorflows(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ConfigError) as e:
        training.strategy("auto")
    assert str(e.value) == (
        "Strategies are TensorFlow's. With KERAS_BACKEND=jax, use kerastf.training.layout, which shards a model over "
        "devices; the backend is 'jax'. Received: devices='auto'"
    )


def test_layouts_are_of_jax():
    with pytest.raises(ConfigError) as e:
        training.layout("gpt.nano", vocab_size=9)
    assert str(e.value) == (
        "Keras spreads weights over devices with JAX only: set KERAS_BACKEND=jax before keras is imported. "
        "Received: backend 'tensorflow'"
    )


def test_the_way_to_a_tpu(monkeypatch):
    calls = []
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: calls.append(tpu) or tpu)
    for owner, name in (
        (tf.config, "experimental_connect_to_cluster"), (tf.tpu.experimental, "initialize_tpu_system"),
        (tf.distribute, "TPUStrategy"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, lambda resolver, name=name: calls.append((name, resolver)) or name)
    assert training.strategy("tpu:grpc://10.0.0.2:8470") == "TPUStrategy"
    address = "grpc://10.0.0.2:8470"
    steps = ["experimental_connect_to_cluster", "initialize_tpu_system", "TPUStrategy"]
    assert calls == [address, *[(step, address) for step in steps]]
    calls.clear()
    assert training.strategy("tpu") == "TPUStrategy"
    assert calls == ["local", *[(step, "local") for step in steps[1:]]]  # of this machine: nothing to connect to


# --- data


def test_one_device_reads_whole_batches():
    feed = cases.case("gpt", steps=3)[1]
    found = list(training.distribute(training.strategy("cpu"), feed, start=1).as_numpy_iterator())
    assert len(found) == 2
    np.testing.assert_array_equal(found[0][0], feed.batches[1][0])
    assert len(list(training.distribute(training.strategy("cpu"), feed.dataset))) == 3  # a function does, too


def test_rows_of_a_worker_are_split_among_its_replicas():
    from kerastf.training.devices import _split

    rows = tf.data.Dataset.from_tensors(({"a": np.arange(6).reshape(6, 1)}, np.arange(6)))
    found = [(x["a"].ravel().tolist(), y.tolist()) for x, y in _split(rows, 3).as_numpy_iterator()]
    assert found == [([0, 1], [0, 1]), ([2, 3], [2, 3]), ([4, 5], [4, 5])]
    assert _split(rows, 3).element_spec[0]["a"].shape == (2, 1)


def test_data_that_cannot_be_divided():
    from kerastf.training.devices import _check_rows

    with pytest.raises(InputError) as e:
        training.distribute(training.strategy("cpu"), [1, 2])
    assert str(e.value) == (
        "`feed` must have dataset(start=0, shard=(i, n)), or be such a function. Received: feed=[1, 2] (of type list)"
    )
    with pytest.raises(InputError) as e:
        _check_rows(tf.data.Dataset.range(10).batch(5, drop_remainder=True), 2, None)
    assert str(e.value) == (
        "The rows of a batch must be a multiple of the 2 replicas that share it. Received: a batch of 5 rows"
    )


def test_a_tpu_wants_static_shapes(monkeypatch):
    monkeypatch.setattr("kerastf.training.devices._is_tpu", lambda strategy: True)
    from kerastf.training.devices import _check_rows

    with pytest.raises(InputError) as e:
        _check_rows(tf.data.Dataset.range(10).batch(5), 2, None)
    assert str(e.value) == (
        "A TPU needs shapes that are known beforehand: rows of one length, and drop_remainder=True. Received: shape (None,)"
    )
