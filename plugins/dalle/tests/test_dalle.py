"""DALL-E: contract, sequences, the loss beside NumPy, drawing, saving."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops
from kerastf_dalle import DALLE, PartsCrossEntropy
from kerastf_dalle.losses import PartLoss

import kerastf
from kerastf import text
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_block, check_model

DVAE = {"image_size": 16, "num_codes": 8, "dim": 8, "num_residual": 1}
SMALL = {"text_length": 5, "dim": 16, "num_layers": 2, "num_heads": 2, "dvae": DVAE, "dropout": 0.0}
CAPTIONS = ["one red circle", "two blue squares here", "three"]


def create(**options):
    """A small model whose weights are large enough for codes to differ."""
    keras.utils.set_random_seed(2)
    tokenizer = text.train("word", CAPTIONS, special_tokens=("pad",))
    model = kerastf.create_model("dalle/dalle", **{**SMALL, "tokenizer": tokenizer, "initializer_std": 0.5, **options})
    model.transformer.embedding.matrix.assign(
        np.random.default_rng(0).normal(size=model.transformer.embedding.matrix.shape)
    )
    return model


def images(count=3, seed=0):
    return np.random.default_rng(seed).uniform(size=(count, 16, 16, 3)).astype("float32")


# --- contract


@pytest.mark.parametrize("options", [
    {"position": "rotary", "norm": "rms", "feedforward": "gated"},
    {"position": "dalle/learned_2d", "norm_order": "post"},
    {"position": "relative_2d", "num_layers": 1},
], ids=["rotary", "learned_2d", "relative_2d"])  # fmt: skip
def test_contract_with_slots(options):
    check_model("dalle/dalle", only=["config", "steps"], **options)


def test_position_contract():
    check_block("position", "dalle/learned_2d")
    check_block("position", "dalle/learned_2d", prefix=0)


def test_position_is_rows_plus_columns():
    block = kerastf.create_block("position", "dalle/learned_2d", grid=[2, 3], prefix=2)
    got = ops.convert_to_numpy(block(ops.zeros((1, 8, 4))))[0]
    rows, columns, leading = (ops.convert_to_numpy(w) for w in (block.rows, block.columns, block.leading))
    want = [leading[0], leading[1], *(rows[r] + columns[c] for r in range(2) for c in range(3))]
    np.testing.assert_allclose(got, np.stack(want), atol=1e-6)


def test_sizes_flow_into_the_blocks():
    model = create(position="sinusoidal_2d")
    assert (model.transformer.position.grid, model.transformer.position.prefix) == ([4, 4], 5)
    assert model.max_length == 5 + 16
    assert model.output_shape == (None, None, model.tokenizer.vocab_size + 8)


# --- training


def test_sequences():
    model = create()
    size, pad = model.options["vocab_size"], model.tokenizer.pad_id
    x, y = model.sequences(CAPTIONS, images())
    assert x.shape == y.shape == (3, 20)
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    assert x[0, :5].tolist() == [*model.tokenizer.encode(CAPTIONS[0]), pad, pad]
    codes = model.dvae.encode(images())
    np.testing.assert_array_equal(np.concatenate([x, y[:, -1:]], axis=1)[:, 5:], codes.reshape(3, 16) + size)
    again = model.sequences([model.tokenizer.encode(c) for c in CAPTIONS], codes)
    np.testing.assert_array_equal(again[0], x)


def by_hand(labels, logits, text_length, vocab_size, pad_id):
    """Mean cross-entropies of text and image, one position at a time."""
    sums, counts = [0.0, 0.0], [0, 0]
    for row in range(len(labels)):
        for t, label in enumerate(labels[row]):
            is_code = t + 1 >= text_length
            if not is_code and label == pad_id:
                continue
            scores = logits[row, t, vocab_size:] if is_code else logits[row, t, :vocab_size]
            chance = np.exp(scores.astype("float64"))
            sums[is_code] -= np.log(chance[label - vocab_size * is_code] / chance.sum())
            counts[is_code] += 1
    return [s / c for s, c in zip(sums, counts, strict=True)]


def test_the_loss_is_the_weighted_parts_by_hand():
    model = create(text_weight=0.3, image_weight=0.5)
    x, y = model.sequences(CAPTIONS, images())
    model.compile("adam", jit_compile=False)
    found = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    logits = ops.convert_to_numpy(model(x))
    words, codes = by_hand(y, logits, 5, model.options["vocab_size"], model.tokenizer.pad_id)
    assert abs(found["text_loss"] - words) < 1e-4 and abs(found["image_loss"] - codes) < 1e-4
    assert abs(found["loss"] - (0.3 * words + 0.5 * codes)) < 1e-4


def test_the_default_weights_are_the_papers():
    config = create().default_loss().get_config()
    assert (config["text_weight"], config["image_weight"]) == (1 / 8, 7 / 8)
    assert PartsCrossEntropy.from_config(config).get_config() == config
    metric = PartLoss(1, 5, 9, 8)
    assert PartLoss.from_config(metric.get_config()).get_config() == metric.get_config()


def test_rows_of_weight_nothing_do_not_count():
    model = create()
    x, y = model.sequences(CAPTIONS, images())
    loss, logits = model.default_loss(), model(x)
    alone = loss(y[:1], logits[:1])
    np.testing.assert_allclose(float(loss(y, logits, np.array([1.0, 0.0, 0.0]))), float(alone), rtol=1e-5)


def test_training_leaves_the_dvae_alone():
    model = create()
    before = [w.copy() for w in model.dvae.get_weights()]
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    loss = model.fit(*model.sequences(CAPTIONS, images()), epochs=3, verbose=0).history["loss"]
    assert loss[-1] < loss[0]
    for old, new in zip(before, model.dvae.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    frozen = {id(w) for w in model.dvae.weights}
    assert not any(id(w) in frozen for w in model.trainable_weights)


# --- drawing


def slow_codes(model, captions):
    """Greedy codes by the whole sequence again for each, without any state, and chosen in NumPy."""
    size, length = model.options["vocab_size"], model.options["text_length"]
    rows = []
    for caption in captions:
        row = model.tokenizer.encode(caption)
        row += [model.tokenizer.pad_id] * (length - len(row))
        for _ in range(16):
            logits = ops.convert_to_numpy(model(np.array([row], "int32")))[0, -1]
            row.append(size + int(np.argmax(logits[size:])))
        rows.append(np.array(row[length:]).reshape(4, 4) - size)
    return np.stack(rows)


@pytest.mark.parametrize("position", [pytest.param("rotary", marks=pytest.mark.slow), "dalle/learned_2d"])
def test_generate_equals_the_slow_loop(position):
    model = create(position=position)
    codes = model.generate_codes(CAPTIONS)
    np.testing.assert_array_equal(codes, slow_codes(model, CAPTIONS))
    assert len({c.tobytes() for c in codes}) > 1, "the captions make no difference, so this proves nothing"
    np.testing.assert_array_equal(model.generate(CAPTIONS), model.dvae.decode(codes))


def test_only_codes_are_drawn_even_where_words_are_likelier():
    model = create()
    matrix = ops.convert_to_numpy(model.transformer.embedding.matrix).copy()
    size = model.options["vocab_size"]
    matrix[size:] *= 1e-3  # logits of codes are near 0, those of words are not
    model.transformer.embedding.matrix.assign(matrix)
    tokens = model.sequences(CAPTIONS, images())[0]
    assert (ops.convert_to_numpy(model(tokens))[:, 4:].argmax(-1) < size).any(), "no word is likelier anywhere"
    for sampler in ("greedy", "random"):
        codes = model.generate_codes(CAPTIONS, sampler=sampler, seed=1)
        assert codes.min() >= 0 and codes.max() < 8


@pytest.mark.slow
def test_samplers_and_seeds():
    model = create()
    first, again, other = (model.generate_codes(CAPTIONS, sampler="random", seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)
    np.testing.assert_array_equal(
        model.generate(CAPTIONS, sampler={"name": "top_k", "k": 1}, seed=5), model.generate(CAPTIONS)
    )


def test_the_form_of_captions():
    model = create()
    tokens = [model.tokenizer.encode(c) for c in CAPTIONS]
    whole = model.generate(CAPTIONS)
    assert whole.shape == (3, 16, 16, 3) and whole.min() >= 0 and whole.max() <= 1
    np.testing.assert_array_equal(model.generate(tokens), whole)
    np.testing.assert_allclose(model.generate(CAPTIONS[0]), whole[0], atol=1e-6)
    np.testing.assert_allclose(model.generate(tokens[0]), whole[0], atol=1e-6)


# --- the dVAE within, and files

FRESH = """
import sys, numpy as np, kerastf
model = kerastf.load_model(sys.argv[1])
np.save(sys.argv[2], model.generate({captions!r}, sampler="top_k", seed=3))
"""


def test_a_trained_dvae_travels_in_the_file_and_draws_the_same_bit_for_bit(tmp_path):
    dvae = kerastf.create_model("dalle/dvae", **DVAE)
    dvae.compile("adam", jit_compile=False)
    dvae.fit(images(8), verbose=0)
    model = create(dvae=dvae)
    np.testing.assert_array_equal(model.dvae.encode(images()), dvae.encode(images()))
    model.compile("adam", jit_compile=False)
    model.fit(*model.sequences(CAPTIONS, images()), verbose=0)
    want = model.generate(CAPTIONS, sampler="top_k", seed=3)
    model.save(tmp_path / "dalle.keras")
    code = FRESH.format(captions=CAPTIONS)
    subprocess.run([sys.executable, "-c", code, tmp_path / "dalle.keras", tmp_path / "drawn.npy"], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "drawn.npy"), want)


def test_the_dvae_is_copied_not_shared():
    dvae = kerastf.create_model("dalle/dvae", **DVAE)
    model = create(dvae=dvae)
    before = model.dvae.get_weights()[0].copy()
    dvae.set_weights([w * 0 for w in dvae.get_weights()])
    np.testing.assert_array_equal(model.dvae.get_weights()[0], before)
    assert dvae.trainable and not model.dvae.trainable
    again = DALLE.from_config(model.get_config())
    assert again.get_config() == model.get_config() and not again.dvae.trainable
    assert "frozen" not in model.get_config()


def test_presets():
    model = kerastf.create_model("dalle/dalle.tiny", vocab_size=20, pad_id=0)
    assert model.generate([[1, 2]]).shape == (1, 32, 32, 3)
    assert set(kerastf.list_models("dalle/*")) == {"dalle/dalle.small", "dalle/dalle.tiny", "dalle/dvae.small", "dalle/dvae.tiny"}  # fmt: skip


def test_mistakes():
    with pytest.raises(ConfigError, match=r"`dvae` must be a `dalle/dvae` model or a dict. Received: a Sequential"):
        create(dvae=keras.Sequential())
    with pytest.raises(
        ConfigError, match=r"`dalle/dvae` has no option `codes`. Did you mean `num_codes`.*Received: codes=3"
    ):
        create(dvae={"codes": 3})
    with pytest.raises(ConfigError, match=r"`text_weight` must not be negative. Received: text_weight=-1"):
        create(text_weight=-1.0)
    model = create()
    with pytest.raises(InputError, match=r"A caption has 5 positions. Received: a caption of 6 tokens"):
        model.generate("one one one one one one")
    with pytest.raises(InputError, match=r"Each image has a caption. Received: 3 captions, 2 images"):
        model.sequences(CAPTIONS, images(2))
    x, y = model.sequences(CAPTIONS, images())
    with pytest.raises(InputError, match=r"Codes must be in \[\d+, \d+\) in the input. Received: 0"):
        model.fit(x * (np.arange(20) < 12), y)
    with pytest.raises(InputError, match=r"in the targets. Received: "):
        model.fit(x, x)
    with pytest.raises(InputError, match=r"The model has 21 positions.*Received: 40 positions"):
        model.fit(np.concatenate([x, x], axis=1), y)
    with pytest.raises(InputError, match=r"head='classifier'"):
        model.with_head("classifier")
    without = kerastf.create_model("dalle/dalle", vocab_size=9, **SMALL)
    with pytest.raises(InputError, match=r"need a padding token"):
        without.generate([[1, 2]])
