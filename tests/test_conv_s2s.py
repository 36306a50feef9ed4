"""Gated convolutions: the block by hand, the encoder-decoder, the language model."""

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf.blocks.convolution import ConvAttention, GatedConv
from kerastf.errors import ConfigError
from kerastf.testing import check_block, check_model
from kerastf.testing.subjects import shake

TINY = {
    "vocab_size": 9, "max_length": 10, "dim": 8, "channels": 12, "num_layers": 2, "start_id": 1, "end_id": 2, "pad_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    model = kerastf.create_model("conv_s2s", **TINY)
    shake(model, 4)
    return model


def made(kernel_size, **kwargs):
    block = GatedConv(kernel_size, **kwargs)
    block.build((None, None, 4))
    shake(block, 1)
    return block


def convolved(block, x, causal, mask):
    """One output at a time, one tap at a time."""
    kernel, bias = block.conv.get_weights()
    size = len(kernel)
    back = size - 1 if causal else size // 2
    out = np.zeros_like(x)
    for b, t in np.ndindex(x.shape[:2]):
        h = bias.astype("float64")
        for tap in range(size):
            s = t - back + tap
            if 0 <= s < x.shape[1] and mask[b, s]:
                h = h + x[b, s] @ kernel[tap]
        out[b, t] = h[:4] / (1 + np.exp(-h[4:]))
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kernel_size", [1, 2, 3, 4, 9])
def test_convolution_by_hand(kernel_size, causal):
    block, x = made(kernel_size), np.random.default_rng(0).normal(size=(3, 6, 4)).astype("float32")
    whole = np.ones((3, 6), bool)
    np.testing.assert_allclose(block(x, causal=causal), convolved(block, x, causal, whole), atol=1e-5)
    mask = np.arange(6) < np.array([[6], [4], [0]])
    np.testing.assert_allclose(block(x, mask=mask, causal=causal), convolved(block, x, causal, mask), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{"kernel_size": 1}, {"kernel_size": 9}, {"kernel_size": 2, "dropout": 0.3}], ids=str
)
def test_block_with_options(options):
    check_block("feedforward", "gated_conv", **options)


def test_the_state_is_a_window():
    state = made(4).init_state(2, 1000)
    assert [tuple(v.shape) for v in state.values()] == [(2, 3, 4)]


def test_variance_is_kept_at_the_start():
    # The paper's reckoning holds where the gate is linear: for inputs as small as its embeddings.
    keras.utils.set_random_seed(0)
    x = ops.convert_to_tensor(0.1 * np.random.default_rng(0).normal(size=(8, 50, 64)).astype("float32"))
    for _ in range(10):
        x = (x + GatedConv(3)(x)) * 0.5**0.5
    assert 0.08 < float(ops.std(x)) < 0.125


def test_attention_by_hand():
    rng = np.random.default_rng(0)
    h, g, context = (rng.normal(size=s).astype("float32") for s in ((2, 3, 6), (2, 3, 4), (2, 5, 4)))
    mask = np.arange(5) < np.array([[5], [2]])
    layer = ConvAttention({"name": "luong", "score": "dot"})
    layer(h, g, context)
    shake(layer, 2)
    (w, w_bias), (u, u_bias) = layer.to_query.get_weights(), layer.from_mean.get_weights()
    want = np.zeros_like(h)
    for b, t in np.ndindex(2, 3):
        count = mask[b].sum()
        query = (h[b, t] @ w + w_bias + g[b, t]) / np.sqrt(2)
        scores = np.exp(context[b, :count] @ query)
        mean = scores @ context[b, :count] / scores.sum() * np.sqrt(count)
        want[b, t] = (h[b, t] + mean @ u + u_bias) / np.sqrt(2)
    np.testing.assert_allclose(layer(h, g, context, context_mask=mask), want, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"attention": "multi_head", "position": "none", "shared_maps": True, "kernel_size": 2},
        {"attention": ["bahdanau", {"name": "luong", "score": "general"}], "position": "sinusoidal", "kernel_size": 1},
        {"head": {"name": "language_model", "tied": False, "bias": True}, "source_vocab_size": 20, "kernel_size": 5},
    ],
    ids=["shared", "mixed", "untied"],
)  # fmt: skip
def test_slots(options):
    check_model("conv_s2s", only=["config", "gradients", "save", "padding", "steps"], **options)


def test_without_attention_every_weight_has_a_gradient():
    check_model("conv_s2s", only=["fit"], attention="none")  # Keras warns otherwise, which is an error here


def test_language_model_slots():
    options = {"position": "learned", "kernel_size": 1, "channels": 5}
    check_model("conv_lm", only=["config", "gradients", "save", "padding", "steps"], **options)


def test_gpt_with_convolutions():
    only = ["causal", "padding", "steps", "gradients", "save"]
    check_model("gpt", feedforward={"name": "gated_conv", "kernel_size": 4}, position="none", only=only)


def test_the_language_model_sees_so_far_and_no_further():
    model = kerastf.create_model("conv_lm", vocab_size=9, dim=8, num_layers=3, kernel_size=3)
    shake(model, 1)
    tokens = np.random.default_rng(0).integers(0, 9, (1, 12))
    last = model(tokens)[0, -1]
    for t, seen in ((4, False), (5, True)):  # 3 * (3 - 1) + 1 = 7 tokens back, its own included
        changed = tokens.copy()
        changed[0, t] = (changed[0, t] + 1) % 9
        assert bool(ops.any(model(changed)[0, -1] != last)) == seen


def test_sizes():
    sizes = {"source_vocab_size": 7855, "vocab_size": 5893}  # Multi30k's words that occur twice
    assert kerastf.count_parameters("conv_s2s.multi30k", **sizes) == 35_837_184
    assert kerastf.count_parameters("conv_s2s.multi30k", source_vocab_size=8000, vocab_size=6000) < 37_400_000


def reversal(count, seed, low=3, high=5):
    rng = np.random.default_rng(seed)
    source, target, labels = (np.zeros((count, high + n), int) for n in (0, 1, 1))
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
    model = kerastf.create_model("conv_s2s", **{**TINY, "dim": 32, "channels": 32}, dropout=0.0)
    model.compile(keras.optimizers.AdamW(5e-3))
    source, target, labels = reversal(4096, 0)
    model.fit({"source": source, "target": target}, labels, batch_size=64, epochs=6, verbose=0)
    source, _, _ = reversal(64, 1)
    rows = [[int(t) for t in row if t] for row in source]
    right = [got == row[::-1] for got, row in zip(model.generate(rows, max_length=8), rows, strict=True)]
    assert np.mean(right) > 0.95


def test_the_language_model_learns_to_count():
    keras.utils.set_random_seed(0)
    model = kerastf.create_model("conv_lm", vocab_size=12, max_length=24, dim=16, num_layers=2, dropout=0.0)
    model.compile(keras.optimizers.AdamW(1e-2))
    rows = (np.arange(25) + np.arange(12)[:, None]) % 12
    model.fit(rows[:, :-1], rows[:, 1:], epochs=60, verbose=0)
    assert model.generate([3, 4, 5], max_length=24).tolist() == [(3 + n) % 12 for n in range(24)]


def test_maps_are_distributions_over_real_positions(model):
    found = model.attention_weights([[3, 4, 5, 0]], [[1, 3, 4]])
    assert len(found) == 2
    for weights in map(ops.convert_to_numpy, found):
        assert weights.shape == (1, 1, 3, 4)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
        assert np.all(weights[..., 3] == 0)


def test_the_source_is_read_once(model):
    state = model.init_state(2, 10, ops.array([[3, 4], [5, 0]]))
    _, after = model.step(ops.array([[1], [1]]), state, 0)
    key = state[0]["attention"]["attention"]["context_key"]
    assert after[0]["attention"]["attention"]["context_key"] is key


def test_beams(model):
    rows = [[3, 4, 5], [6, 7]]
    beams = model.generate(rows, num_beams=4, length_penalty=0.0, return_beams=True)
    for row, found in zip(rows, beams, strict=True):
        for target, score in found:
            ended = [*target, 2] if len(target) < 9 else target
            logits = model({"source": ops.array([row]), "target": ops.array([[1, *ended]])})
            logs = ops.convert_to_numpy(ops.log_softmax(logits))[0]
            assert score == pytest.approx(sum(logs[t, n] for t, n in enumerate(ended)), abs=1e-3)


def test_a_source_as_long_as_the_positions(model):
    assert isinstance(model.generate([3] * 10), list)
    with pytest.raises(ValueError, match="The input has 11 positions and this model learns 10"):
        model.generate([3] * 11)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"kernel_size": 0}, "`kernel_size` must be at least 1. Received: kernel_size=0"),
        ({"channels": -2}, "`channels` must be at least 1. Received: channels=-2"),
        ({"dropout": 1.0}, "`dropout` must be in [0, 1). Received: dropout=1.0"),
        ({"position": "rotary"}, "position `rotary` does not support embeddings. Those that do: `learned`, `none`, `sinusoidal`, `sinusoidal_2d`, `dalle/learned_2d`."),
        ({"position": "alibi"}, "position `alibi` does not support embeddings. Those that do: `learned`, `none`, `sinusoidal`, `sinusoidal_2d`, `dalle/learned_2d`."),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("family", ["conv_s2s", "conv_lm"])
def test_bad_options(family, options, text):
    known = {k: v for k, v in TINY.items() if family == "conv_s2s" or k not in ("start_id", "end_id")}
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model(family, **{**known, **options})
    assert str(caught.value) == text


def test_attention_must_cross():
    with pytest.raises(ConfigError, match="attention `window` does not support cross"):
        kerastf.create_model("conv_s2s", **TINY, attention={"name": "window", "window": 3})


@pytest.mark.parametrize(
    "options, text",
    [
        ({"kernel_size": 0}, "`kernel_size` must be at least 1. Received: kernel_size=0"),
        ({"dropout": 1.5}, "`dropout` must be in [0, 1). Received: dropout=1.5"),
    ],
    ids=str,
)
def test_bad_block(options, text):
    with pytest.raises(ValueError) as caught:
        GatedConv(**options)
    assert str(caught.value) == text
