"""What Keras promises of any model holds for ours, on whichever way a step is computed."""

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat
from kerastf.models import from_features
from kerastf.models.gpt import GPT

OPTIONS = {"vocab_size": 9, "max_length": 8, "dim": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
TOKENS = np.arange(32).reshape(4, 8) % 9


@pytest.fixture(params=[0, 2**60], ids=["features", "logits"])
def large(request, monkeypatch):
    """Both ways to the loss."""
    monkeypatch.setattr(from_features, "LARGE", request.param)


def made(family=GPT, *, seed=1, **options):
    keras.utils.set_random_seed(seed)
    return family(**{**OPTIONS, **options})


def weights(model):
    return {v.path.partition("/")[2]: ops.convert_to_numpy(v) for v in model.trainable_variables}


@pytest.mark.parametrize("family", ["gpt", "rnn"])
def test_one_batch_at_a_time_is_fit(family):
    options = {"vocab_size": 9, "dim": 8, "dropout": 0.0}
    found = []
    for way in ("fit", "batches", "both"):
        keras.utils.set_random_seed(1)
        model = kerastf.create_model(family, **options, **({"num_heads": 2} if family == "gpt" else {}))
        model.compile(keras.optimizers.Adam(0.01))
        for n in range(4):
            if way == "fit" or (way == "both" and n):
                model.fit(TOKENS, TOKENS, verbose=0, shuffle=False)
            else:
                model.train_on_batch(TOKENS, TOKENS)
        found.append([ops.convert_to_numpy(v) for v in model.trainable_variables])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_windows_one_batch_at_a_time():
    model = kerastf.create_model("word2vec", vocab_size=9, dim=4, counts=[9, 8, 7, 6, 5, 4, 3, 2, 1])
    model.compile()
    reach = np.full((4, 4, 2), 2, "int32")
    losses = [float(np.ravel(model.train_on_batch(TOKENS.astype("int32"), reach))[0]) for _ in range(20)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.parametrize("call", ["fit", "train_on_batch"])
def test_who_did_not_compile_is_told(call):
    with pytest.raises(ValueError, match="must call `compile"):
        getattr(made(), call)(TOKENS, TOKENS)


def test_a_loss_has_its_weight(large):
    found = []
    for weight in (None, [0.25]):
        model = made()
        model.compile("sgd", loss_weights=weight)
        found.append(model.evaluate(TOKENS, TOKENS, verbose=0, return_dict=True)["loss"])
    assert found[1] == pytest.approx(found[0] / 4, rel=1e-5)


def overriding(name):
    """A family of the user's own that does something with the logits."""

    class Own(GPT):
        seen: tuple = ()

    def call(self, *args, **kwargs):
        return 3 * super(Own, self).call(*args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
        return super(Own, self).compute_loss(x, y, 3 * y_pred, *args, **kwargs)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        Own.seen = tuple(y_pred.shape)
        return super(Own, self).compute_metrics(x, y, y_pred, sample_weight)

    function = {f.__name__: f for f in (call, compute_loss, compute_metrics)}[name]
    setattr(Own, name, function)
    return Own


@pytest.mark.parametrize("name", ["call", "compute_loss", "compute_metrics"])
def test_a_class_of_the_users_own_sees_logits(large, name):
    family = overriding(name)
    model = made(family)
    model.compile("sgd")
    got = model.evaluate(TOKENS, TOKENS, verbose=0, return_dict=True)["loss"]
    logits = ops.convert_to_numpy(made()(TOKENS)) * (1 if name == "compute_metrics" else 3)
    highest = logits.max(-1, keepdims=True)
    logs = logits - highest - np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    assert got == pytest.approx(-np.take_along_axis(logs, TOKENS[..., None], -1).mean(), rel=1e-5)
    if name == "compute_metrics":
        assert family.seen[-1] == OPTIONS["vocab_size"]


def test_metrics_of_the_users_own_are_saved(tmp_path):
    model = made()
    model.compile("adamw", metrics=[keras.metrics.SparseTopKCategoricalAccuracy(5, name="top")])
    model.fit(TOKENS, TOKENS, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = kerastf.load_model(tmp_path / "m.keras")
    found = loaded.evaluate(TOKENS, TOKENS, verbose=0, return_dict=True)
    assert set(found) == {"loss", "top"}


@pytest.mark.parametrize("named", [{"var_names": ["matrix"]}, {"var_list": True}], ids=["names", "variables"])
@pytest.mark.parametrize("scaled", [False, True])
def test_what_is_not_to_decay_does_not(named, scaled):
    model = made()
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(**{k: [model.embedding.matrix] if v is True else v for k, v in named.items()})
    model.compile(keras.optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)
    decayed = {v.path for v in model.trainable_variables if optimizer._use_weight_decay(v)}
    assert decayed == {v.path for v in model.trainable_variables if len(v.shape) > 1} - {model.embedding.matrix.path}


def test_averaged_weights_are_found_in_a_scaled_optimizer():
    model = made(dtype="mixed_float16")
    model.compile(keras.optimizers.AdamW(0.01, use_ema=True, ema_momentum=0.9))
    for _ in range(3):  # at its end, `fit` leaves the averages
        model.train_on_batch(TOKENS, TOKENS)
    plain = weights(model)
    with compat.averaged_weights(model):
        averaged = weights(model)
    assert any(np.abs(plain[n] - averaged[n]).max() > 1e-4 for n in plain)
    assert all(np.array_equal(plain[n], again) for n, again in weights(model).items())


@pytest.mark.parametrize("setting", [{}, {"jit_compile": True}, {"steps_per_execution": 2}], ids=str)
def test_weights_of_rows_and_then_of_tokens(setting):
    found = []
    for first in (True, False):
        model = made()
        model.compile("sgd", **setting)
        if first:
            model.fit(TOKENS, TOKENS, sample_weight=np.zeros(4), verbose=0)
        history = model.fit(TOKENS, TOKENS, sample_weight=np.eye(4, 8), verbose=0, batch_size=2, shuffle=False)
        found.append(history.history["loss"])
    np.testing.assert_allclose(*found, rtol=1e-5)
