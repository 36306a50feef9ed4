"""What is done differently in `fit` does what Keras and TensorFlow do."""

import concurrent.futures
import contextlib
import os
import re
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays
from keras import ops
from keras.src.backend.tensorflow import trainer
from tensorflow.python.eager import context

import kerastf
from kerastf import ahead, compat, fitting, tracing, versions
from kerastf.functional import activations
from kerastf.models.gpt import GPT


@pytest.mark.parametrize("optimizer", [
    keras.optimizers.Adam(0.01), keras.optimizers.AdamW(0.01, weight_decay=0.3),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 7), clipnorm=0.5, beta_1=0.8, epsilon=1e-5),
    keras.optimizers.AdamW(0.01, gradient_accumulation_steps=3),
    keras.optimizers.Adam(0.02, gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=4),
])  # fmt: skip
def test_adam_in_one_pass_takes_the_steps_of_keras(optimizer):
    starts, gradients = arrays(1, (4, 5), (5,)), [arrays(s, (4, 5), (5,)) for s in range(2, 8)]

    def train(context):
        own = type(optimizer).from_config(optimizer.get_config())
        variables = [keras.Variable(a) for a in starts]
        own.build(variables)
        with context(own):
            for step in gradients:
                own.apply_gradients([(ops.convert_to_tensor(g), v) for g, v in zip(step, variables, strict=True)])
        assert not any(name in vars(own) for name in ("_backend_update_step", "_apply_weight_decay"))
        return [ops.convert_to_numpy(v) for v in (*variables, *own.variables)]

    for a, b in zip(train(fitting.one_pass_adam), train(contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize(("half", "in_fit"), [(True, True), (False, True), (True, False)])
@pytest.mark.parametrize("sizes", [{}, {"NEAR": 10}, {"NEAR": 10, "HUGE": 25}], ids=["at once", "by rows", "huge"])
@pytest.mark.parametrize("optimizer", [
    keras.optimizers.Adam(0.01), keras.optimizers.AdamW(0.01, weight_decay=0.3),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 7), beta_1=0.8, epsilon=1e-5),
])  # fmt: skip
def test_adam_by_programs_takes_the_steps_of_keras(monkeypatch, optimizer, sizes, half, in_fit):
    made, plain = [], fitting._adam_program
    plain.cache_clear()
    for name, size in sizes.items():
        monkeypatch.setattr(fitting, name, size)
    monkeypatch.setattr(fitting, "_adam_program", lambda *given: made.append(given[0]) or plain(*given))
    monkeypatch.setattr(fitting, "MANY", 6)
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    starts = arrays(1, (5, 5), (5,), (2, 3))  # two rows at a time leave one
    given = [
        [tf.cast(g, "bfloat16" if half else "float32") for g in arrays(s, *(a.shape for a in starts))]
        for s in range(2, 8)
    ]

    def train(context):
        own = type(optimizer).from_config(optimizer.get_config())
        variables = [keras.Variable(a) for a in starts]
        own.build(variables)

        @tf.function(autograph=False)
        def step(*gradients):
            wide = [tf.cast(g, "float32") for g in gradients[:2]] + [tf.cast(gradients[2], "float32") * 1.0]
            own.apply_gradients(zip(wide, variables, strict=True))

        with context(own), tracing.fusing() if in_fit else contextlib.nullcontext():
            for gradients in given:
                step(*gradients)
        return [ops.convert_to_numpy(v) for v in (*variables, *own.variables)]

    for a, b in zip(train(fitting.one_pass_adam), train(contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-5, atol=1e-7)
    assert made == ([(5, 5), (2, 3)] if in_fit else [])  # of large matrices; the bias of five is small


@pytest.mark.parametrize("way", ["kernels", "programs", "compiled"])
def test_gradients_of_three_batches_gathered_train_like_one_batch(monkeypatch, way):
    made, plain = [], fitting._adam_program
    monkeypatch.setattr(fitting, "_adam_program", lambda *given: made.append(given[0]) or plain(*given))
    monkeypatch.setattr(fitting, "MANY", 8 if way == "programs" else 2**20)
    monkeypatch.setattr(tracing, "one_dnn", lambda: way == "programs")
    x = np.random.default_rng(0).integers(5, size=(12, 4))

    def train(batch_size, steps):
        keras.utils.set_random_seed(0)
        model = kerastf.create_model("gpt", vocab_size=5, max_length=4, dim=8, num_layers=1, num_heads=2, dropout=0.0)
        optimizer = keras.optimizers.AdamW(0.01, epsilon=1e-4, gradient_accumulation_steps=steps)
        model.compile(optimizer, jit_compile=way == "compiled")
        model.fit(x[:, :-1], x[:, 1:], batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
        assert int(optimizer.iterations) == 4
        return [ops.convert_to_numpy(w) for w in model.trainable_weights]

    for a, b in zip(train(2, 3), train(6, None), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert bool(made) == (way == "programs")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_step_that_fails_changes_no_weight(monkeypatch, dtype):
    monkeypatch.setattr(fitting, "MANY", 8)
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    small = {"vocab_size": 5, "max_length": 4, "dim": 8, "num_layers": 1, "num_heads": 2, "dtype": dtype}
    model = kerastf.create_model("gpt", **small)
    model.compile("adamw")
    good, bad = np.ones((2, 3), "int32"), np.full((2, 3), 7, "int32")
    model.fit(good, good, verbose=0)
    before = [ops.convert_to_numpy(w).copy() for w in model.weights]
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(tf.data.Dataset.from_tensors((good, bad)), shuffle=False, verbose=0)
    for kept, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), kept)


@pytest.mark.parametrize("feed", ["arrays", "generator", "dataset"])
def test_only_what_keras_feeds_goes_without_the_tuner(monkeypatch, feed):
    seen = []
    plain = trainer.TFEpochIterator._get_iterator
    monkeypatch.setattr(
        trainer.TFEpochIterator,
        "_get_iterator",
        lambda self: seen.append(self._distributed_dataset.options().autotune.enabled) or plain(self),
    )
    x = np.ones((6, 3), "int32")
    model = kerastf.create_model("gpt", vocab_size=5, max_length=4, dim=8, num_layers=1, num_heads=2)
    model.compile("adamw")
    given = {
        "arrays": {"x": x, "y": x, "batch_size": 2},
        "generator": {"x": ((x, x) for _ in range(3)), "steps_per_epoch": 3, "shuffle": False},
        "dataset": {"x": tf.data.Dataset.from_tensors((x, x)), "shuffle": False},
    }[feed]
    model.fit(**given, verbose=0)
    if feed == "arrays":
        model.evaluate(x, x, verbose=0)
        model.predict(x, verbose=0)
    assert set(seen) == {None if feed == "dataset" else False}
    assert len(seen) >= (3 if feed == "arrays" else 1)
    assert trainer.TFEpochIterator._get_iterator is not plain and trainer.TFEpochIterator.__name__ == "TFEpochIterator"


@pytest.mark.parametrize("family, options, shape", [
    ("gpt", {"vocab_size": 5, "max_length": 4, "dim": 8, "num_layers": 1, "num_heads": 2}, (6, 3)),
    ("word2vec", {"vocab_size": 9, "dim": 4, "head": "language_model"}, (6, 1)),
])  # fmt: skip
def test_fit_takes_its_arguments_in_the_order_of_keras(family, options, shape):
    x = np.ones(shape, "int32")
    model = kerastf.create_model(family, **options)
    model.compile("adam", steps_per_execution=1)
    history = model.fit(x, x, 2, 4, 0)
    assert len(history.epoch) == 4 and int(model.optimizer.iterations) == 4 * 3


def test_large_rows_are_fused_in_fit_alone(monkeypatch):
    made, plain = [], activations._programs
    monkeypatch.setattr(activations, "_programs", lambda function: made.append(function.__name__) or plain(function))
    monkeypatch.setattr(tracing, "LARGE", 4 * 32)  # four tokens of the feed-forward's width
    x = np.arange(24, dtype="int32").reshape(6, 4) % 5

    def train(x):
        made.clear()
        keras.utils.set_random_seed(1)
        model = kerastf.create_model("gpt", vocab_size=5, max_length=4, dim=8, num_layers=1, num_heads=2)
        model.compile("adamw")
        feed = (
            {"x": x, "shuffle": False, "steps_per_epoch": 1}
            if isinstance(x, tf.data.Dataset)
            else {"x": x, "y": x, "batch_size": 4}
        )
        return model, model.fit(**feed, verbose=0).history["loss"]

    model, losses = train(x)
    assert set(made) == {"_gelu_tanh"}
    made.clear()
    model(x), model.evaluate(x, x, verbose=0), model.predict(x, verbose=0), model.generate([[1]], max_length=4)
    assert not made
    assert not (train(x[:, :3]) and made), "rows that are too small"
    with compat.switched(compat._compiling, True):
        assert not (train(x) and made), "a step that is one program already"
    unknown = tf.data.Dataset.from_generator(
        lambda: iter([(x, x)]), output_signature=2 * (tf.TensorSpec((None, None), "int32"),)
    )
    assert not (train(unknown.repeat()) and made), "each length would be compiled"
    monkeypatch.setattr(tracing, "NARROW", 31)
    for one_dnn in (False, True):  # without it so many channels are too many
        monkeypatch.setattr(tracing, "one_dnn", lambda answer=one_dnn: answer)
        np.testing.assert_allclose(train(x)[1], losses, rtol=1e-5)
        assert bool(made) == one_dnn


def feeds():
    """By name, twenty rows in batches of eight: the last one has four."""
    rows = np.arange(160).reshape(20, 8) % 11

    def batches():
        for start in range(0, 20, 8):
            yield rows[start : start + 8], rows[start : start + 8]

    def dataset():
        spec = tf.TensorSpec((None, 8), "int32")
        return tf.data.Dataset.from_generator(batches, output_signature=(spec, spec))  # of unknown length

    return {
        "arrays": lambda: {"x": rows, "y": rows, "batch_size": 8, "shuffle": False},
        "generator": lambda: {"x": batches(), "shuffle": False},
        "dataset": lambda: {"x": dataset(), "shuffle": False},
    }


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # so ends what does not say its length
@pytest.mark.parametrize("feed", feeds().values(), ids=feeds())
def test_a_step_in_one_graph_is_the_step_of_keras(monkeypatch, feed):
    def trained(one_graph):
        if not one_graph:
            monkeypatch.setattr(fitting, "one_graph", lambda model, step, nested: nested)
        keras.utils.set_random_seed(3)
        model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=2, num_heads=2, max_length=8)
        model.compile(optimizer=keras.optimizers.AdamW(0.01))
        seen = [model.fit(**feed(), verbose=0).history]
        steps = int(model.optimizer.iterations)
        options = {k: v for k, v in feed().items() if k != "shuffle"}
        seen.append(model.evaluate(**options, verbose=0, return_dict=True))
        monkeypatch.undo()
        return seen, [keras.ops.convert_to_numpy(w) for w in model.weights], steps

    (seen, weights, steps), (seen_by_keras, weights_of_keras, _) = trained(True), trained(False)
    assert steps == 3  # Keras counts a fourth where the data end without notice
    assert [s.keys() for s in seen] == [s.keys() for s in seen_by_keras]
    for a, b in zip(seen, seen_by_keras, strict=True):
        for name in a:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5)
    for a, b in zip(weights, weights_of_keras, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("setting", [{"jit_compile": True}, {"run_eagerly": True}, {"steps_per_execution": 2}], ids=str)
def test_what_needs_two_graphs_has_them(setting):
    model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile(**setting)
    nested = object()
    assert fitting.one_graph(model, model.train_step, nested) is nested
    model.compile()
    assert fitting.one_graph(model, model.train_step, nested) is not nested


class Seen(keras.callbacks.Callback):
    """Whether the optimizer has variables, before and after a training, and what they hold after the first step."""

    def on_train_begin(self, logs=None):
        self.before = self.model.optimizer.built

    def on_train_batch_end(self, batch, logs=None):
        self.after = [ops.convert_to_numpy(v) for v in self.model.optimizer.variables]


def with_a_slow_start(monkeypatch, optimizer, setting):
    """What `Seen` saw of a step, where the other core takes its time; and how many variables were left to it."""
    left, plain = [], ahead.meanwhile

    def meanwhile(functions):
        left.extend(functions)
        return plain([lambda: time.sleep(1), *functions])

    monkeypatch.setattr(ahead, "meanwhile", meanwhile)
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=2, num_heads=2, max_length=8, dropout=0.0)
    model.compile(optimizer=optimizer, **setting)
    x, seen = np.arange(16).reshape(2, 8) % 11, Seen()
    model.fit(x, x, callbacks=[seen], verbose=0)
    return seen, len(left), model


@pytest.mark.parametrize("make", [
    keras.optimizers.Adam, lambda: keras.optimizers.AdamW(use_ema=True),
    lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW()),
])  # fmt: skip
def test_a_step_waits_for_the_zeros_of_its_optimizer(monkeypatch, make):
    seen, left, _ = with_a_slow_start(monkeypatch, make(), {})
    assert not seen.before and left > 20
    plain, none, _ = with_a_slow_start(monkeypatch, make(), {"steps_per_execution": 2})
    assert plain.before and none == 0
    assert len(seen.after) == len(plain.after) > left
    for a, b in zip(seen.after, plain.after, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)


def test_other_optimizers_have_their_zeros_at_once(monkeypatch):
    seen, left, _ = with_a_slow_start(monkeypatch, keras.optimizers.SGD(momentum=0.9), {})
    assert not seen.before and left == 0 and len(seen.after) > 20


def test_zeros_come_where_a_step_cannot_be_traced(monkeypatch):
    class Wrong(GPT):
        def train_step(self, data):
            raise ZeroDivisionError

    model = Wrong(vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile(optimizer="adam")
    x, plain = np.zeros((2, 8), "int32"), ahead.meanwhile
    monkeypatch.setattr(ahead, "meanwhile", lambda functions: plain([lambda: time.sleep(1), *functions]))
    with pytest.raises(ZeroDivisionError):
        model.fit(x, x, verbose=0)
    assert len(model.optimizer.variables) > 20
    for v in model.optimizer.variables[2:]:
        np.testing.assert_array_equal(ops.convert_to_numpy(v), np.zeros(v.shape))


def test_a_lack_of_memory_for_the_optimizer_is_told(monkeypatch):
    def fails():
        raise MemoryError("no room")

    plain = ahead.meanwhile
    monkeypatch.setattr(ahead, "meanwhile", lambda functions: plain([*functions, fails]))
    model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile(optimizer="adam")
    with pytest.raises(MemoryError, match="no room"):
        model.fit(np.zeros((2, 8), "int32"), np.zeros((2, 8), "int32"), verbose=0)


def test_who_interrupts_the_trace_does_not_interrupt_the_zeros(monkeypatch):
    class Interrupted:
        asked = 0

        def result(self):
            self.asked += 1
            if self.asked == 1:
                raise KeyboardInterrupt

    future = Interrupted()
    monkeypatch.setattr(ahead, "meanwhile", lambda functions: [f() for f in functions] and future)
    model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile(optimizer="adam")
    with pytest.raises(KeyboardInterrupt):
        model.fit(np.zeros((2, 8), "int32"), np.zeros((2, 8), "int32"), verbose=0)
    assert future.asked == 2


def test_an_evaluation_makes_no_optimizer():
    model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile(optimizer="adam")
    model.evaluate(np.zeros((2, 8), "int32"), np.zeros((2, 8), "int32"), verbose=0)
    assert not model.optimizer.built


OPTIMIZED = """
import sys
import numpy as np, tensorflow as tf
from tensorflow.python.eager import context
import kerastf

if sys.argv[1:]:
    tf.config.optimizer.set_experimental_options({name: True for name in sys.argv[1:]})
before = context.context().function_call_options
model = kerastf.create_model("gpt", vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
model.compile()
x = np.zeros((6, 8), "int32")
model.fit(x, x, epochs=2, verbose=0)
assert context.context().function_call_options is before
"""


@pytest.mark.parametrize("chosen", [[], ["layout_optimizer"]], ids=str)
def test_the_graph_optimizer_goes_through_a_step_once(chosen):
    told = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "meta_optimizer=1"}
    ran = subprocess.run(
        [sys.executable, "-c", OPTIMIZED, *chosen], capture_output=True, text=True, check=True,
        env={**os.environ, **told},
    )  # fmt: skip
    passes = [
        re.findall(r"\] (\w+): Graph size", item)
        for item in ran.stderr.split("Starting optimization for grappler item")
    ]
    found = [names for names in passes if "constant_folding" in names]  # a step, its layer, and the layer's gradient
    assert len(found) == 3
    for names in found:
        assert names.count("constant_folding") == names.count("remapper") == 1
        assert "memory_optimizer" not in names and ("layout" in names) == bool(chosen)


def test_on_an_accelerator_the_graph_optimizer_does_what_it_always_does(monkeypatch):
    monkeypatch.setattr(tracing, "on_accelerator", lambda: True)
    before = context.context().function_call_options
    with tracing.fewer_passes():
        assert context.context().function_call_options is before


def test_a_step_of_the_users_own_is_taken():
    class Own(GPT):
        def train_step(self, data):
            return {**super().train_step(data), "rows": ops.shape(data[0])[0]}

    model = Own(vocab_size=11, dim=8, num_layers=1, num_heads=2, max_length=8)
    model.compile()
    x = np.zeros((6, 8), "int32")
    assert model.fit(x, x, batch_size=6, verbose=0).history["rows"] == [6]


def test_with_other_versions_a_model_trains_the_same_without_shortcuts(monkeypatch):
    x = np.arange(64).reshape(8, 8) % 9
    found = []
    for known in (True, False):
        versions.tried.cache_clear()
        if not known:
            monkeypatch.setattr(versions, "TRIED", {"keras": "3.0", "tensorflow": "2.0"})
        with contextlib.nullcontext() if known else pytest.warns(UserWarning, match="They are left out"):
            keras.utils.set_random_seed(1)
            model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=2, num_heads=2)
            model.compile(keras.optimizers.AdamW(0.01))
            model.fit(x, x, epochs=2, batch_size=4, verbose=0, shuffle=False)
        assert fitting.in_one_graph(model) == (known and keras.backend.backend() == "tensorflow")
        found.append([keras.ops.convert_to_numpy(v) for v in model.trainable_variables])
    versions.tried.cache_clear()
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_two_threads_may_fit_and_leave_keras_as_it_was():
    plain, met, x = trainer.TFEpochIterator, threading.Barrier(2, timeout=60), np.arange(64).reshape(8, 8) % 9

    class Meet(keras.callbacks.Callback):
        def __init__(self, first):
            super().__init__()
            self.first = first

        def on_train_begin(self, logs=None):
            met.wait()

        def on_train_end(self, logs=None):
            met.wait()  # both are in `fit`; the one that came first leaves first
            if not self.first:
                time.sleep(0.5)

    def train(first):
        model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=1, num_heads=2)
        model.compile("adam")
        model.fit(x, x, verbose=0, callbacks=[Meet(first)])

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(train, (True, False)))
    assert trainer.TFEpochIterator is plain
