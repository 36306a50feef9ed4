"""ELMo: every part against NumPy, the authors' own weights and outputs, sampling, features for a task, two senses of a word."""

import json
import math
import os
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import bilm_files, compat, data, plots, text
from kerastf.blocks.bilm import BidirectionalLanguageModel, TwoWayCrossEntropy, TwoWayPerplexity, two_way_targets
from kerastf.blocks.characters import CharacterCNN, Highway
from kerastf.blocks.mix import ScalarMix
from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.testing import check_block, check_model
from kerastf.testing.subjects import shake

SHARED = Path(os.environ.get("KERASTF_DATA", Path(__file__).parents[2] / "shared" / "data")) / "elmo_bilm"
CHARACTERS = {"name": "character_cnn", "filters": [[1, 4], [3, 5]], "character_dim": 3, "max_characters": 7}
TINY = {"vocab_size": 11, "dim": 4, "units": 6, "num_layers": 2, "dropout": 0.0}


def numpy(x):
    return ops.convert_to_numpy(x)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def weights_at(model, prefix):
    found = {w.path: numpy(w).astype("float64") for w in model.weights}
    return {p.removeprefix(prefix): w for p, w in found.items() if p.startswith(prefix)}


# --- the parts, against NumPy


def numpy_cell(weights, x, h, c, cell_clip, projection_clip):
    """One step for one row, one unit at a time."""
    units = len(c)
    sums = weights["bias"] + x @ weights["kernel"] + h @ weights["recurrent_kernel"]
    memory = np.zeros(units)
    shown = np.zeros(units)
    for u in range(units):
        write, keep, fresh, show = (sums[gate * units + u] for gate in range(4))
        memory[u] = c[u] / (1 + math.exp(-keep)) + math.tanh(fresh) / (1 + math.exp(-write))
        memory[u] = max(-cell_clip, min(cell_clip, memory[u]))
        shown[u] = math.tanh(memory[u]) / (1 + math.exp(-show))
    out = np.array([sum(shown[u] * weights["projection_kernel"][u, p] for u in range(units)) for p in range(len(h))])
    return np.array([max(-projection_clip, min(projection_clip, v)) for v in out]), memory


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


def numpy_layers(model, x):
    """All layers of one sentence of embeddings `(T, C)`."""
    options, sides = model.options, []
    for direction, order in (("forwards", 1), ("backwards", -1)):
        inputs, outputs = x[::order], [x]
        for i in range(options["num_layers"]):
            weights = weights_at(model, f"{direction}_{i}/cell/")
            h, c, rows = np.zeros(options["dim"]), np.zeros(options["units"]), []
            for step in inputs:
                h, c = numpy_cell(weights, step, h, c, options["cell_clip"], options["projection_clip"])
                rows.append(h + step if options["residual"] and i > 0 else h)
            inputs = np.array(rows)
            outputs.append(inputs[::order])
        sides.append(outputs)
    return np.stack([np.concatenate([a, b], axis=-1) for a, b in zip(*sides, strict=True)])


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


# --- the loss


def test_targets_of_both_directions():
    got = numpy(two_way_targets(np.array([[1, 5, 6, 2, 0, 0], [1, 2, 0, 0, 0, 0]]), pad_id=0))
    assert got[..., 0].tolist() == [[5, 6, 2, -1, -1, -1], [2, -1, -1, -1, -1, -1]]
    assert got[..., 1].tolist() == [[-1, 1, 5, 6, -1, -1], [-1, 1, -1, -1, -1, -1]]
    assert numpy(two_way_targets(np.array([[0, 3]]))).tolist() == [[[3, -1], [-1, 0]]]


def test_loss_and_perplexities_equal_numpy():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 4, 2, 5)).astype("float32")
    tokens = np.array([[1, 3, 4, 2], [1, 2, 0, 0]])
    losses = [[], []]
    for row, length in ((0, 4), (1, 2)):
        for t in range(length):
            for side, other in ((0, t + 1), (1, t - 1)):
                if 0 <= other < length:
                    x = logits[row, t, side]
                    losses[side].append(np.log(np.exp(x).sum()) - x[tokens[row, other]])
    want = np.mean(losses[0] + losses[1])
    np.testing.assert_allclose(float(TwoWayCrossEntropy(0)(tokens, logits)), want, rtol=1e-5)
    for side, direction in enumerate(("forward", "backward")):
        metric = TwoWayPerplexity(direction, 0)
        metric.update_state(tokens[:1], logits[:1])
        metric.update_state(tokens[1:], logits[1:])
        np.testing.assert_allclose(float(metric.result()), np.exp(np.mean(losses[side])), rtol=1e-5)
    assert TwoWayPerplexity.from_config(metric.get_config()).name == "backward_perplexity"
    assert TwoWayCrossEntropy.from_config(TwoWayCrossEntropy(3).get_config()).pad_id == 3
    with pytest.raises(ValueError, match="`direction` must be 'forward' or 'backward'"):
        TwoWayPerplexity("sideways")


def test_samples_estimate_the_whole_sum():
    """The mean over draws of `sum exp(x_k - log(S p_k))` is the sum over the vocabulary."""
    head = BidirectionalLanguageModel(vocab_size=30, num_samples=20, seed=1)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(1, 3, 8)).astype("float32")
    head(features)
    shake(head, 1)
    tokens = np.array([[29, 7, 12]])
    full = numpy(head(features)).astype("float64")  # (1, 3, 2, V)
    sums, rights = [], []
    sample = compat.graph(lambda: head.sample(ops.array(tokens), ops.array(features)))
    for _ in range(400):
        labels, logits = map(numpy, sample())
        sums.append(np.exp(logits[..., 1:].astype("float64")).sum(-1))
        rights.append(logits[..., 0])
    assert labels.tolist() == [[[0, -1], [0, 0], [-1, 0]]]
    often = 20 * np.log(np.array([9, 31]) / np.array([8, 30])) / np.log(31)
    assert np.allclose(rights[0][0, 0, 0], full[0, 0, 0, 7] - np.log(often[0]), atol=1e-4)
    assert np.allclose(rights[0][0, 1, 1], full[0, 1, 1, 29] - np.log(often[1]), atol=1e-4)
    for t, side, right in ((0, 0, 7), (1, 0, 12), (1, 1, 29), (2, 1, 7)):
        others = np.delete(np.exp(full[0, t, side]), right).sum()  # the right token is not drawn a second time
        found = np.array(sums)[:, 0, t, side]
        assert abs(found.mean() - others) < 4 * found.std() / 400**0.5


def test_sampled_training_evaluates_exactly():
    keras.utils.set_random_seed(0)
    head = {"name": "bidirectional_language_model", "num_samples": 6, "seed": 3}
    model = kerastf.create_model("elmo", **{**TINY, "num_layers": 1}, embedding="token", pad_id=0, head=head)
    rows = np.tile(np.arange(1, 9), (64, 1))
    model.compile(keras.optimizers.Adam(0.05))
    assert model(rows[:2], training=True).shape == (2, 8, 2, 11)
    before = model.evaluate(rows, rows, verbose=0, return_dict=True)
    np.testing.assert_allclose(before["loss"], float(TwoWayCrossEntropy(0)(rows, model(rows))), rtol=1e-5)
    history = model.fit(rows, rows, batch_size=16, epochs=20, verbose=0).history
    after = model.evaluate(rows, rows, verbose=0, return_dict=True)
    assert set(history) == {"loss", "forward_perplexity", "backward_perplexity"}
    assert after["forward_perplexity"] < 3 and after["backward_perplexity"] < 3 < before["backward_perplexity"]
    assert model.predict(rows[:2], verbose=0).shape == (2, 8, 2, 11)


def test_a_loss_of_the_users_own_is_given_all_logits():
    head = {"name": "bidirectional_language_model", "num_samples": 6}
    model = kerastf.create_model("elmo", **{**TINY, "num_layers": 1}, embedding="token", head=head)
    shapes = []

    def loss(y_true, y_pred):
        shapes.append(y_pred.shape[1:])
        return ops.mean(ops.square(y_pred))

    model.compile("adam", loss, run_eagerly=True)
    model.fit(np.ones((4, 5), dtype=int), np.ones((4, 5), dtype=int), verbose=0)
    assert set(map(tuple, shapes)) == {(5, 2, 11)}


# --- the original's files


@pytest.mark.skipif(not SHARED.is_dir(), reason="the original biLM is not here; KERASTF_DATA says where data is")
def test_the_authors_weights_give_the_authors_outputs():
    """Their test reads sentence i of three lists as one batch and keeps the states from batch to batch."""
    h5py = pytest.importorskip("h5py")
    model = bilm_files.load(SHARED / "options.json", SHARED / "lm_weights.hdf5")
    lists = json.loads((SHARED / "lm_embeddings_sentences.json").read_text())
    files = [h5py.File(SHARED / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    states = [[layer.init_state(3) for layer in layers] for layers in model.directions]
    read = compat.graph(model.read)  # all batches are of one length, so that there is one graph
    worst, count = 0.0, 0
    for i in range(len(lists[0])):
        tokens = model.tokenizer.encode_characters([sentences[i] for sentences in lists])
        tokens = np.pad(tokens, ((0, 0), (0, 55 - tokens.shape[1]), (0, 0)))
        layers, states = read(ops.convert_to_tensor(tokens), states)
        layers = numpy(layers)
        np.testing.assert_array_equal(layers[:, 0, :, :16], layers[:, 0, :, 16:])
        for k, file in enumerate(files):
            forward, backward = file[str(i)][...]  # of the last layer
            top = layers[k, -1, 1 : 1 + len(forward)]
            worst = max(worst, np.abs(top[:, :16] - forward).max(), np.abs(top[:, 16:] - backward).max())
            count += forward.size + backward.size
        if i == 0:  # without states there are no batches: the first of them is what `embed` gives
            alone = model.embed([lists[0][0]])
            np.testing.assert_allclose(alone[0], layers[0, :, 1 : 1 + alone.shape[2]], atol=1e-5)
            want = numpy_layers(model, layers[0, 0, : alone.shape[2] + 2, :16].astype("float64"))
            np.testing.assert_allclose(layers[0, :, : alone.shape[2] + 2], want, atol=1e-5)
    print(f"\n{count} values of theirs, largest difference {worst:.1e}")
    assert count == 23_808 and worst < 1e-5


OPTIONS = {
    "lstm": {"cell_clip": 0.5, "use_skip_connections": True, "n_layers": 2, "proj_clip": 0.3, "projection_dim": 4, "dim": 6},
    "char_cnn": {
        "embedding": {"dim": 3}, "filters": [[1, 4], [3, 5]], "n_highway": 1, "n_characters": 262, "max_characters_per_token": 10,
        "activation": "relu",
    },
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Random weights in the original's layout."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    shapes = {
        "char_embed": (261, 3), "CNN/W_cnn_0": (1, 1, 3, 4), "CNN/W_cnn_1": (1, 3, 3, 5), "CNN/b_cnn_0": (4,), "CNN/b_cnn_1": (5,),
        "CNN_high_0/W_carry": (9, 9), "CNN_high_0/b_carry": (9,), "CNN_high_0/W_transform": (9, 9), "CNN_high_0/b_transform": (9,),
        "CNN_proj/W_proj": (9, 4), "CNN_proj/b_proj": (4,),
    }  # fmt: skip
    for direction, cell in np.ndindex(2, 2):
        name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{cell}/LSTMCell"
        shapes.update({f"{name}/W_0": (8, 24), f"{name}/B": (24,), f"{name}/W_P_0": (6, 4)})
    tensors = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
    with h5py.File(tmp_path / "weights.hdf5", "w") as file:
        for name, tensor in tensors.items():
            file[name] = tensor
    (tmp_path / "options.json").write_text(json.dumps(OPTIONS))
    return tmp_path / "options.json", tmp_path / "weights.hdf5", tensors


def their_layer(tensors, direction, cell, xs):
    """The original's cell as TensorFlow 1 wrote it: one kernel, gates in the order i, j, f, o, 1 added to f."""
    name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{cell}/LSTMCell/"
    m, c, outputs = np.zeros(4), np.zeros(6), []
    for x in xs:
        i, j, f, o = np.split(np.concatenate([x, m]) @ tensors[name + "W_0"] + tensors[name + "B"], 4)
        c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.5, 0.5)
        m = np.clip((sigmoid(o) * np.tanh(c)) @ tensors[name + "W_P_0"], -0.3, 0.3)
        outputs.append(m + x if cell else m)
    return np.array(outputs)


def test_a_file_in_the_original_layout(files):
    options, weights, tensors = files
    model = bilm_files.load(options, weights)
    layers = model.embed([["so", "it", "goes"], ["unimaginably"]])
    assert layers.shape == (2, 3, 3, 8)
    tokens = model.tokenizer.encode_characters([["so", "it", "goes"]])
    x = numpy(model.embedding(tokens))[0]
    for direction, order in ((0, 1), (1, -1)):
        h = x[::order]
        for cell in range(2):
            h = their_layer(tensors, direction, cell, h)
            got = layers[0, cell + 1, :, 4 * direction : 4 * direction + 4]
            np.testing.assert_allclose(got, h[::order][1:-1], atol=1e-5)
    tagger = model.with_head("tagger", num_classes=3)
    assert tagger.predict(tokens, verbose=0).shape == (1, 5, 3)
    reader = bilm_files.load(options, weights, head={"name": "bidirectional_language_model"}, vocab_size=7)
    assert reader(tokens).shape == (1, 5, 2, 7)


def test_files_that_do_not_fit(files, tmp_path):
    h5py = pytest.importorskip("h5py")
    options, weights, _ = files
    with h5py.File(weights, "a") as file:
        del file["CNN/b_cnn_1"]
        del file["char_embed"]
        file["char_embed"] = np.zeros((50, 3))
    with pytest.raises(FileFormatError) as caught:
        bilm_files.load(options, weights)
    assert str(caught.value) == (
        "weights.hdf5 does not fit the options: char_embed has shape (50, 3), not (261, 3); CNN/b_cnn_1 is missing."
    )
    with pytest.raises(FileFormatError, match="options.json is not an HDF5 file that can be read"):
        bilm_files.load(options, options)
    (tmp_path / "other.json").write_text('{"lstm": {}}')
    with pytest.raises(FileFormatError) as caught:
        bilm_files.load(tmp_path / "other.json", weights)
    assert str(caught.value) == (
        "other.json is not the options of a two-direction language model over characters: it lacks 'char_cnn'."
    )


@pytest.mark.parametrize("preset, size", [("small", 13_593_296), ("medium", 28_027_728), ("original", 93_600_848)])
def test_published_sizes(preset, size):
    """13.6, 28.0 and 93.6 million as published, without the softmax; the mix adds its four."""
    assert kerastf.count_parameters(f"elmo.{preset}", head="features") == size + 4
    dim = {"small": 128, "medium": 256, "original": 512}[preset]
    assert kerastf.count_parameters(f"elmo.{preset}") == size + 793_471 * (dim + 1)


# --- words as characters


def test_characters_of_a_word():
    tokenizer = text.WordCharacterTokenizer(["a"], max_characters=8)
    got = tokenizer.encode_characters([["né"], ["a", "b"]])
    assert got.shape == (2, 4, 8)
    assert got[0].tolist() == [
        [259, 257, 260, 261, 261, 261, 261, 261],
        [259, 111, 196, 170, 260, 261, 261, 261],
        [259, 258, 260, 261, 261, 261, 261, 261],
        [0] * 8,
    ]
    assert tokenizer.encode_words(["a b"]).tolist() == [[2, 0, 4, 3]]
    assert tokenizer.decode([2, 0, 4, 3]) == "a" and tokenizer.label(2) == "<start>"
    again = text.from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.get_config() == tokenizer.get_config()


def test_an_over_long_word_is_cut():
    tokenizer = text.WordCharacterTokenizer(max_characters=6)
    assert tokenizer.spell_word("abcdefgh") == tokenizer.spell_word("abcdzzz") == [259, 98, 99, 100, 101, 260]
    assert text.WordCharacterTokenizer().spell_word("x" * 60) == [259, *[121] * 48, 260]
    # A cut may fall into the middle of a character: bytes are what is counted.
    assert tokenizer.spell_word("abcé")[-2:] == [196, 260]


def test_training_a_tokenizer():
    tokenizer = text.train("word_characters", ["b a b", "c b"], vocab_size=6, max_characters=9)
    assert tokenizer.words == ["b", "a"] and tokenizer.max_characters == 9


MISTAKES = [
    (lambda t: t.encode_characters([["a", ""]]), InputError, "A word is at least one character, and none of them white space. Received: ''"),
    (lambda t: t.encode_characters([["a b"]]), InputError, "A word is at least one character, and none of them white space. Received: 'a b'"),
    (lambda t: t.encode_characters([""]), InputError, "A sentence needs at least one word. Received: ''"),
    (lambda t: t.encode_characters(["a", []]), InputError, "A sentence needs at least one word. Received: []"),
    (lambda t: t.encode_words("a b"), InputError, "Sentences are a list, even where there is one. Received: 'a b'"),
    (lambda t: text.WordCharacterTokenizer(["a"], ("pad",)).encode("b"), InputError, "The tokenizer has no word 'b'; it knows 1 words. Make it with special_tokens=('unknown',) to accept others. Received: 'b'"),
    (lambda t: text.WordCharacterTokenizer(["a"], ("pad",)).encode_words(["a"]), InputError, "Boundaries need the special tokens start and end. Received: special_tokens=('pad',), boundaries=True"),
    (lambda t: text.WordCharacterTokenizer(["a b"]), ConfigError, "Each of `words` must be free of white space. Received: 'a b'"),
    (lambda t: text.WordCharacterTokenizer(max_characters=2), ConfigError, "`max_characters` must be at least 3: a byte between two marks. Received: max_characters=2"),
]  # fmt: skip


@pytest.mark.parametrize("make, kind, message", MISTAKES, ids=[m[:40] for _, _, m in MISTAKES])
def test_mistakes_with_words(make, kind, message):
    with pytest.raises(kind) as caught:
        make(text.WordCharacterTokenizer(["a"]))
    assert str(caught.value) == message


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


# --- what it is for

SENSES = data.two_senses(600, seed=0)


@pytest.fixture(scope="module")
def reader():
    """A small two-direction language model of sentences about two kinds of banks."""
    keras.utils.set_random_seed(0)
    sentences = [s for s, _ in SENSES]
    tokenizer = text.train("word_characters", sentences)
    model = kerastf.create_model("elmo", tokenizer=tokenizer, dim=24, units=48, embedding="token", dropout=0.1)
    model.compile(keras.optimizers.Adam(1e-2))
    tokens = tokenizer.encode_words(sentences)
    model.fit(tokens, tokens, batch_size=32, epochs=5, verbose=0)
    return model


def test_learns_in_both_directions(reader):
    fresh = reader.tokenizer.encode_words([s for s, _ in data.two_senses(64, seed=1)])
    found = reader.evaluate(fresh, fresh, verbose=0, return_dict=True)
    assert reader.tokenizer.vocab_size == 81  # the perplexity of knowing nothing
    assert found["forward_perplexity"] < 10 and found["backward_perplexity"] < 10


def test_one_word_has_two_vectors_in_two_contexts(reader, tmp_path):
    fresh = data.two_senses(60, seed=1)
    layers = reader.embed([s for s, _ in fresh])
    found = np.stack([layers[i, :, s.split().index("bank")] for i, (s, _) in enumerate(fresh)], axis=1)  # (3, 60, 48)
    flat, senses = found[0], np.array([sense for _, sense in fresh])
    np.testing.assert_allclose(flat, flat[:1].repeat(60, 0))  # before any context there is one vector
    for layer in (1, 2):
        unit = found[layer] - found[layer].mean(0)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        alike = unit @ unit.T
        same = senses[:, None] == senses
        assert alike[same].mean() > alike[~same].mean() + 0.1
        np.fill_diagonal(alike, -1)
        assert np.mean(senses[alike.argmax(1)] == senses) >= 0.95  # the nearest context has the same sense
    plots.projection(found[2], senses, path=tmp_path / "bank.png")
    assert (tmp_path / "bank.png").stat().st_size > 5000


def test_features_for_a_task(reader):
    """A new head copies the body; frozen, the body stays as it is while mix and head learn."""
    tagger = reader.with_head("classifier", num_classes=2).freeze()
    before = {w.path: numpy(w).copy() for w in tagger.weights}
    for weight in reader.weights:
        if not weight.path.startswith("head"):
            np.testing.assert_array_equal(numpy(weight), before[weight.path])
    assert {w.path for w in tagger.trainable_weights} == {
        "mix/scores", "mix/gamma", "head/project/kernel", "head/project/bias",
    }  # fmt: skip
    tagger.compile(keras.optimizers.Adam(5e-2))
    # 32 labelled sentences are too few for a frozen body (0.80 of fresh ones, 64 give 0.94 and 128 give 0.98).
    tokens = reader.tokenizer.encode_words([s for s, _ in SENSES[:256]])
    labels = np.array([sense == "river" for _, sense in SENSES[:256]]).astype(int)
    tagger.fit(tokens, labels, epochs=40, verbose=0)
    fresh = data.two_senses(200, seed=1)
    found = tagger.evaluate(
        reader.tokenizer.encode_words([s for s, _ in fresh]), np.array([s == "river" for _, s in fresh]).astype(int),
        verbose=0, return_dict=True,
    )  # fmt: skip
    assert found["accuracy"] > 0.95
    changed = {w.path for w in tagger.weights if np.any(numpy(w) != before[w.path])}
    assert changed == {"mix/scores", "mix/gamma", "head/project/kernel", "head/project/bias"}
    assert tagger.freeze(False).trainable_weights == tagger.weights
    again = tagger.with_head("tagger", num_classes=3)
    assert again.mix is not None and "bidirectional" in reader.head.registry_entry.id


def test_saved_with_its_tokenizer(reader, tmp_path):
    reader.save(tmp_path / "reader.keras")
    again = keras.saving.load_model(tmp_path / "reader.keras")
    np.testing.assert_allclose(again.embed(["the otter swam"]), reader.embed(["the otter swam"]), atol=1e-6)


def test_generated_sentences():
    assert data.two_senses(5, seed=1) == data.two_senses(5, seed=1) != data.two_senses(5, seed=2)
    assert all("bank" in s.split() for s, _ in SENSES)
    rows = data.tagged_sentences(200, seed=0)
    assert rows == data.tagged_sentences(200, seed=0) and all(len(w) == len(t) for w, t in rows)
    seen = {}
    for words, tags in rows:
        for word, tag in zip(words, tags, strict=True):
            seen.setdefault(word, set()).add(data.TAGS[tag])
    assert {w for w, t in seen.items() if t == {"noun", "verb"}} >= {"watches", "ships"}
    assert {frozenset(t) for t in seen.values() if len(t) > 1} == {frozenset({"noun", "verb"})}
    for make in (data.two_senses, data.tagged_sentences):
        with pytest.raises(InputError, match="`count` must be at least 1"):
            make(0)


def test_mistakes_in_a_picture():
    with pytest.raises(InputError) as caught:
        plots.projection(np.ones((3, 2)), ["a", "b"])
    assert str(caught.value) == (
        "`vectors` must be (N, channels), N at least 2, with a group each. Received: shape (3, 2), 2 groups"
    )
    with pytest.raises(InputError, match="There must be a label for each vector. Received: 1 labels"):
        plots.projection(np.ones((3, 2)), ["a", "b", "a"], labels=["x"])
    assert plots.projection(np.ones((2, 1)), ["a", "b"], labels=["x", "y"]) is not None
