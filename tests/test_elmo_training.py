"""ELMo's training: the loss of both directions, sampling, features for a task, two senses of a word."""

import keras
import numpy as np
import pytest
from keras import ops
from tensors import numpy
from tiny_elmo import TINY

import kerastf
from kerastf import compat, data, plots, text
from kerastf.blocks.bilm import BidirectionalLanguageModel, TwoWayCrossEntropy, TwoWayPerplexity, two_way_targets
from kerastf.errors import InputError
from kerastf.testing.subjects import shake

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
