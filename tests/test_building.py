"""What is built quickly is what Keras would have built."""

import contextlib
import threading

import keras
import numpy as np
import pytest
from trees import tracked

import kerastf
from kerastf import building, compat

SMALL = {"vocab_size": 11, "dim": 8, "num_layers": 2, "num_heads": 2, "max_length": 8, "dropout": 0.1}
tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="nothing changes elsewhere")


def made(monkeypatch, quickly, build):
    if not quickly:
        monkeypatch.setattr(building, "quickly", contextlib.nullcontext)
    keras.utils.set_random_seed(1)
    keras.backend.clear_session(free_memory=False)
    model = build()
    monkeypatch.undo()
    return model


def trained(model):
    """After a step, with all that `fit` makes."""
    model.compile(optimizer="adam")
    x = np.arange(16).reshape(2, 8) % 11
    model.fit(x, x, batch_size=2, verbose=0)
    return model


BUILDS = {
    "gpt": lambda: trained(kerastf.create_model("gpt", **SMALL)),
    "seq2seq": lambda: kerastf.create_model("seq2seq", source_vocab_size=11, vocab_size=13, dim=8),
    "vit": lambda: kerastf.create_model(
        "vit", image_size=8, patch_size=4, dim=8, num_layers=1, num_heads=2, num_classes=3
    ),
}


@tensorflow
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_the_same_comes_out(monkeypatch, build):
    quick, plain = (made(monkeypatch, q, build) for q in (True, False))
    assert [v.path for v in quick.variables] == [v.path for v in plain.variables]
    assert tracked(quick) == tracked(plain)
    assert quick.get_config() == plain.get_config()
    if quick.compiled:
        assert [v.path for v in quick.optimizer.variables] == [v.path for v in plain.optimizer.variables]
    for a, b in zip(quick.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(a), keras.ops.convert_to_numpy(b))


class Holder(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.number, self.word, self.nothing = 1, "a", None
        self.inner = keras.layers.Dense(2)
        self.several = [keras.layers.Dense(3)]
        self.late = []
        self.weight = self.add_weight(shape=(2,), name="weight")


def test_what_holds_weights_is_found():
    with building.quickly():
        held = Holder()
        held.late.append(keras.layers.Dense(4))
        held.inner.build((None, 2))
    assert [part.units for part in held._layers] == [2, 3, 4]
    assert (held.number, held.word, held.nothing) == (1, "a", None)
    assert len(held.weights) == 3
    held.inner = None  # as with Keras, what was tracked stays so
    assert len(held._layers) == 3


@tensorflow
def test_keras_is_as_it_was():
    def assign():
        return keras.layers.Layer.__setattr__

    before = assign()
    with building.quickly():
        assert assign() is not before
        with building.quickly():
            pass
        assert assign() is not before
    assert assign() is before
    with pytest.raises(ZeroDivisionError), building.quickly():
        _ = 1 / 0
    assert assign() is before


@tensorflow
def test_two_threads_may_build():
    before = keras.layers.Layer.__setattr__
    entered, leave = threading.Event(), threading.Event()

    def other():
        with building.quickly():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with building.quickly():
        thread.start()
        assert entered.wait(60)
    assert keras.layers.Layer.__setattr__ is not before  # the other one is still there
    leave.set()
    thread.join()
    assert keras.layers.Layer.__setattr__ is before


@tensorflow
def test_variables_may_be_filled_later():
    left = []
    with building.quickly(left):
        made = [
            keras.Variable("ones", shape=(3, 5), dtype="float32", trainable=t, name="made") for t in (True, False) * 3
        ]
        given = [keras.Variable(np.full((3, 5), i, "float32")) for i in range(2)]
    assert len(left) == 4  # the first of a kind is a pattern
    for variable, value in zip(given, (0, 1), strict=True):
        np.testing.assert_array_equal(variable, np.full((3, 5), value))
    assert [v.shape for v in made] == [(3, 5)] * 6 and [v.trainable for v in made] == [True, False] * 3
    assert made[-1].numpy().shape == (0,)  # so it is for TensorFlow
    for fill in left:
        fill()
    for number, variable in enumerate(made):
        np.testing.assert_array_equal(variable, np.ones((3, 5)))
        variable.assign(np.full((3, 5), number, "float32"))
    assert [float(v[0, 0]) for v in made] == [*range(6)]


@tensorflow
def test_variables_are_one_kernel():
    with building.quickly():
        first, second = (keras.layers.Dense(2, name=n) for n in ("first", "second"))
        first.build((None, 3))
        second.build((None, 3))
    assert first.kernel.value.name == second.kernel.value.name == "variable:0"
    assert (first.kernel.path, second.kernel.path) == ("first/kernel", "second/kernel")
    first.kernel.assign(keras.ops.ones((3, 2)))
    second.kernel.assign(keras.ops.zeros((3, 2)))
    assert float(keras.ops.sum(first.kernel)) == 6 and float(keras.ops.sum(second.kernel)) == 0


def test_another_thread_draws_its_own_numbers():
    """While one thread fills variables from a file, a layer of another begins as it always does."""
    whole, made = keras.Variable._initialize_with_initializer, []

    def build():
        layer = keras.layers.Dense(3, kernel_initializer="ones")
        layer.build((None, 2))
        made.append(np.asarray(layer.kernel))

    with compat.initialised_by(lambda path, shape: np.full(shape, 7, "float32")):
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()
        build()
    build()
    np.testing.assert_array_equal(made, np.stack([np.full((2, 3), n) for n in (1, 7, 1)]))
    assert keras.Variable._initialize_with_initializer is whole


def test_blocks_of_two_threads_may_end_in_any_order():
    whole, inside, leave, made = keras.Variable._initialize_with_initializer, threading.Event(), threading.Event(), []

    def other():
        with compat.initialised_by(lambda path, shape: np.full(shape, 2, "float32")):
            inside.set()
            leave.wait(30)
            made.append(keras.Variable(keras.initializers.Zeros(), shape=(1,)))

    thread = threading.Thread(target=other)
    with compat.initialised_by(lambda path, shape: None):
        thread.start()
        inside.wait(30)
    leave.set()
    thread.join()
    assert float(made[0][0]) == 2 and keras.Variable._initialize_with_initializer is whole


def test_what_fails_without_allocation_leaves_nothing_to_fill():
    from keras.src.backend.common import global_state

    before = list(global_state.get_global_attribute("uninitialized_variables", []))
    with pytest.raises(ValueError, match="halfway"), compat.without_allocation():
        keras.layers.Dense(3).build((None, 2))
        raise ValueError("halfway")
    assert global_state.get_global_attribute("uninitialized_variables", []) == before
