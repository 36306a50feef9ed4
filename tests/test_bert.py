"""BERT: published sizes, its inputs and heads, filling masks, sentence vectors, LoRA, learning both tasks in one fit."""

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import text
from kerastf.errors import FileFormatError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake

TINY = {"vocab_size": 13, "max_length": 12, "dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
HEADS = {
    "pretraining": {}, "masked_language_model": {}, "span": {}, "features": {}, "tagger": {"num_classes": 3},
    "classifier": {"num_classes": 3},
}  # fmt: skip


def tiny(head="pretraining", **options):
    model = kerastf.create_model("bert", **{**TINY, **options, "head": {"name": head, **HEADS[head]}})
    shake(model, 1)
    return model


def numpy(x):
    return ops.convert_to_numpy(x)


TOKENS = np.array([[1, 5, 6, 7, 8, 2], [1, 9, 3, 2, 0, 0]], "int32")
SEGMENTS = np.array([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0]], "int32")


@pytest.mark.parametrize(
    "preset, body, whole",
    [
        ("tiny", 4_385_920, 4_433_468), ("mini", 11_170_560, 11_267_900), ("small", 28_763_648, 29_058_876),
        ("medium", 41_373_184, 41_668_412), ("base", 109_482_240, 110_106_428), ("large", 335_141_888, 336_226_108),
    ],
)  # fmt: skip
def test_published_sizes(preset, body, whole):
    assert kerastf.count_parameters(f"bert.{preset}", head="features") == body
    assert kerastf.count_parameters(f"bert.{preset}") == whole


def test_every_weight_is_counted():
    model = tiny("tagger")
    assert model.count_params() == kerastf.count_parameters("bert", **TINY, head={"name": "tagger", "num_classes": 3})
    assert sum(int(np.prod(w.shape)) for w in model.body.weights) == tiny("features").count_params()


@pytest.mark.slow  # half a minute each; the default head's is tested with the other models'
@pytest.mark.parametrize("head", [h for h in HEADS if h != "pretraining"])
def test_contract_with(head):
    check_model(
        "bert", head={"name": head, **HEADS[head]}, only=["shapes", "gradients", "padding", "precision", "save", "fit"]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"norm_order": "pre", "norm": "rms", "feedforward": "gated", "position": "rotary"},
        {"position": "alibi", "attention": ["multi_head", {"name": "window", "window": 3}]},
        {"position": "sinusoidal", "attention": "bahdanau", "num_segments": 0},
    ],
    ids=["modern", "mixed", "no_segments"],
)
def test_other_blocks(options):
    check_model("bert", only=["config", "gradients", "padding", "save"], **options)


def test_sees_both_sides():
    model = tiny("features")
    changed = TOKENS.copy()
    changed[0, 5] = 4
    assert np.max(np.abs(numpy(model(TOKENS))[0, 0] - numpy(model(changed))[0, 0])) > 1e-3


def test_segments_may_be_left_out():
    model = tiny("classifier")
    alone = numpy(model(TOKENS))
    np.testing.assert_allclose(numpy(model({"tokens": TOKENS})), alone)
    np.testing.assert_allclose(numpy(model({"tokens": TOKENS, "segments": np.zeros_like(TOKENS)})), alone, atol=1e-6)
    assert np.max(np.abs(numpy(model({"tokens": TOKENS, "segments": SEGMENTS})) - alone)) > 1e-3
    np.testing.assert_allclose(model.predict(TOKENS, verbose=0), alone, atol=1e-5)
    np.testing.assert_allclose(model.predict({"tokens": TOKENS}, verbose=0), alone, atol=1e-5)
    model.compile("adamw")
    assert np.isfinite(model.fit(TOKENS, np.array([0, 2]), verbose=0).history["loss"][0])
    assert model.compute_output_shape((2, 6)) == model.compute_output_shape({"tokens": (2, 6)}) == (2, 3)


@pytest.mark.parametrize("head", ["pretraining", "masked_language_model"])
def test_gathered_logits_are_those_of_all_positions(head):
    model = tiny(head)
    positions = np.array([[1, 4, 4], [2, 0, 1]], "int32")
    both = [numpy(o["masked_tokens"] if head == "pretraining" else o) for o in (
        model({"tokens": TOKENS, "segments": SEGMENTS}),
        model({"tokens": TOKENS, "segments": SEGMENTS, "masked_positions": positions}),
    )]  # fmt: skip
    assert both[0].shape == (2, 6, 13)
    np.testing.assert_allclose(both[1], np.take_along_axis(both[0], positions[..., None], axis=1), atol=1e-5)


def test_ignored_slots_do_not_count():
    model = tiny("masked_language_model")
    model.compile("adamw")
    x = {"tokens": TOKENS, "segments": SEGMENTS}
    few = model.evaluate({**x, "masked_positions": np.array([[1], [2]])}, np.array([[5], [6]]), verbose=0)
    padded = {**x, "masked_positions": np.array([[1, 0, 0], [2, 0, 0]])}
    assert model.evaluate(padded, np.array([[5, -1, -1], [6, -1, -1]]), verbose=0) == pytest.approx(few, abs=1e-6)


def test_span_never_picks_padding():
    model = tiny("span")
    for seed in range(5):
        shake(model, seed)
        logits = numpy(model(TOKENS))  # (B, T, 2)
        chances = numpy(ops.softmax(logits, axis=1))
        assert np.all(chances[1, 4:] == 0) and np.all(logits.argmax(axis=1)[1] < 4)
        np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-5)


def test_span_loss_and_accuracy_in_numpy():
    model = tiny("span")
    logits = numpy(model(TOKENS)).astype("float64")
    labels = np.array([[2, 4], [-1, 3]])
    lse = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)  # (B, 2)
    want = np.mean([lse[0, 0] - logits[0, 2, 0], lse[0, 1] - logits[0, 4, 1], lse[1, 1] - logits[1, 3, 1]])
    assert float(model.head.default_loss()(labels, ops.array(logits))) == pytest.approx(want, abs=1e-5)
    metric = model.head.default_metrics()[0]
    best = logits.argmax(axis=1)
    metric.update_state(best, ops.array(logits))
    metric.update_state(np.stack([best[0], [best[1, 0], (best[1, 1] + 1) % 4]]), ops.array(logits))
    metric.update_state(np.stack([best[0] * 0 - 1, best[1]]), ops.array(logits))  # the first does not count
    assert float(metric.result()) == pytest.approx(4 / 5)


def test_any_head_to_any_other_keeps_the_body():
    first = tiny("pretraining")
    want = {n: numpy(o) for n, o in first.body({"tokens": TOKENS, "segments": SEGMENTS}).items()}
    model = first
    for head in ("span", "tagger", "classifier", "features", "masked_language_model", "pretraining", "features"):
        model = model.with_head(head, **HEADS[head])
        got = model.body({"tokens": TOKENS, "segments": SEGMENTS})
        for name in want:
            np.testing.assert_array_equal(numpy(got[name]), want[name])
    assert {w.path for w in model.weights if not w.trainable} == {"pooler/kernel", "pooler/bias"}


def test_the_pooler_trains_with_the_classifier_only_where_it_is_read():
    assert {w.path for w in tiny("classifier").trainable_variables} >= {"pooler/kernel", "pooler/bias"}
    other = kerastf.create_model("bert", **TINY, head={"name": "classifier", "num_classes": 3, "pooling": "mean"})
    assert not {w.path for w in other.trainable_variables} & {"pooler/kernel", "pooler/bias"}


def test_attention_weights_of_every_layer():
    weights = [numpy(w) for w in tiny("features").attention_weights(TOKENS, SEGMENTS)]
    assert len(weights) == 2 and weights[0].shape == (2, 2, 6, 6)
    assert np.all(weights[1][1, :, :, 4:] == 0) and np.all(weights[1][0] > 0)


def test_freezing_holds_through_fit_and_saving(tmp_path):
    model = tiny("classifier")
    model.body.trainable = False
    model.blocks[-1].trainable = True
    trained = {w.path for w in model.trainable_variables}
    assert {p.split("/")[0] for p in trained} == {"layer_1", "head"}
    model.compile("adamw")
    before = {w.path: numpy(w).copy() for w in model.weights}
    model.fit(TOKENS, np.array([0, 1]), epochs=2, verbose=0)
    assert {w.path for w in model.weights if not np.array_equal(numpy(w), before[w.path])} == trained
    model.save(tmp_path / "frozen.keras")
    again = kerastf.load_model(tmp_path / "frozen.keras")
    assert {w.path for w in again.trainable_variables} == trained
    again.fit(TOKENS, np.array([0, 1]), verbose=0)
    assert len(model.with_head("classifier", num_classes=2).trainable_variables) == len(model.weights)


def test_lora(tmp_path):
    model = tiny("classifier")
    before = numpy(model(TOKENS))
    adapted = model.enable_lora(2)
    assert len(adapted) == 2 * 4 + 1 and "layer_0/attention/qkv" in adapted and "pooler" in adapted
    np.testing.assert_allclose(numpy(model(TOKENS)), before, atol=1e-6)  # B is zero at the start
    trained = {w.path for w in model.trainable_variables}
    assert trained == {f"{p}/lora_kernel_{n}" for p in adapted for n in "ab"} | {
        "head/project/kernel",
        "head/project/bias",
    }
    model.compile(keras.optimizers.AdamW(0.05))
    old = {w.path: numpy(w).copy() for w in model.weights}
    model.fit(TOKENS, np.array([0, 1]), epochs=3, verbose=0)
    assert {w.path for w in model.weights if not np.array_equal(numpy(w), old[w.path])} == trained
    after = numpy(model(TOKENS))
    assert np.max(np.abs(after - before)) > 1e-3
    model.save(tmp_path / "lora.keras")
    merged = kerastf.load_model(tmp_path / "lora.keras")
    np.testing.assert_allclose(numpy(merged(TOKENS)), after, atol=1e-5)
    assert merged.count_params() == tiny("classifier").count_params()
    assert len(merged.trainable_variables) == len(merged.weights)
    features = model.with_head("features")(TOKENS)
    np.testing.assert_allclose(
        numpy(features), numpy(model.body({"tokens": TOKENS, "segments": None})["features"]), atol=1e-5
    )


def lora_filled(model):
    """The model with low-rank weights that make a difference."""
    model.enable_lora(2)
    for weight in model.trainable_weights:
        if "/lora_" in weight.path:
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    return model


def test_what_was_compiled_before_lora_is_not_used_after_it():
    tokenizer = text.WordTokenizer(["the", "cat", "sat"], text.BERT)
    found = []
    for early in (True, False):
        keras.utils.set_random_seed(1)
        model = kerastf.create_model(
            "bert", **{**TINY, "vocab_size": None}, tokenizer=tokenizer, head={"name": "classifier", "num_classes": 2}
        )
        shake(model, 3)
        if early:
            model.embed(["the cat"])
            model.predict(TOKENS % 5, verbose=0)
        lora_filled(model)
        found.append((model.embed(["the cat"]), model.predict(TOKENS % 5, verbose=0)))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_lora_of_some_layers_in_another_family():
    model = kerastf.create_model("gpt", **TINY)
    assert model.enable_lora(1, alpha=4, only=["attention/qkv"]) == ["layer_0/attention/qkv", "layer_1/attention/qkv"]
    assert len(model.trainable_variables) == 4  # the head is tied


@pytest.fixture(scope="module")
def speaker():
    tokenizer = text.WordTokenizer(["the", "cat", "dog", "sat", "ran", "."], text.BERT)
    model = kerastf.create_model("bert", **{**TINY, "vocab_size": None}, tokenizer=tokenizer)
    shake(model, 3)
    return model


def test_fill_mask(speaker):
    both = speaker.fill_mask("the [MASK] sat [MASK]", k=3)
    assert len(both) == 2 and [len(b) for b in both] == [3, 3]
    assert speaker.fill_mask("the [MASK] sat [MASK]", k=11)[0][:3] == both[0]
    assert sum(p for _, p in speaker.fill_mask("[MASK]", k=11)[0]) == pytest.approx(1)
    row = [speaker.tokenizer.class_id, 0, speaker.tokenizer.mask_id, 3, speaker.tokenizer.separator_id]
    logits = numpy(speaker(np.array([row]))["masked_tokens"])[0, 2]
    assert speaker.fill_mask("the [MASK] sat", k=1)[0][0][0] == speaker.tokenizer.label(int(logits.argmax()))
    assert speaker.fill_mask(row, k=1) == speaker.fill_mask("the [MASK] sat", k=1)


def test_embed(speaker):
    texts = ["the cat sat.", "the dog", "", "the cat sat the dog. the dog ran. the cat the cat"]  # 14 words: cut
    with pytest.raises(InputError, match="A tokenizer encodes one string. Received: 3"):
        speaker.embed([*texts, 3])
    vectors = speaker.embed(texts, batch_size=2)
    assert vectors.shape == (4, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    for one, whole in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(speaker.embed(one), whole, atol=1e-5)
    row = [speaker.tokenizer.class_id, 0, 2, speaker.tokenizer.separator_id]
    found = speaker.body({"tokens": np.array([row]), "segments": None})
    features, pooled = numpy(found["features"])[0], numpy(found["pooled"])[0]
    for pooling, want in (("mean", features.mean(0)), ("first", features[0]), ("pooler", pooled)):
        np.testing.assert_allclose(speaker.embed("the dog", pooling=pooling, normalize=False), want, atol=1e-5)
    assert speaker.embed([]).shape == (0, 16)


@pytest.mark.slow
def test_learns_both_tasks_in_one_fit():
    """Each row is one of six patterns twice; the second half follows where it is the same pattern."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    patterns = rng.integers(4, 13, (6, 3))
    first = rng.integers(0, 6, 2048)
    real = rng.integers(0, 2, 2048)
    second = np.where(real, first, (first + rng.integers(1, 6, 2048)) % 6)
    ones = np.ones((2048, 1), "int32")
    tokens = np.concatenate([ones, patterns[first], 2 * ones, patterns[second], 2 * ones], axis=1).astype("int32")
    segments = np.tile(np.array([0] * 5 + [1] * 4, "int32"), (2048, 1))
    positions = rng.integers(1, 4, (2048, 1)) + rng.integers(0, 2, (2048, 1)) * 4
    hidden = np.take_along_axis(tokens, positions, axis=1)
    np.put_along_axis(tokens, positions, 3, axis=1)
    model = kerastf.create_model("bert", **{**TINY, "dim": 32, "num_heads": 4})
    model.compile(keras.optimizers.AdamW(3e-3))
    x = {"tokens": tokens, "segments": segments, "masked_positions": positions.astype("int32")}
    y = {"masked_tokens": hidden, "next_sentence": real}
    model.fit(x, y, batch_size=64, epochs=12, verbose=0)
    found = model.evaluate(x, y, batch_size=512, verbose=0, return_dict=True)
    assert set(found) == {
        "loss",
        "masked_tokens_loss",
        "next_sentence_loss",
        "masked_tokens_accuracy",
        "next_sentence_accuracy",
    }
    assert found["masked_tokens_loss"] < 0.5 and found["next_sentence_loss"] < 0.3  # chance: ln 9 = 2.2, ln 2 = 0.69
    assert found["loss"] == pytest.approx(found["masked_tokens_loss"] + found["next_sentence_loss"], abs=1e-4)
    with_head = model.with_head("classifier", num_classes=2)
    with_head.compile(keras.optimizers.AdamW(3e-3))
    with_head.fit({"tokens": tokens, "segments": segments}, real, batch_size=64, verbose=0)
    assert (
        with_head.evaluate({"tokens": tokens, "segments": segments}, real, verbose=0, return_dict=True)["accuracy"]
        > 0.9
    )


def test_a_vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[unused0]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncafe\n##s\n!\n", "utf-8")
    tokenizer = text.WordPieceTokenizer.from_vocabulary(path)
    assert tokenizer.special_tokens == text.BERT and tokenizer.vocab_size == 9
    assert tokenizer.special_ids == {"pad": 0, "unknown": 2, "class": 3, "separator": 4, "mask": 5}
    assert tokenizer.encode("cafes!") == [6, 7, 8]  # the lines of the file
    assert [tokenizer.label(n) for n in tokenizer.encode("Caf\u00e9s\u200b! tea")] == ["cafe", "##s", "!", "<unknown>"]
    assert text.from_config(tokenizer.get_config()).encode("Caf\u00e9s") == tokenizer.encode("Caf\u00e9s")
    path.write_text("cafe\n[UNK]\n")
    with pytest.raises(FileFormatError) as error:
        text.WordPieceTokenizer.from_vocabulary(path)
    assert str(error.value) == "vocab.txt is not a vocabulary of BERT: it has no [PAD], [CLS], [SEP], [MASK]."
