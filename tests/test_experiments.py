"""Swapping blocks by name, models side by side, and the contract on a model of one's own."""

import keras
import leaky
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf.errors import ConfigError, InputError

SMALL = {"vocab_size": 13, "max_length": 12, "dim": 16, "num_layers": 2, "num_heads": 2}
TOKENS = np.random.default_rng(0).integers(1, 13, (2, 7)).astype("int32")


def small(family="gpt", **options):
    keras.utils.set_random_seed(5)
    return kerastf.create_model(family, **{**SMALL, **options})


def arrays(model):
    return {w.path: ops.convert_to_numpy(w) for w in model.weights}


def same(a, b):
    assert a.keys() == b.keys()
    return all(np.array_equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "slot, block", [("attention", "multi_head"), ("norm", "layer"), ("feedforward", "mlp"), ("head", "language_model")]
)
def test_a_block_for_itself_changes_no_bit(slot, block):
    model = small()
    before = arrays(model)
    other, report = kerastf.swap(model, **{slot: block})
    assert same(arrays(other), before) and same(arrays(model), before)
    np.testing.assert_array_equal(other(TOKENS), model(TOKENS))
    assert not report.begun and not report.dropped and report.kept.keys() == before.keys()
    assert not {id(w) for w in other.weights} & {id(w) for w in model.weights}


def test_there_and_back_keeps_what_can_be_kept():
    model = small()
    for weight in model.weights:  # biases that begin as zeros would look kept
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    there, first = kerastf.swap(model, attention="linear_attention/linear", position="sinusoidal")
    back, second = kerastf.swap(there, attention="multi_head", position="learned")
    assert back.options == model.options
    old, new = arrays(model), arrays(back)
    for path in old:
        lost = path.startswith("position/") or ("/attention/" in path and path not in first.kept)
        assert np.array_equal(old[path], new[path]) != lost, path
    assert any("/attention/" in path for path in first.begun)
    assert second.dropped.keys() == first.begun.keys()


@pytest.mark.parametrize(
    "slots", [{"norm": "rms"}, {"attention": ["multi_head", "bahdanau"]}, {"feedforward": "gated"}]
)
def test_the_report_accounts_for_every_weight(slots):
    model = small()
    other, report = kerastf.swap(model, **slots)
    old, new = arrays(model), arrays(other)
    assert {**report.kept, **report.begun} == {p: a.shape for p, a in new.items()}
    assert {**report.kept, **report.dropped} == {p: a.shape for p, a in old.items()}
    assert not report.kept.keys() & report.begun.keys() and not report.kept.keys() & report.dropped.keys()
    assert all(np.array_equal(new[p], old[p]) for p in report.kept)


def test_a_weight_of_another_shape_begins_anew():
    model = small(feedforward={"name": "mlp", "mlp_dim": 32})
    _, report = kerastf.swap(model, feedforward={"name": "mlp", "mlp_dim": 48})
    assert report.begun["layer_0/feedforward/expand/kernel"] == (16, 48)
    assert report.dropped["layer_0/feedforward/expand/kernel"] == (16, 32)
    assert "layer_0/feedforward/expand/kernel" not in report.kept


def test_what_lora_learnt_is_kept():
    model = small()
    model.enable_lora(2)
    for weight in model.trainable_weights:
        weight.assign(ops.ones(weight.shape) * 0.1)
    other, report = kerastf.swap(model, norm="layer")
    np.testing.assert_allclose(other(TOKENS), model(TOKENS), atol=1e-5)
    assert not any("lora" in path for path in {**report.kept, **report.dropped})


def test_a_swapped_model_trains_and_the_first_one_stays():
    model = small()
    before = arrays(model)
    other, _ = kerastf.swap(model, attention="linear_attention/linear")
    other.compile("adam", jit_compile=False)
    other.fit(TOKENS, TOKENS, verbose=0)
    assert same(arrays(model), before)
    assert other.generate([[1, 2]], max_length=6).shape == (1, 6)


def test_diff_counts_what_numpy_counts():
    found = kerastf.diff(small(), small(norm="rms"), length=8)
    assert found.options == {"norm": ("layer", "rms")}
    a, b = found.costs
    assert a.parameters - b.parameters == 5 * 16  # the shifts of five norms
    assert a.inputs == {"tokens": (1, 8)} and a.flops > b.flops


def test_diff_of_ids_and_of_two_families():
    found = kerastf.diff("gpt.nano", "rnn", vocab_size=65, length=16)
    assert found.options["cell"] == (None, "lstm") and found.options["num_layers"][0] == 3
    assert "parameters" in str(found)


def test_verify_catches_a_block_that_peeks_and_leaves_the_model_alone():
    kerastf.register("norm", "peeks", supports=("causal",))(leaky.Peeks)
    model = small(norm="peeks")
    before = arrays(model)
    with pytest.raises(kerastf.testing.ContractError) as error:
        kerastf.verify(model, only=["causal", "steps", "config"])
    assert error.value.report.failed == ["causal", "steps"]
    assert same(arrays(model), before)


def test_verify_looks_at_the_models_own_weights():
    model = small()
    assert kerastf.verify(model, only=["shapes", "causal", "save"]).ok
    model.weights[0].assign(ops.full(model.weights[0].shape, np.nan))
    with pytest.raises(kerastf.testing.ContractError, match="not finite|nan|differ"):
        kerastf.verify(model, only=["gradients", "causal"])


def test_mistakes():
    plain = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(InputError, match="Only a model of the registry has slots"):
        kerastf.swap(plain, norm="rms")
    with pytest.raises(InputError, match="Only a model of the registry has a contract"):
        kerastf.verify(plain)
    with pytest.raises(ConfigError, match="has the slots .*attention.*Received: dim"):
        kerastf.swap(small(), dim=3)
    with pytest.raises(ConfigError, match="Received: none"):
        kerastf.swap(small())
    with pytest.raises(ConfigError, match="does not support rotation"):
        kerastf.swap(small(), attention="linear_attention/linear", position="rotary")
