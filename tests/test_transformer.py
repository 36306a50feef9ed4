"""The Transformer encoder-decoder: loss, schedule, learning, bad input, beams."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf.blocks.losses import TokenCrossEntropy
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake
from kerastf.training import InverseSquareRoot

TINY = {
    "vocab_size": 9, "max_length": 10, "dim": 8, "num_layers": 1, "num_heads": 2, "start_id": 1, "end_id": 2, "pad_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    model = kerastf.create_model("transformer", **TINY)
    shake(model, 4)
    return model


@pytest.mark.slow  # tests/test_contracts.py has the default
@pytest.mark.parametrize(
    "options",
    [
        {"norm_order": "pre", "position": "rotary", "norm": "rms", "shared_embeddings": False, "attention": "window"},
        {"position": "learned", "cross_attention": "bahdanau", "feedforward": "gated"},
        {"cross_attention": ["luong", "multi_head"], "attention": "linear_attention/linear", "head": {"name": "language_model", "tied": False}},
    ],
    ids=["modern", "additive", "mixed"],
)  # fmt: skip
def test_slots(options):
    check_model("transformer", only=["config", "gradients", "save", "padding", "steps", "generate"], **options)


def test_sizes_of_the_paper():
    # 65 million for a shared vocabulary of 37,000; the paper rounds.
    assert kerastf.count_parameters("transformer.base", vocab_size=37_000) == 63_082_496
    assert kerastf.count_parameters("transformer.big", vocab_size=37_000) == 214_245_376


@settings(max_examples=30, deadline=None)
@given(smoothing=st.floats(0, 0.9), ignore=st.sampled_from([None, 0]), seed=st.integers(0, 999), weighted=st.booleans())
def test_cross_entropy_by_hand(smoothing, ignore, seed, weighted):
    rng = np.random.default_rng(seed)
    logits, labels = rng.normal(size=(3, 4, 5)).astype("float32"), rng.integers(0, 5, (3, 4))
    labels[0, 0] = 1  # something counts
    weights = rng.uniform(0.5, 2, (3, 4)).astype("float32") if weighted else None
    got = float(TokenCrossEntropy(ignore, label_smoothing=smoothing)(labels, ops.array(logits), weights))
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = count = 0.0
    for b, t in np.ndindex(3, 4):
        if labels[b, t] == ignore:
            continue
        target = np.full(5, smoothing / 5) + (1 - smoothing) * (np.arange(5) == labels[b, t])
        w = 1.0 if weights is None else weights[b, t]
        total, count = total - w * target @ logs[b, t], count + w
    assert got == pytest.approx(total / count, abs=1e-5)


def test_schedule():
    schedule = InverseSquareRoot(512, warmup_steps=100, scale=2.0)
    rates = [float(schedule(t)) for t in (1, 50, 100, 400)]
    assert rates == pytest.approx([2 * 512**-0.5 * min(t**-0.5, t * 100**-1.5) for t in (1, 50, 100, 400)])
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert again.get_config() == schedule.get_config()


def reversal(count, seed, low=3, high=5):
    rng = np.random.default_rng(seed)
    source = np.zeros((count, high), int)
    target = np.zeros((count, high + 1), int)
    labels = np.zeros((count, high + 1), int)
    target[:, 0] = 1
    for i in range(count):
        word = rng.integers(3, 9, rng.integers(low, high + 1))
        source[i, : len(word)] = word
        target[i, 1 : len(word) + 1] = labels[i, : len(word)] = word[::-1]
        labels[i, len(word)] = 2
    return source, target, labels


@pytest.mark.slow
def test_learns_to_reverse():
    keras.utils.set_random_seed(0)
    model = kerastf.create_model(
        "transformer", **{**TINY, "dim": 32, "num_layers": 1, "num_heads": 4}, norm_order="pre", dropout=0.0
    )
    model.compile(keras.optimizers.AdamW(5e-3))
    source, target, labels = reversal(4096, 0)
    model.fit({"source": source, "target": target}, labels, batch_size=64, epochs=10, verbose=0)
    source, _, _ = reversal(64, 1)
    rows = [[int(t) for t in row if t] for row in source]
    right = [got == row[::-1] for got, row in zip(model.generate(rows, max_length=8), rows, strict=True)]
    assert np.mean(right) > 0.95


def test_beams(model):
    rows = [[3, 4, 5], [6, 7]]
    greedy = model.generate(rows)
    assert [b[0][0] for b in model.generate(rows, num_beams=1, return_beams=True)] == greedy
    beams = model.generate(rows, num_beams=4, length_penalty=0.0, return_beams=True)
    for row, found in zip(rows, beams, strict=True):
        assert [s for _, s in found] == sorted((s for _, s in found), reverse=True)
        for target, score in found:
            ended = [*target, 2] if len(target) < 9 else target
            logits = model({"source": ops.array([row]), "target": ops.array([[1, *ended]])})
            logs = ops.convert_to_numpy(ops.log_softmax(logits))[0]
            assert score == pytest.approx(sum(logs[t, n] for t, n in enumerate(ended)), abs=1e-3)


def test_the_source_is_read_once(model):
    state = model.init_state(2, 10, ops.array([[3, 4], [5, 0]]))
    _, after = model.step(ops.array([[1], [1]]), state, 0)
    key = state[0]["cross_attention"]["context_key"]
    assert after[0]["cross_attention"]["context_key"] is key


def test_maps_are_distributions_over_real_positions(model):
    weights = ops.convert_to_numpy(model.attention_weights([[3, 4, 5, 0]], [[1, 3, 4]])[0])
    assert weights.shape == (1, 2, 3, 4)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.all(weights[..., 3] == 0)


@pytest.mark.parametrize(
    "run, text",
    [
        (lambda m: m.generate([]), "Each prompt needs at least one token. Received: prompt=[]"),
        (lambda m: m.generate([[3], []]), "Each prompt needs at least one token. Received: prompt=[[3], []]"),
        (lambda m: m.generate([99]), "Tokens must be in [0, 9). Received: 99"),
        (lambda m: m.generate([0.5]), "Tokens are integers. Received: prompt=[0.5]"),
        (lambda m: m.generate("hello"), "The model has no tokenizer, so a prompt is a list of tokens. Build it with tokenizer=... to use text. Received: prompt='hello'"),
        (lambda m: m.generate([3], num_beams=0), "`num_beams` must be at least 1. Received: num_beams=0"),
        (lambda m: m.fit(np.zeros((2, 3), int), np.zeros((2, 3), int)), "The input is a dict of the two sequences: fit({'source': ..., 'target': ...}, labels). Received: an array of shape (2, 3)"),
        (lambda m: m.fit({"source": np.full((2, 3), 9), "target": np.zeros((2, 3), int)}, np.zeros((2, 3), int)), "Tokens must be in [0, 9), as vocab_size=9 says. Received: 9"),
    ],
)  # fmt: skip
def test_bad_input(model, run, text):
    with pytest.raises(InputError) as caught:
        run(model)
    assert str(caught.value) == text


def test_an_all_padding_source_is_defined(model):
    got = model.generate([[0, 0, 0], [3, 4, 5]])
    assert got[1] == model.generate([[3, 4, 5]])[0]


def test_a_source_longer_than_any_trained_on(model):
    assert isinstance(model.generate([3] * 50), list)
    learned = kerastf.create_model("transformer", **TINY, position="learned")
    assert isinstance(learned.generate([3] * 10), list)  # fits, though it would not if it were padded to 16
    with pytest.raises(ValueError, match="The input has 12 positions and this model learns 10"):
        learned.generate([3] * 12)


def test_shared_embeddings_need_one_vocabulary():
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model("transformer", **TINY, source_vocab_size=7)
    assert str(caught.value) == (
        "Shared embeddings need one vocabulary: give both sides one tokenizer, or shared_embeddings=False. "
        "Received: vocab_size=9, source_vocab_size=7"
    )


@pytest.mark.parametrize("beams", [1, 2])
def test_a_target_is_as_long_as_there_are_positions(beams):
    model = kerastf.create_model("transformer", **TINY, position="learned")
    shake(model, 1)
    assert len(model.generate([3, 4], num_beams=beams)) <= 9
    assert len(model.generate([3, 4], max_length=9, num_beams=beams)) <= 9
    with pytest.raises(InputError) as caught:
        model.generate([3, 4], max_length=10, num_beams=beams)
    assert str(caught.value) == (
        "The model has 10 positions, of which the start token takes one: a target has at most 9 tokens. "
        "Received: max_length=10"
    )
    anywhere = kerastf.create_model("transformer", **TINY, position="sinusoidal")
    assert len(anywhere.generate([3, 4], max_length=20, num_beams=beams)) <= 20
