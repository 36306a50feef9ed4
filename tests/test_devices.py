"""Several devices and workers give the weights of one. What must come before TensorFlow is used runs in processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerastf
from kerastf import replicas, training
from kerastf.errors import ConfigError, InputError
from kerastf.supervisor import supervise

HERE = Path(__file__).parent / "replicas"
sys.path.insert(0, str(HERE))
import cases  # noqa: E402

INVENTORY = ", ".join(f"{len(tf.config.list_physical_devices(k))} {k}" for k in ("CPU", "GPU", "TPU"))
FAMILIES = tuple(cases.FAMILIES)
CLOSE = 1e-5


def run(script, *arguments, **environment):
    """What a script of the folder `replicas` printed after the word "found"."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments], env={**os.environ, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    found = {}
    for line in done.stdout.splitlines():
        if line.startswith("found "):
            found |= json.loads(line.removeprefix("found "))
    return found


# --- several devices of one machine


@pytest.mark.slow
def test_two_replicas_train_as_one_device():
    found = run("mirrored.py", "losses", "seeds", "gpt:2", "added:2")
    assert all(abs(d) < 1e-6 for d in found["losses"]["off"].values()), found["losses"]
    assert abs(found["losses"]["off with a local mean"]) > 0.1
    # Should Keras begin to draw other numbers on every replica, the last but one is False, and our seeds can go.
    assert all(found["seeds"].values()), found["seeds"]
    for name in ("gpt:2", "added:2"):
        assert found[name]["distance"] < CLOSE < found[name]["moved"]
        assert abs(found[name]["loss"]) < CLOSE


@pytest.mark.slow
def test_mistakes_of_replicas_are_found():
    found = run("mirrored.py", "planted")["planted"]
    print(found)
    assert found["none"] < CLOSE
    assert found["local mean"] > 100 * CLOSE
    assert found["added losses of another replica"] > 100 * CLOSE
    assert found["clipped before adding up"] > 100 * CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_two_and_four_replicas_after_50_steps(family):
    for count in (2, 4):
        found = run("mirrored.py", f"{family}:{count}")[f"{family}:{count}"]
        print(family, count, "replicas:", found)
        assert found["distance"] < CLOSE < found["moved"]
        assert abs(found["loss"]) < CLOSE


# --- several workers


def train_with_workers(folder, family, steps, *options):
    status = supervise(
        [sys.executable, str(HERE / "worker.py"), str(folder), family, str(steps), *options],
        workers=2, restarts=0, write=print,
    )  # fmt: skip
    assert status == 0
    found = json.loads((folder / "found_0.json").read_text())
    return found, [dict(np.load(folder / f"weights_{i}.npz")) for i in range(2)]


def test_two_workers_train_as_one_device(tmp_path):
    found, (first, second) = train_with_workers(tmp_path, "gpt", cases.STEPS, "--plain")
    model, right, loss, _ = cases.train(training.strategy("cpu"), "gpt")
    print("two workers:", cases.distance(right, first))
    assert found["replicas"] == 2
    assert cases.distance(first, second) == 0
    assert cases.distance(right, first) < CLOSE < found["moved"]
    assert abs(found["loss"] - loss) < CLOSE
    evaluated = model.evaluate(cases.case("gpt", steps=3)[1].dataset(), verbose=0, return_dict=True)
    assert found["evaluated"] == pytest.approx(evaluated, abs=CLOSE)
    # When Keras has mended these, kerastf/replicas.py can do without: `specs` and `_reduce`.
    assert "PerReplica" in found["plain"]
    assert "Invalid reduction dimension 0" in found["plain but built"]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_two_workers_after_50_steps(family, tmp_path):
    found, (first, _) = train_with_workers(tmp_path, family, cases.STEPS)
    right = cases.train(training.strategy("cpu"), family)[1]
    print(family, "two workers:", cases.distance(right, first))
    assert cases.distance(right, first) < CLOSE < found["moved"]


# --- TPU: as far as XLA on a CPU can show


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_compiled_by_xla_with_static_shapes(family):
    make, feed = cases.case(family, steps=10)
    data = feed.dataset()
    assert all(None not in spec.shape for spec in tf.nest.flatten(data.element_spec))
    found = []
    for jit in (False, True):
        model = make()
        model.compile(keras.optimizers.AdamW(1e-3, epsilon=1e-6), jit_compile=jit)
        model.fit(data, verbose=0, shuffle=False)
        found.append(cases.weights(model))
    assert cases.distance(*found) < CLOSE


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


# --- rows that are read twice, on one device


def test_a_row_that_is_read_twice_is_one_row_of_the_norm():
    model = kerastf.create_model(
        "gpt",
        vocab_size=5,
        max_length=4,
        dim=8,
        num_layers=1,
        num_heads=2,
        head={"name": "language_model", "tied": False},
    )
    x = np.zeros((2, 4), "int32")
    model.compile(keras.optimizers.SGD(1.0, global_clipnorm=1e-3))
    before = cases.weights(model)
    model.fit(x, x + 1, verbose=0)
    step = [cases.weights(model)[p] - before[p] for p in before]
    assert np.sqrt(sum(np.square(s.astype("float64")).sum() for s in step)) == pytest.approx(1e-3, rel=1e-3)


def test_a_row_that_is_read_twice_has_one_second_moment():
    # Adam's step is the rate where the gradient is always the same; squared row by row it would be another.
    rows = tf.IndexedSlices(tf.constant([[1.0], [-0.5]]), tf.constant([0, 0]), tf.constant([3, 1]))
    found = []
    for gradient in (lambda v: replicas._whole(rows, v), lambda v: rows):
        variable, optimizer = keras.Variable(np.zeros((3, 1), "float32")), keras.optimizers.Adam(1.0)
        optimizer.apply([gradient(variable)], [variable])
        found.append(keras.ops.convert_to_numpy(variable).ravel().tolist())
    assert found[0] == pytest.approx([-1, 0, 0], abs=1e-4)  # and the epsilon
    assert found[1][0] > -0.9  # when Keras has mended it, `replicas._whole` can go


# --- the supervisor


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(
        "import json, os, signal, sys, time\nme = json.loads(os.environ['TF_CONFIG'])['task']['index']\n" + text
    )
    return [sys.executable, str(path)]


def test_a_worker_that_dies_ends_the_others_and_all_start_again(tmp_path):
    lines, ids = [], tmp_path / "ids"
    ids.mkdir()
    text = f"""
open({str(ids)!r} + f"/{{os.getpid()}}", "w")
print("attempt", flush=True)
if me == 1:
    print("of the other", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(100)
"""
    start = time.monotonic()
    assert supervise(script(tmp_path, text), workers=2, restarts=2, grace=5, write=lines.append) == 128 + 9
    assert time.monotonic() - start < 20
    found = [line for line in lines if "attempt" not in line]
    assert found == [
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] all workers start again (1 of 2)",
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] all workers start again (2 of 2)",
        "[worker 1] of the other", "[supervisor] worker 1 was ended by SIGKILL",
        "[supervisor] given up after 2 restarts within 3600 seconds",
    ]  # fmt: skip
    assert not [p.name for p in ids.iterdir() if Path("/proc", p.name).exists()]  # nobody is left


def test_a_worker_that_hangs_is_noticed(tmp_path):
    lines = []
    text = """
from kerastf.supervisor import HEARTBEAT
from pathlib import Path
for _ in range(100 if me == 0 else 3):
    Path(os.environ[HEARTBEAT]).touch()
    time.sleep(0.1)
time.sleep(100 if me else 0)
""".replace("from kerastf.supervisor import HEARTBEAT", "HEARTBEAT = 'KERASTF_HEARTBEAT'")
    assert supervise(script(tmp_path, text), restarts=0, silence=2.0, grace=1, write=lines.append) == 1
    assert lines[0] == "[supervisor] worker 1 gave no sign of life for 2 seconds"


def test_ctrl_c_is_passed_on(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    text = f"""
try:
    open({str(marks)!r} + f"/ready{{me}}", "w")
    time.sleep(100)
except KeyboardInterrupt:
    open({str(marks)!r} + f"/interrupted{{me}}", "w")
    sys.exit(3)
"""
    whole = [sys.executable, "-m", "kerastf.supervisor", "--workers", "2", "--", *script(tmp_path, text)]
    process = subprocess.Popen(whole)
    try:
        limit = time.monotonic() + 240
        while len(list(marks.glob("ready*"))) < 2 and time.monotonic() < limit:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
    assert {p.name for p in marks.iterdir()} == {"ready0", "ready1", "interrupted0", "interrupted1"}


def test_what_cannot_be_supervised():
    for given, message in (
        (
            {"command": "python train.py"},
            "`command` is a list of strings, the program first. Received: command='python train.py'",
        ),
        ({"command": ["x"], "workers": 0}, "`workers` must be at least 1. Received: workers=0"),
        ({"command": ["x"], "restarts": -1}, "`restarts` must be at least 0. Received: restarts=-1"),
    ):
        with pytest.raises(ConfigError) as e:
            supervise(**given)
        assert str(e.value) == message


@pytest.mark.slow
def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    found = []
    for name, arguments in (("undisturbed", ()), ("killed", ("1", "10"))):
        folder, lines = tmp_path / name, []
        folder.mkdir()
        command = [sys.executable, str(HERE / "resuming.py"), str(folder), "18", *arguments]
        assert supervise(command, workers=2, restarts=1, silence=300, write=lines.append) == 0
        starts = [line for line in lines if line.startswith("[worker 0] starts at")]
        assert starts == ["[worker 0] starts at step 0"] + ["[worker 0] starts at step 8"] * bool(arguments)
        found.append([dict(np.load(folder / str(i) / "18.npz")) for i in range(2)])
    for undisturbed, killed in zip(*found, strict=True):
        for name, array in undisturbed.items():
            np.testing.assert_array_equal(array, killed[name])


# --- layouts


@pytest.mark.peers
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_spread_over_devices_trains_as_on_one(family):
    found = run("sharded.py", "2", family, KERAS_BACKEND="jax", XLA_FLAGS="--xla_force_host_platform_device_count=4")
    found = found[family]
    print(family, "spread over devices:", found["distance"])
    assert found["distance"] < CLOSE < found["moved"]
    for path, (whole, part) in found["cut"].items():
        assert np.prod(whole) == 2 * np.prod(part), path
    weights = set(found["cut"]) & set(found["sizes"])
    parts = (
        "qkv/kernel",
        "output/kernel",
        "expand/kernel",
        "contract/kernel",
        *(["embedding/matrix"] if family != "vit" else []),
    )
    assert all(any(w.endswith(p) for w in weights) for p in parts)
    assert len(found["cut"]) == 3 * len(weights)  # the optimizer's two moments are cut as their weight is
    cut = sum(found["sizes"][w] for w in weights) / sum(found["sizes"].values())
    assert cut > 0.7  # small as they are, most of their weights are cut


def test_layouts_are_of_jax():
    with pytest.raises(ConfigError) as e:
        training.layout("gpt.nano", vocab_size=9)
    assert str(e.value) == (
        "Keras spreads weights over devices with JAX only: set KERAS_BACKEND=jax before keras is imported. "
        "Received: backend 'tensorflow'"
    )
