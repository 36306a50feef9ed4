"""Recurrent sequence-to-sequence: a step by hand, teacher forcing, alignment, learning."""

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat, registry
from kerastf.blocks.decoder import AttentionDecoder
from kerastf.errors import ConfigError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake
from kerastf.training import TeacherForcing

TINY = {
    "vocab_size": 9, "max_length": 10, "dim": 8, "units": 6, "start_id": 1, "end_id": 2, "pad_id": 0, "dropout": 0.0,
}  # fmt: skip
ATTENTIONS = [e.id for e in registry.entries("attention") if {"cross", "decode"} <= set(e.manifest.get("supports", ()))]
SOURCE, TARGET = np.array([[3, 4, 5, 6], [7, 8, 0, 0]]), np.array([[1, 3, 4], [1, 5, 6]])


def small(**options):
    model = kerastf.create_model("seq2seq", **{**TINY, **options})
    shake(model, 3)
    return model


def numpy(x):
    return ops.convert_to_numpy(x)


@pytest.mark.slow  # tests/test_contracts.py has the default
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_each_attention(attention):
    check_model("seq2seq", attention=attention, only=["padding", "steps", "generate"])


@pytest.mark.parametrize(
    "options",
    [
        {"cell": ["lstm", "gru"], "num_layers": 2, "input_feeding": False, "attention": "luong"},
        {"cell": "simple", "bidirectional": False, "attention": "none"},
        {"teacher_forcing": 0.5, "head": {"name": "language_model", "tied": False}},
    ],
    ids=["deep", "plain", "sampled"],
)
@pytest.mark.slow
def test_slots(options):
    check_model(
        "seq2seq",
        only=["config", "gradients", "seed", "save", "padding", "source", "steps", "generate", "fit"],
        **options,
    )


@pytest.mark.parametrize("feeding", [True, False])
def test_the_decoder_by_hand(feeding):
    """One row, a simple cell, Bahdanau's score: the equations of the docstring, one step after another."""
    model = small(cell="simple", bidirectional=False, input_feeding=feeding)
    context, states, _ = model.encode(ops.array(SOURCE[:1]))
    h, s = numpy(context)[0], numpy(states[0])[0]
    w = {v.path.split("decoder/")[1]: numpy(v) for v in model.decoder.weights}
    cell = model.decoder.cells[0]
    kernel, recurrent, bias = (numpy(v) for v in cell.weights)

    def look(query):
        scores = np.tanh(query @ w["attention/query/kernel"] + h @ w["attention/key/kernel"] + w["attention/key/bias"])
        scores = scores @ w["attention/vector"]
        chances = np.exp(scores) / np.exp(scores).sum()
        return chances @ h

    matrix, want = numpy(model.embedding.matrix), []
    for token in TARGET[0]:
        x = matrix[token]
        if feeding:
            c = look(s)
            x = np.concatenate([x, c])
        s = np.tanh(x @ kernel + s @ recurrent + bias)
        c = c if feeding else look(s)
        want.append(matrix @ np.tanh(np.concatenate([s, c]) @ w["mix/kernel"] + w["mix/bias"]))
    got = numpy(model({"source": ops.array(SOURCE[:1]), "target": ops.array(TARGET[:1])}))[0]
    np.testing.assert_allclose(got, want, atol=1e-5)


DECODERS = [
    *[((cell,), "bahdanau", (2, 3, 4)) for cell in ("simple", "lstm", "gru")],
    *[(("gru",), attention, (3, 2, 5)) for attention in ATTENTIONS],
    (("lstm", "gru"), "bahdanau", (1, 4, 2)),
    (("gru",), "luong", (2, 1, 1)),
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cells, attention, sizes", DECODERS)
def test_the_loop_equals_single_steps(cells, attention, sizes, masked):
    """One loop over time, and one call per position: the same outputs and the same gradients."""
    rows, target, source = sizes
    specs = [{"name": c, "units": 6} for c in cells]
    heads = {"num_heads": 2} if attention in ("multi_head", "cosine", "linear_attention/linear") else {}
    decoder = AttentionDecoder(specs, {"name": attention, **heads}, dim=5)
    rng = np.random.default_rng(0)
    x, context = (rng.normal(size=(rows, n, c)).astype("float32") for n, c in ((target, 5), (source, 6)))
    states = [rng.normal(size=(rows, n)).astype("float32") for n in decoder.state_sizes[:-1]]
    mask = np.arange(source) < rng.integers(1, source + 1, (rows, 1)) if masked else None
    inputs = [keras.Variable(a) for a in (x, context, *states)]
    decoder.build(x.shape, context.shape)
    shake(decoder, 1)

    def whole():
        x, context, *states = (v.value for v in inputs)
        return decoder(x, context, states, context_mask=mask)

    def steps():
        x, context, *states = (v.value for v in inputs)
        return decoder.step(x, decoder.init_state(context, states, mask))[0]

    np.testing.assert_allclose(numpy(whole()), numpy(steps()), atol=1e-5)
    slope = rng.normal(size=(rows, target, 5)).astype("float32")
    variables = [*decoder.trainable_variables, *inputs]
    for got, want, v in zip(
        *(compat.gradients(lambda f=f: ops.sum(f() * slope), variables) for f in (whole, steps)), variables, strict=True
    ):
        if want is None:  # without attention a context's keys count for nothing
            assert got is None or not np.any(got), v.path
        else:
            np.testing.assert_allclose(got, want, atol=1e-5, err_msg=v.path)


def training_logits(model, target, seed=0):
    keras.utils.set_random_seed(seed)
    return numpy(model({"source": ops.array(SOURCE), "target": ops.array(target)}, training=True))


def test_teacher_forcing():
    model = small(teacher_forcing=0.5)
    other = TARGET.copy()
    other[:, 1:] = 8
    model.truth.assign(1.0)
    truth = training_logits(model, TARGET)
    np.testing.assert_allclose(
        truth, numpy(model({"source": ops.array(SOURCE), "target": ops.array(TARGET)})), atol=1e-5
    )
    model.truth.assign(0.0)  # then what the target says after its start does not matter
    np.testing.assert_allclose(training_logits(model, TARGET), training_logits(model, other), atol=1e-6)
    assert np.abs(truth - training_logits(model, TARGET)).max() > 1e-4
    # ... and each step reads the token that the step before it found likeliest.
    own = training_logits(model, TARGET)
    follow = np.concatenate([TARGET[:, :1], own.argmax(-1)[:, :-1]], axis=1)
    replay = numpy(model({"source": ops.array(SOURCE), "target": ops.array(follow)}))
    np.testing.assert_allclose(own, replay, atol=1e-5)


def test_teacher_forcing_follows_a_schedule():
    model = small(teacher_forcing=0.9)
    model.compile("adamw")
    data = {"source": SOURCE, "target": TARGET}, np.array([[3, 4, 2], [5, 6, 2]])
    model.fit(*data, epochs=3, verbose=0, callbacks=[TeacherForcing(lambda epoch: 1 - 0.25 * epoch)])
    assert float(model.truth) == 0.5
    always = small()
    always.compile("adamw")
    with pytest.raises(ValueError, match="The model always reads the truth"):
        always.fit(*data, verbose=0, callbacks=[TeacherForcing(lambda epoch: 1.0)])


def test_alignment():
    weights = numpy(small().attention_weights(SOURCE, TARGET)[0])
    assert weights.shape == (2, 1, 3, 4)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.all(weights[1, :, :, 2:] == 0)


def test_keys_are_made_once_per_source():
    model = small()
    state = model.init_state(2, 10, ops.array(SOURCE))
    _, after = model.step(ops.array([[1], [1]]), state, 0)
    assert after["memory"]["context_key"] is state["memory"]["context_key"]


@pytest.mark.slow
def test_learns_to_reverse():
    keras.utils.set_random_seed(0)
    model = kerastf.create_model("seq2seq", **{**TINY, "dim": 32, "units": 48})
    model.compile(keras.optimizers.AdamW(5e-3))
    words = np.random.default_rng(0).integers(3, 9, (4096, 5))
    target = np.concatenate([np.ones((4096, 1), int), words[:, ::-1]], axis=1)
    labels = np.concatenate([words[:, ::-1], np.full((4096, 1), 2)], axis=1)
    model.fit({"source": words, "target": target}, labels, batch_size=64, epochs=8, verbose=0)
    new = np.random.default_rng(1).integers(3, 9, (64, 5))
    got = model.generate(new, max_length=8)
    assert np.mean([g == row[::-1].tolist() for g, row in zip(got, new, strict=True)]) > 0.95


@pytest.mark.parametrize("options", [{}, pytest.param({"attention": "luong"}, marks=pytest.mark.slow)], ids=str)
def test_a_last_batch_of_fewer_rows_trains_under_xla(options):
    x = np.random.default_rng(0).integers(3, 9, (5, 4)).astype("int32")
    losses = []
    for compiled in (True, False):
        keras.utils.set_random_seed(1)
        model = kerastf.create_model("seq2seq", **{**TINY, **options})
        model.compile("sgd", jit_compile=compiled)
        losses += model.fit({"source": x, "target": x}, x, batch_size=3, shuffle=False, verbose=0).history["loss"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_mistakes():
    for options, message in (
        ({"teacher_forcing": 2.0}, "`teacher_forcing` is a probability in [0, 1]. Received: teacher_forcing=2.0"),
        ({"units": 0}, "`units` must be at least 1. Received: units=0"),
        ({"attention": {"name": "luong", "dropout": 0.5}}, "A decoder that asks its attention step by step drops nothing there: leave the attention's `dropout` out, and use the model's. Received: dropout=0.5"),
        ({"attention": "window"}, "attention `window` does not support cross. Those that do: `bahdanau`, `cosine`, `luong`, `multi_head`, `none`, `linear_attention/linear`."),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            kerastf.create_model("seq2seq", **{**TINY, **options})
        assert str(caught.value) == message
