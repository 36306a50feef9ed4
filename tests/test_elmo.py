"""ELMo: every part against NumPy, what each direction sees, mistakes, the contract with other options."""

import numpy as np
import pytest
from tensors import numpy
from tiny_elmo import TINY, numpy_cell, numpy_layers, sigmoid, weights_at

import kerastf
from kerastf.blocks.characters import CharacterCNN, Highway
from kerastf.blocks.mix import ScalarMix
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_block, check_model
from kerastf.testing.subjects import shake

CHARACTERS = {"name": "character_cnn", "filters": [[1, 4], [3, 5]], "character_dim": 3, "max_characters": 7}


# --- the parts, against NumPy


def test_the_cell_equals_numpy_where_both_bounds_are_met():
    cell = kerastf.create_block("cell", "projected_lstm", units=9, projection=4, cell_clip=0.8, projection_clip=0.5)
    rng = np.random.default_rng(0)
    x, h, c = (rng.normal(size=(5, n)).astype("float32") for n in (3, 4, 9))
    cell(x, [h, c])
    shake(cell, 1)
    output, (new_h, new_c) = cell(x, [h, c])
    weights = {w.path.rsplit("/", 1)[-1]: numpy(w).astype("float64") for w in cell.weights}
    for row in range(5):
        want_h, want_c = numpy_cell(weights, x[row], h[row], c[row], 0.8, 0.5)
        np.testing.assert_allclose(numpy(output)[row], want_h, atol=1e-5)
        np.testing.assert_allclose(numpy(new_h)[row], want_h, atol=1e-5)
        np.testing.assert_allclose(numpy(new_c)[row], want_c, atol=1e-5)
    assert np.isclose(np.abs(numpy(new_c)).max(), 0.8) and np.isclose(np.abs(numpy(output)).max(), 0.5)


def test_the_cell_without_projection_is_as_wide_as_its_memory():
    cell = kerastf.create_block("cell", "projected_lstm", units=5)
    assert cell.state_size == [5, 5] and cell.output_size == 5
    check_block("cell", "projected_lstm", units=5, projection=None, only=["states", "config"])


def numpy_highway(x, weights):
    carried = []
    for row in x:
        gate = sigmoid(row @ weights["gate/kernel"] + weights["gate/bias"])
        new = np.maximum(row @ weights["transform/kernel"] + weights["transform/bias"], 0)
        carried.append([g * n + (1 - g) * r for g, n, r in zip(gate, new, row, strict=True)])
    return np.array(carried)


def test_a_highway_equals_numpy_and_carries_at_first():
    layer = Highway(name="highway")
    x = np.random.default_rng(0).normal(size=(4, 6)).astype("float32")
    layer(x)
    assert numpy(layer.gate.bias).tolist() == [-2] * 6
    shake(layer, 1)
    weights = {w.path.removeprefix("highway/"): numpy(w) for w in layer.weights}
    np.testing.assert_allclose(numpy(layer(x)), numpy_highway(x, weights), atol=1e-5)
    assert Highway.from_config(layer.get_config()).activation == "relu"


def numpy_word(characters, weights, filters, num_highway, activation):
    """The vector of one word, place by place."""
    vectors = np.stack([weights["matrix"][c - 1] if c else np.zeros(weights["matrix"].shape[1]) for c in characters])
    found = []
    for i, (width, count) in enumerate(filters):
        best = np.full(count, -np.inf)
        for place in range(len(characters) - width + 1):
            value = weights[f"filter_{i}/bias"].copy()
            for k in range(width):
                value += vectors[place + k] @ weights[f"filter_{i}/kernel"][k]
            best = np.maximum(best, np.tanh(value) if activation == "tanh" else np.maximum(value, 0))
        found.append(best)
    x = np.concatenate(found)[None]
    for i in range(num_highway):
        x = numpy_highway(x, {k.removeprefix(f"highway_{i}/"): v for k, v in weights.items()})
    return (x @ weights["project/kernel"] + weights["project/bias"])[0] if "project/kernel" in weights else x[0]


@pytest.mark.parametrize("dim, num_highway, activation", [(6, 2, "relu"), (9, 1, "tanh"), (5, 0, "relu")])
def test_the_character_cnn_equals_numpy(dim, num_highway, activation):
    options = {**CHARACTERS, "num_highway": num_highway, "activation": activation}
    block = CharacterCNN(dim, **{k: v for k, v in options.items() if k != "name"}, name="cnn")
    tokens = np.random.default_rng(0).integers(0, 262, (2, 3, 7))
    tokens[0, 0] = 0
    block(tokens)
    shake(block, 1)
    weights = {w.path.removeprefix("cnn/"): numpy(w).astype("float64") for w in block.weights}
    got = numpy(block(tokens))
    for row, word in np.ndindex(2, 3):
        want = numpy_word(tokens[row, word], weights, CHARACTERS["filters"], num_highway, activation)
        np.testing.assert_allclose(got[row, word], want, atol=1e-5)
    assert ("project/kernel" in weights) == (dim != 9)


def test_the_mix_equals_numpy():
    x = np.random.default_rng(0).normal(3, 2, size=(2, 3, 4, 6)).astype("float32")
    for norm in (False, True):
        mix = ScalarMix(norm=norm)
        mix(x)
        mix.scores.assign([0.5, -1.0, 2.0])
        mix.gamma.assign(1.5)
        layers = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) if norm else x
        weights = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
        want = 1.5 * sum(w * layers[:, i] for i, w in enumerate(weights))
        np.testing.assert_allclose(numpy(mix(x)), want, atol=1e-4)
        assert ScalarMix.from_config(mix.get_config()).norm == norm
        assert mix.compute_output_shape((2, 3, 4, 6)) == (2, 4, 6)


@pytest.mark.parametrize("residual", [True, False])
def test_all_layers_equal_numpy(residual):
    model = kerastf.create_model(
        "elmo", **TINY, embedding="token", residual=residual, pad_id=0, cell_clip=0.4, projection_clip=0.2
    )
    shake(model, 1)
    tokens = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    layers = model.embed(tokens)
    assert layers.shape == (2, 3, 5, 8)
    matrix = weights_at(model, "embedding/")["matrix"]
    for row, length in ((0, 5), (1, 3)):
        want = numpy_layers(model, matrix[tokens[row, :length]])
        np.testing.assert_allclose(layers[row, :, :length], want, atol=1e-5)
    assert not layers[1, :, 3:].any()
    top = numpy_layers(model, matrix[tokens[0]])[-1]
    want = np.stack([top[:, :4] @ matrix.T, top[:, 4:] @ matrix.T], axis=1) + numpy(model.head.shift)
    np.testing.assert_allclose(numpy(model(tokens))[0], want, atol=1e-5)


def test_reading_goes_on_from_states():
    """Forwards, two pieces give what the whole gives."""
    model = kerastf.create_model("elmo", **TINY, embedding="token")
    shake(model, 1)
    tokens = np.random.default_rng(0).integers(0, 11, (2, 7))
    whole, _ = model.read(tokens)
    _, states = model.read(tokens[:, :3])
    second, _ = model.read(tokens[:, 3:], states)
    np.testing.assert_allclose(numpy(second)[..., :4], numpy(whole)[:, :, 3:, :4], atol=1e-6)


@pytest.mark.parametrize("embedding", ["token", CHARACTERS], ids=["words", "characters"])
def test_neither_direction_sees_what_it_is_to_predict(embedding):
    model = kerastf.create_model("elmo", **TINY, embedding=embedding)
    shake(model, 1)
    rng = np.random.default_rng(0)
    shape, top = ((2, 6), 11) if embedding == "token" else ((2, 6, 7), 262)
    tokens = rng.integers(1, top, shape)
    before = numpy(model(tokens))
    for t in range(6):
        changed = tokens.copy()
        changed[:, t] = rng.integers(1, top, changed[:, t].shape)
        gap = np.abs(numpy(model(changed)) - before).max(axis=(0, 3))  # (T, 2)
        assert not gap[:t, 0].any() and gap[t:, 0].all()
        assert not gap[t + 1 :, 1].any() and gap[: t + 1, 1].all()


# --- mistakes


def config_message(family="elmo", **options):
    with pytest.raises((ConfigError, ValueError, LookupError)) as caught:
        kerastf.create_model(family, **{**TINY, **options})
    return str(caught.value)


def test_mistakes_in_a_configuration():
    assert config_message(cell={"name": "lstm", "units": 5}) == (
        "Each cell must be as wide as the embedding, dim=4. Received: outputs 5, 5 wide"
    )
    assert config_message(head="language_model") == (
        "The features have seen the word that `language_model` is to predict. Write "
        "head='bidirectional_language_model'. Received: head='language_model'"
    )
    assert config_message(embedding={**CHARACTERS, "max_characters": 2}) == (
        "embedding `character_cnn`: `max_characters` must hold the widest filter, 3. Received: max_characters=2"
    )
    assert config_message(embedding={**CHARACTERS, "activation": "swish"}) == (
        "embedding `character_cnn`: `activation` must be one of 'relu', 'tanh'. Received: activation='swish'"
    )
    assert config_message(head={"name": "bidirectional_language_model", "num_samples": 12}) == (
        "head `bidirectional_language_model`: `num_samples` must be in [1, 11], as vocab_size=11 says, or None. "
        "Received: num_samples=12"
    )
    tied = {"name": "bidirectional_language_model", "tied": True}
    assert "embedding `character_cnn` does not support tied" in config_message(head=tied)
    assert "`vocab_size` is needed" in config_message(vocab_size=None)
    assert "`vocab_size` is needed" in config_message(vocab_size=None, head="features", embedding="token")
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=4, num_heads=2, num_layers=1, embedding="character_cnn",
                             head="features")  # fmt: skip
    assert str(caught.value) == (
        "embedding `character_cnn` reads words as characters, and `gpt` reads tokens. "
        "Received: embedding='character_cnn'"
    )


def test_mistakes_in_data():
    model = kerastf.create_model("elmo", **TINY, embedding=CHARACTERS)
    model.compile()
    good = np.ones((2, 3, 7), dtype=int)

    def message(call, *arguments):
        with pytest.raises(InputError) as caught:
            call(*arguments)
        return str(caught.value)

    assert message(model.fit, good[:, :, 0], np.ones((2, 3), int)) == (
        "The input must be characters of shape (rows, length, 7). Received: shape (2, 3)"
    )
    assert message(model.fit, good + 261, np.ones((2, 3), int)) == "Characters must be in [0, 262). Received: 262"
    assert message(model.fit, good, np.ones((2, 4), int)) == (
        "The head `bidirectional_language_model` wants targets of shape (2, 3) for this input. Received: shape (2, 4)"
    )
    assert message(model.fit, good, np.full((2, 3), 11)) == (
        "Targets of the head `bidirectional_language_model` must be in [0, 11). Received: 11"
    )
    assert message(model.embed, ["a b"]) == (
        "Sentences need a tokenizer of the kind `word_characters`. Build the model with "
        "tokenizer=kerastf.text.WordCharacterTokenizer(words). Received: tokenizer=None"
    )
    assert message(model.embed, "a b") == "Sentences are a list, even where there is one. Received: 'a b'"
    assert message(model.embed, []) == "There is nothing to embed. Received: sentences=[]"
    assert message(model.generate, [1]).startswith("This model cannot generate: the head")
    words = kerastf.create_model("elmo", **TINY, embedding="token")
    assert message(words.check_data, np.full((2, 3), 11), None) == "Tokens must be in [0, 11). Received: 11"


# --- the contract with other options


@pytest.mark.parametrize(
    "options",
    [
        {"embedding": CHARACTERS, "head": {"name": "tagger", "num_classes": 3}, "mix_norm": True},
        {"embedding": CHARACTERS, "head": {"name": "classifier", "num_classes": 3}, "cell": {"name": "gru", "units": 6}, "residual": False},
    ],
    ids=["tagger", "classifier"],
)  # fmt: skip
def test_model_contract_with_slots(options):
    check_model("elmo", only=["config", "shapes", "gradients", "padding", "batch", "save"], **options)


@pytest.mark.slow
def test_model_contract_of_the_language_model_over_characters():
    head = {"name": "bidirectional_language_model", "num_samples": 6}
    check_model("elmo", embedding=CHARACTERS, head=head, only=["gradients", "padding", "fit"])
