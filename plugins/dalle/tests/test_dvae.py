"""The dVAE: contract, Gumbel-softmax beside NumPy, the schedule of the temperature, codes and back."""

import keras
import numpy as np
import pytest
from keras import ops
from kerastf_dalle import (
    CodePerplexity,
    GumbelCodes,
    Reconstruction,
    gumbel_softmax,
    kl_to_uniform,
    temperature_at,
)
from kerastf_dalle.gumbel import gumbel_noise

import kerastf
from kerastf import compat
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_model

SMALL = {"image_size": 16, "num_codes": 8, "dim": 8, "num_residual": 1}


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def images(count=4, seed=0):
    return np.random.default_rng(seed).uniform(size=(count, 16, 16, 3)).astype("float32")


def numpy(x):
    return ops.convert_to_numpy(x)


def test_contract():
    options = {"straight_through": True, "kl_weight": 0.1, "end_temperature": 0.5, "anneal_steps": 3, "channels": 1}
    check_model("dalle/dvae", only=["config", "gradients", "seed", "fit"], **options)


# --- Gumbel-softmax


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_gumbel_softmax_equals_numpy_with_the_same_noise(temperature):
    logits, uniform = numbers(2, 3, 3, 8), np.random.default_rng(1).uniform(0.01, 0.99, (2, 3, 3, 8)).astype("float32")
    noise = -np.log(-np.log(uniform.astype("float64")))
    np.testing.assert_allclose(numpy(gumbel_noise(uniform)), noise, rtol=1e-4, atol=1e-5)
    want = softmax((logits + noise) / temperature)
    got = gumbel_softmax(logits, noise.astype("float32"), temperature)
    np.testing.assert_allclose(numpy(got), want, atol=1e-5)
    hard = numpy(gumbel_softmax(logits, noise.astype("float32"), temperature, straight_through=True))
    np.testing.assert_array_equal(hard, np.eye(8)[want.argmax(-1)])


def test_noise_is_finite_at_the_ends_and_distributed_as_gumbels():
    assert np.all(np.isfinite(numpy(gumbel_noise(ops.array([0.0, 1.0])))))
    drawn = numpy(gumbel_noise(keras.random.uniform((100_000,), seed=1)))
    assert abs(drawn.mean() - np.euler_gamma) < 0.02 and abs(drawn.var() - np.pi**2 / 6) < 0.05


def test_codes_are_drawn_as_often_as_their_probabilities_say():
    chances = np.array([0.6, 0.3, 0.1], "float32")
    noise = gumbel_noise(keras.random.uniform((50_000, 3), seed=2))
    drawn = numpy(gumbel_softmax(np.log(chances)[None], noise, 1.0, straight_through=True)).mean(0)
    np.testing.assert_allclose(drawn, chances, atol=0.01)


def test_the_straight_through_gradient_is_the_soft_ones():
    target, noise = numbers(2, 8, seed=1), numbers(2, 8, seed=2)
    found = []
    for straight_through in (False, True):
        logits = keras.Variable(numbers(2, 8))

        def loss(logits=logits, hard=straight_through):
            return ops.sum(gumbel_softmax(logits, noise, 0.7, straight_through=hard) * target)

        found.append(compat.gradients(loss, [logits])[0])
    assert np.any(found[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


# --- temperature

SCHEDULES = {
    "linear": lambda p: 2.0 + p * (0.5 - 2.0),
    "exponential": lambda p: 2.0 * (0.5 / 2.0) ** p,
    "cosine": lambda p: 0.5 + (2.0 - 0.5) * np.cos(np.pi / 2 * p) ** 2,
}


@pytest.mark.parametrize("anneal", SCHEDULES)
def test_schedule(anneal):
    for step in (0, 1, 4, 8, 10, 500):
        got = float(temperature_at(step, start=2.0, end=0.5, steps=10, anneal=anneal))
        assert abs(got - SCHEDULES[anneal](min(step / 10, 1))) < 1e-5
    assert float(temperature_at(0, start=2.0, end=0.5, steps=0)) == 0.5


def test_the_temperature_falls_in_plain_fit_and_only_there():
    model = kerastf.create_model(
        "dalle/dvae", **SMALL, temperature=2.0, end_temperature=0.5, anneal_steps=10, anneal="linear"
    )
    assert model.temperature == 2.0
    model.compile("adam", jit_compile=False)
    model.fit(images(8), batch_size=2, verbose=0)  # 4 steps
    assert abs(model.temperature - (2.0 - 0.4 * 1.5)) < 1e-6
    model.evaluate(images(8), verbose=0)
    model.predict(images(8), verbose=0)
    assert abs(model.temperature - 1.4) < 1e-6
    model.fit(images(8), batch_size=1, verbose=0)
    assert model.temperature == 0.5


def test_the_count_of_steps_is_saved(tmp_path):
    model = kerastf.create_model("dalle/dvae", **SMALL, end_temperature=0.5, anneal_steps=10)
    model.compile("adam", jit_compile=False)
    model.fit(images(8), batch_size=2, verbose=0)
    model.save(tmp_path / "dvae.keras")
    assert kerastf.load_model(tmp_path / "dvae.keras").temperature == model.temperature < 1


def test_a_low_temperature_is_almost_a_choice_and_a_high_one_a_mixture():
    logits = numbers(2, 4, 4, 8)
    found = {}
    for temperature in (0.01, 100.0):
        block = GumbelCodes(8, 4, temperature=temperature, end_temperature=temperature)
        block.build(logits.shape)
        block.codebook.assign(np.eye(8, 4))  # a mixture shows in the output
        found[temperature] = numpy(block(logits, training=True))
    assert np.isclose(found[0.01], np.round(found[0.01]), atol=0.02).mean() > 0.95
    np.testing.assert_allclose(found[100.0], 1 / 8, atol=0.03)


# --- losses and metrics


def test_kl_to_uniform_is_the_divergence():
    logits = numbers(2, 3, 3, 8)
    q = softmax(logits.astype("float64"))
    want = (q * np.log(q / (1 / 8))).sum(-1).mean((1, 2))
    np.testing.assert_allclose(numpy(kl_to_uniform(logits)), want, rtol=1e-5)


@pytest.mark.parametrize("kind, want", [
    ("squared", lambda a, b: (a - b) ** 2), ("absolute", lambda a, b: abs(a - b)),
    ("cross_entropy", lambda a, b: -a * np.log(b) - (1 - a) * np.log(1 - b)),
])  # fmt: skip
def test_reconstruction(kind, want):
    target, image = images(3), images(3, seed=1)
    np.testing.assert_allclose(float(Reconstruction(kind)(target, image)), want(target, image).mean(), rtol=1e-4)
    weights = np.array([1.0, 0.0, 3.0], "float32")
    rows = want(target, image).mean((1, 2, 3))
    np.testing.assert_allclose(
        float(Reconstruction(kind)(target, image, weights)), (rows * weights).sum() / 4, rtol=1e-4
    )


def test_codes_in_use():
    metric = CodePerplexity(8)
    metric.update_state(np.eye(8)[np.array([[[0, 0], [1, 1]]])])
    metric.update_state(np.eye(8)[np.array([[[2, 2], [3, 3]]])])
    assert abs(float(metric.result()) - 4) < 1e-4
    metric.reset_state()
    metric.update_state(np.eye(8)[np.array([[[5, 5], [5, 5]]])])
    assert abs(float(metric.result()) - 1) < 1e-4


def test_the_loss_of_a_model_is_both_terms():
    model = kerastf.create_model("dalle/dvae", **SMALL, kl_weight=0.3)
    model.compile("adam", jit_compile=False)
    x = images(6)
    found = model.evaluate(x, batch_size=6, verbose=0, return_dict=True)
    output = model.predict(x, verbose=0)
    assert abs(found["reconstruction"] - ((output["images"] - x) ** 2).mean()) < 1e-5
    assert abs(found["kl"] - float(np.mean(numpy(kl_to_uniform(output["logits"]))))) < 1e-4
    assert abs(found["loss"] - found["reconstruction"] - 0.3 * found["kl"]) < 1e-5
    assert 1 <= found["codes_in_use"] <= 8


def test_a_loss_and_metrics_of_ones_own():
    model = kerastf.create_model("dalle/dvae", **SMALL)
    model.compile("adam", loss={"images": "mae", "logits": None}, metrics={"images": "mse"})
    x = images(6)
    found = model.evaluate(x, batch_size=6, verbose=0, return_dict=True)
    assert abs(found["loss"] - np.abs(model.predict(x, verbose=0)["images"] - x).mean()) < 1e-5
    assert abs(found["images_mse"] - found["reconstruction"]) < 1e-5


# --- codes


def test_codes_and_back_are_deterministic_and_what_the_model_gives():
    model = kerastf.create_model("dalle/dvae", **SMALL, straight_through=True)
    x = images(5)
    codes = model.encode(x)
    assert codes.shape == (5, 4, 4) and codes.dtype == "int32" and 0 <= codes.min() <= codes.max() < 8
    np.testing.assert_array_equal(codes, model.encode(x, batch_size=2))
    drawn = model.decode(codes)
    np.testing.assert_array_equal(drawn, model.decode(codes))
    assert drawn.min() >= 0 and drawn.max() <= 1
    output = model(x)
    np.testing.assert_allclose(numpy(output["images"]), drawn, atol=1e-6)
    np.testing.assert_array_equal(numpy(output["logits"]).argmax(-1), codes)


def test_codes_do_not_depend_on_the_policy():
    exact = kerastf.create_model("dalle/dvae", **SMALL)
    rounded = kerastf.create_model("dalle/dvae", **SMALL, dtype="mixed_bfloat16")
    rounded.set_weights(exact.get_weights())
    np.testing.assert_array_equal(exact.encode(images(8)), rounded.encode(images(8)))


@pytest.mark.slow
def test_it_learns_two_colours():
    keras.utils.set_random_seed(1)
    half = np.repeat(np.array([[0.0], [1.0]], "float32"), 8, axis=0)
    x = np.broadcast_to(half[:, :, None, None], (16, 16, 16, 3)).copy()
    model = kerastf.create_model("dalle/dvae", **SMALL, temperature=2.0, end_temperature=0.3, anneal_steps=60)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    model.fit(x, batch_size=16, epochs=80, verbose=0)
    assert np.abs(model.decode(model.encode(x)) - x).mean() < 0.05


def test_mistakes():
    with pytest.raises(ConfigError, match=r"`image_size` must be a multiple of 4.*Received: image_size=18"):
        kerastf.create_model("dalle/dvae", image_size=18)
    with pytest.raises(
        ConfigError, match=r"(?s)`temperature` must be above 0.*`anneal_steps` needs an `end_temperature`"
    ):
        kerastf.create_model("dalle/dvae", temperature=0.0, anneal_steps=5)
    model = kerastf.create_model("dalle/dvae", **SMALL)
    with pytest.raises(InputError, match=r"shape \(rows, 16, 16, 3\). Received: shape \(2, 8, 8, 3\)"):
        model.encode(np.zeros((2, 8, 8, 3)))
    with pytest.raises(InputError, match=r"Divide those of 0 to 255 by 255. Received: 255"):
        model.fit(np.full((2, 16, 16, 3), 255.0, "float32"))
    with pytest.raises(InputError, match=r"integers in \[0, 8\). Received: 0 to 8"):
        model.decode(np.arange(16).reshape(1, 4, 4) // 15 * 8)
    with pytest.raises(InputError, match=r"model.decode"):
        model.generate("a cat")
    with pytest.raises(InputError, match=r"head='classifier'"):
        model.with_head("classifier")
