"""What fine-tuning needs: entity and answer scores, a learning rate per layer."""

import keras
import numpy as np
import pytest
from messages import told

import kerastf
from kerastf import data, metrics, text, training
from kerastf.errors import InputError

# Sentences and their entities, as the CoNLL script reads them.
ENTITIES = [
    ("O O", []),
    ("B-PER", [("PER", 0, 0)]),
    ("B-PER I-PER O B-LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
    ("B-PER B-PER", [("PER", 0, 0), ("PER", 1, 1)]),
    ("B-PER I-LOC", [("PER", 0, 0), ("LOC", 1, 1)]),
    ("O I-PER I-PER", [("PER", 1, 2)]),
    ("S-PER S-PER B-LOC I-LOC E-LOC", [("PER", 0, 0), ("PER", 1, 1), ("LOC", 2, 4)]),
    ("B-LOC E-LOC E-LOC", [("LOC", 0, 1), ("LOC", 2, 2)]),
    ("B-a-b I-a-b", [("a-b", 0, 1)]),
    ("B I O", [("_", 0, 1)]),
]


@pytest.mark.parametrize(("tags", "found"), ENTITIES)
def test_entities(tags, found):
    assert metrics.entities(tags.split()) == found


def test_entity_scores_by_hand():
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "O"], ["B-PER", "O", "O"]]
    made = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-LOC", "B-LOC"], ["O", "O", "O"]]
    # Found: PER 0-1, PER 3, LOC 1, LOC 2; of those right: PER 0-1, LOC 1; wanted: 4.
    assert metrics.entity_scores(made, right) == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 4}
    assert metrics.entity_scores(made, right, by_kind=True) == {
        "LOC": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2},
        "PER": {"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2},
    }
    assert metrics.entity_scores([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}


# Answers and their scores by SQuAD's own script, version 1.1.
ANSWERS = [
    ("The Eiffel Tower", ["Eiffel tower!"], 1, 1),
    ("an apple", ["the apple", "pear"], 1, 1),
    ("in March 1889", ["March 1889"], 0, 0.8),
    ("in March 1889", ["1889", "March 1889"], 0, 0.8),
    ("red red wine", ["red wine red wine"], 0, 6 / 7),
    ("", ["something"], 0, 0),
    ("the", ["a"], 1, 1),  # nothing is left of either
    ("theatre", ["atre"], 0, 0),
    ("U.S.", ["us"], 1, 1),
]


@pytest.mark.parametrize(("made", "wanted", "exact", "f1"), ANSWERS)
def test_answer_scores(made, wanted, exact, f1):
    found = metrics.answer_scores([made], [wanted])
    assert found == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_answer_scores_are_means():
    found = metrics.answer_scores([a for a, *_ in ANSWERS], [w for _, w, *_ in ANSWERS])
    assert found["exact_match"] == pytest.approx(np.mean([e for *_, e, _ in ANSWERS]))
    assert found["f1"] == pytest.approx(np.mean([f for *_, f in ANSWERS]))


# --- from batches to scores, with the model

WORDS = ["the", "cat", "##s", "sat", "on", "mat", "dog", "."]
PIECES = text.WordPieceTokenizer(WORDS, text.BERT)


@pytest.fixture(scope="module")
def bert():
    keras.utils.set_random_seed(1)
    sizes = {"max_length": 16, "dim": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    return kerastf.create_model("bert", tokenizer=PIECES, vocab_size=PIECES.vocab_size, head="pretraining", **sizes)


SIZES = {"batch_size": 4, "max_length": 16}
LINES = ["the cat sat on the mat .", "the dogs sat .", "the mats ."]


def test_both_pretraining_tasks_in_one_fit(bert):
    bert.compile("adamw", run_eagerly=True)
    history = bert.fit(data.sentence_pairs([LINES, LINES[::-1]], PIECES, **SIZES), verbose=0, shuffle=False).history
    assert {"loss", "masked_tokens_loss", "next_sentence_loss"} <= set(history)
    assert history["loss"][0] == pytest.approx(
        history["masked_tokens_loss"][0] + history["next_sentence_loss"][0], rel=1e-4
    )
    assert all(np.isfinite(v[0]) for v in history.values())


def test_masked_text_fits_its_head(bert):
    model = bert.with_head("masked_language_model")
    model.compile("adamw", run_eagerly=True)
    assert np.isfinite(model.fit(data.masked_text(LINES, PIECES, **SIZES), verbose=0, shuffle=False).history["loss"][0])


def test_classes_tags_and_answers_fit_their_heads(bert):
    model = bert.with_head("classifier", num_classes=2)
    model.compile("adamw", run_eagerly=True)
    model.fit(data.labelled(LINES, [0, 1, 1], PIECES, **SIZES), verbose=0, shuffle=False)
    assert model.predict(data.labelled(LINES, None, PIECES, **SIZES), verbose=0).shape == (3, 2)
    words = [line.split() for line in LINES]
    model = bert.with_head("tagger", num_classes=3)
    model.compile("adamw", run_eagerly=True)
    model.fit(data.tagged(words, [[0] * len(w) for w in words], PIECES, **SIZES), verbose=0, shuffle=False)
    found = model.predict(data.tagged(words, None, PIECES, **SIZES), verbose=0)
    tags = data.word_tags(found, words, PIECES, classes=["O", "B-X", "I-X"])
    assert [len(t) for t in tags] == [len(w) for w in words]
    assert metrics.entity_scores(tags, tags)["support"] == sum(len(metrics.entities(t)) for t in tags)
    records = [{"question": "the cat", "context": " ".join(LINES), "answers": [{"text": "mat", "answer_start": 19}]}]
    model = bert.with_head("span")
    model.compile("adamw", run_eagerly=True)
    model.fit(data.questions(records, PIECES, stride=4, **SIZES), verbose=0, shuffle=False)
    found = model.predict(data.questions(records, PIECES, stride=4, answers=False, **SIZES), verbose=0)
    (answer,) = data.answers(found, records, PIECES, max_length=16, stride=4)
    assert answer["text"] and answer["text"] == records[0]["context"][answer["start"] : answer["end"]]


# --- learning rates


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=2, num_heads=2, dropout=0.0)


X = np.arange(32).reshape(4, 8) % 9
FACTORS = {"embedding": 0.125, "position": 0.125, "layer_0": 0.25, "layer_1": 0.5, "norm": 1.0}


def moves(model, start, optimizer):
    """How far one step moves each weight."""
    model.set_weights(start)
    model.compile(optimizer, run_eagerly=True)  # one step: tracing would take longer
    model.fit(X, np.roll(X, 1), batch_size=4, verbose=0)
    return [after - before for after, before in zip(model.get_weights(), start, strict=True)]


@pytest.mark.parametrize(
    "inner", [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.AdamW(1e-2, weight_decay=0.1)]
)
def test_deeper_layers_move_less_by_the_factor(model, inner):
    start = model.get_weights()
    plain = moves(model, start, inner())
    slow = moves(model, start, training.layer_rates(model, inner(), decay=0.5))
    for variable, one, other in zip(model.weights, plain, slow, strict=True):
        factor = FACTORS[variable.path.split("/")[0]]
        np.testing.assert_allclose(other, factor * one, atol=2e-6, err_msg=variable.path)
    model.set_weights(start)


def test_without_decay_nothing_changes(model):
    start = model.get_weights()
    plain = moves(model, start, keras.optimizers.AdamW(1e-2))
    same = moves(model, start, training.layer_rates(model, keras.optimizers.AdamW(1e-2), decay=1.0))
    for one, other in zip(plain, same, strict=True):
        np.testing.assert_array_equal(one, other)
    model.set_weights(start)


def test_the_state_is_saved(model, tmp_path):
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5)
    model.compile(training.layer_rates(model, keras.optimizers.AdamW(schedule), decay=0.5))
    model.fit(X, X, batch_size=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = kerastf.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.factors == FACTORS and int(loaded.optimizer.iterations) == 2
    assert (
        float(loaded.optimizer.learning_rate)
        == pytest.approx(float(model.optimizer.learning_rate))
        == pytest.approx(5e-3)
    )
    for one in (model, loaded):
        one.run_eagerly = True
        one.fit(X, X, batch_size=4, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_frozen_layers_stay(model):
    start = model.get_weights()
    model.get_layer("embedding").trainable = False
    moved = moves(model, start, training.layer_rates(model, keras.optimizers.SGD(0.1), decay=0.5))
    model.get_layer("embedding").trainable = True
    for variable, change in zip(model.weights, moved, strict=True):
        assert bool(np.abs(change).max() > 0) != variable.path.startswith("embedding/")
    model.set_weights(start)


MISTAKES = [
    (lambda: metrics.entities(["PER"]), InputError, "A tag is O, or B-, I-, E- or S- and a kind, such as B-PER. Received: 'PER'"),
    (lambda: metrics.entities([1]), InputError, "A tag is O, or B-, I-, E- or S- and a kind, such as B-PER. Received: 1"),
    (lambda: metrics.entity_scores([["O"]], []), InputError, "Each sentence has tags found and right tags, and there is at least one. Received: 1 and 0 sentences"),
    (lambda: metrics.entity_scores([["O"]], [["O", "O"]]), InputError, "Sentence 0 has a tag for each word. Received: 1 found, 2 right"),
    (lambda: metrics.answer_scores("a", ["a"]), InputError, "Hypotheses and references are lists of strings. Received: a string"),
    (lambda: metrics.answer_scores(["a"], [[]]), InputError, "Each hypothesis has at least one reference. Received: an empty list"),
    (lambda: training.layer_rates(None, decay=0), ValueError, "`decay` must be in (0, 1]. Received: decay=0"),
    (lambda: training.layer_rates(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="only")])), ValueError, "The model has no numbered layers, layer_0 and so on. Received: only"),
    (lambda: training.LayerRates(keras.optimizers.Adam(use_ema=True), {}), ValueError, "An average of the weights would be taken before the steps are shortened: use_ema=False."),
    (lambda: training.LayerRates(keras.optimizers.Ftrl(), {}), ValueError, "The steps of Ftrl are not proportional to its learning rate. Use another optimizer."),
    (lambda: training.LayerRates(keras.optimizers.Adam(), {}, clipnorm=1), ValueError, "Options belong to the inner optimizer. Received: ['clipnorm']"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, kind, message = MISTAKES[number]
    assert told(kind, act) == message
