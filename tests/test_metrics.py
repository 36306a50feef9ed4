"""Scores against values worked out another way."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerastf import metrics
from kerastf.errors import InputError


def test_bleu_by_hand():
    """Precisions 5/6, 3/5, 1/4 and, smoothed, 1/(2*3) for no 4-gram of three; as long as the reference."""
    score = metrics.corpus_bleu(["the cat sat on a mat"], ["the cat sat in a mat"])
    assert score == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)
    assert metrics.corpus_bleu(["a b c d e"], ["a b c d e"]) == pytest.approx(100)
    short = metrics.corpus_bleu(["a b c d"], ["a b c d e"])
    assert short == pytest.approx(100 * np.exp(1 - 5 / 4))


def test_several_references():
    assert metrics.corpus_bleu(["a b c d", "e f g h"], [["x y", "a b c d"], "e f g h"]) == pytest.approx(100)
    assert metrics.chrf(["abcdef", "x"], [["zz", "abcdef"], ["x"]]) == pytest.approx(100)
    assert metrics.chrf(["abc"], ["xyz"]) == 0


def slow_distance(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(slow_distance(a[1:], b) + 1, slow_distance(a, b[1:]) + 1, slow_distance(a[1:], b[1:]) + (a[0] != b[0]))


@settings(max_examples=60, deadline=None)
@given(a=st.text("ab", max_size=5), b=st.text("ab", max_size=5))
def test_edit_distance_is_the_definition(a, b):
    assert metrics.edit_distance(a, b) == slow_distance(a, b) == metrics.edit_distance(b, a)


def test_rates():
    made, wanted = ["K AE T", "D AO G Z", "B"], ["K AE T", ["D AO G", "D AA G"], "F IY"]
    assert metrics.exact_match(made, wanted) == pytest.approx(1 / 3)
    assert metrics.error_rate(made, wanted, unit="sequence") == pytest.approx(2 / 3)
    assert metrics.error_rate(made, wanted) == pytest.approx((0 + 1 + 2) / (3 + 3 + 2))
    assert metrics.error_rate(["abd", ""], ["abc", "xy"], unit="character") == pytest.approx(3 / 5)


def numpy_perplexity(targets, logits, weights):
    logits = logits.astype("float64")
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log, targets[..., None], -1)[..., 0]
    return np.exp((nll * weights).sum() / weights.sum())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_perplexity_over_batches_with_padding(dtype):
    rng = np.random.default_rng(0)
    metric = metrics.Perplexity(pad_id=0)
    batches = [(rng.integers(1, 9, (3, n)), rng.normal(size=(3, n, 9)).astype(dtype) * 3) for n in (4, 7)]
    batches[0][0][0, 1:] = 0
    batches[1][0][:, 5:] = 0
    for targets, logits in batches:
        metric.update_state(targets, logits)
    flat = np.concatenate([t.ravel() for t, _ in batches])
    scores = np.concatenate([s.reshape(-1, 9) for _, s in batches])
    want = numpy_perplexity(flat, scores, (flat != 0).astype(float))
    assert float(metric.result()) == pytest.approx(want, rel=1e-5)
    metric.reset_state()
    targets, logits = batches[0]
    metric.update_state(targets, logits, sample_weight=np.array([1.0, 0.0, 2.0]))
    weights = (targets != 0) * np.array([1.0, 0.0, 2.0])[:, None]
    assert float(metric.result()) == pytest.approx(numpy_perplexity(targets, logits, weights), rel=1e-5)


def test_perplexity_agrees_with_keras_nlp():
    import keras_nlp

    rng = np.random.default_rng(1)
    targets, logits = rng.integers(0, 5, (2, 6)), rng.normal(size=(2, 6, 5)).astype("float32")
    theirs = keras_nlp.metrics.Perplexity(from_logits=True, mask_token_id=0)
    theirs.update_state(targets, logits)
    ours = metrics.Perplexity(pad_id=0)
    ours.update_state(targets, logits)
    assert float(ours.result()) == pytest.approx(float(theirs.result()), rel=1e-5)


def test_padding_that_is_no_token():
    metric = metrics.Perplexity(pad_id=-1)
    metric.update_state([[1, -1]], np.zeros((1, 2, 3)))
    assert float(metric.result()) == pytest.approx(3)


def test_perplexity_in_fit_and_through_its_configuration():
    metric = metrics.Perplexity(pad_id=0)
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert copy.get_config() == metric.get_config()
    model = keras.Sequential([keras.layers.Embedding(5, 5)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("sgd", loss, metrics=[copy])
    x = np.array([[1, 2, 3, 4], [2, 3, 0, 0]])
    found = model.evaluate(x, x, verbose=0, return_dict=True)
    assert found["perplexity"] == pytest.approx(
        numpy_perplexity(x, model.predict(x, verbose=0), (x != 0).astype(float)), rel=1e-5
    )


def test_without_sacrebleu():
    code = "import sys; sys.modules['sacrebleu'] = None; from kerastf import metrics\ntry: metrics.corpus_bleu(['a'], ['a'])\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "BLEU and chrF are computed by sacrebleu. Install it: pip install 'kerastf[metrics]'\n"


MISTAKES = [
    (lambda: metrics.exact_match("ab", ["ab"]), "Hypotheses and references are lists of strings. Received: a string"),
    (lambda: metrics.exact_match(["ab"], []), "Each hypothesis has a reference, and there is at least one. Received: 1 hypotheses, 0 references"),
    (lambda: metrics.chrf([], []), "Each hypothesis has a reference, and there is at least one. Received: 0 hypotheses, 0 references"),
    (lambda: metrics.corpus_bleu([3], ["a"]), "Hypotheses and references are strings. Received: 3"),
    (lambda: metrics.corpus_bleu(["a"], [[]]), "Each hypothesis has at least one reference. Received: an empty list"),
    (lambda: metrics.error_rate(["a"], ["a"], unit="word"), "`unit` must be 'token', 'character' or 'sequence'. Received: unit='word'"),
    (lambda: metrics.error_rate(["a"], [""]), "The references are all empty, so there is no rate."),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, message = MISTAKES[number]
    with pytest.raises(InputError) as told:
        act()
    assert str(told.value) == message


def test_what_does_not_count_may_be_infinite():
    logits = np.zeros((1, 3, 4), "float32")
    logits[..., 0] = -np.inf
    metric = metrics.Perplexity(pad_id=0)
    metric.update_state([[1, 2, 0]], logits)
    assert float(metric.result()) == pytest.approx(3.0)
