"""The backends' own kernels do what `keras.ops` and Keras's optimizers do."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays
from keras import ops
from keras.src.backend.tensorflow import trainer

import kerastf
from kerastf import kernels


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = kernels.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_products_by_halves(monkeypatch, rows, turned):
    monkeypatch.setattr(kernels, "SMALL", 0)
    prompt, token, matrix = arrays(0, (rows, 4, 6), (rows, 1, 6), (6, 5))
    variable, store = keras.Variable(matrix.T if turned else matrix), {}
    for x, making in ((prompt, True), (token, False)):
        with kernels.halves(store, making=making):
            y = kernels.product_of_weights(ops.array(x), variable, transpose_b=turned)
        np.testing.assert_allclose(y, np.einsum("btc,cn->btn", x, matrix), atol=1e-5)
    parts, axis = store[id(variable)]
    assert sorted(part.shape[axis] for part in parts) == [2, 3]
    other = keras.Variable(np.eye(6))
    with kernels.halves(store, making=False):  # not met in the prompt, so nothing is cut within the loop
        np.testing.assert_allclose(kernels.product_of_weights(ops.array(token), other), token, atol=1e-6)
    assert list(store) == [id(variable)]


@pytest.mark.parametrize("optimizer", [
    keras.optimizers.Adam(0.01), keras.optimizers.AdamW(0.01, weight_decay=0.3),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 7), clipnorm=0.5, beta_1=0.8, epsilon=1e-5),
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

    for a, b in zip(train(kernels.one_pass_adam), train(contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)


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
