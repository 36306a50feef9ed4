"""Generation: against the slow loop, against brute force, and by property."""

import contextlib
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf import compat, decoding, halves
from kerastf.blocks.sampler import Greedy
from kerastf.testing.subjects import shake
from kerastf.text import ByteTokenizer, CharacterTokenizer

TINY = {"vocab_size": 7, "max_length": 12, "dim": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def model():
    model = kerastf.create_model("gpt", **TINY)
    shake(model, 4)
    for variable in model.trainable_variables:
        variable.assign(variable * 3)  # decided opinions, so that greedy paths differ
    return model


@functools.cache
def whole(model):
    return tf.function(model, autograph=False)  # traced once, and much faster than layer by layer


def logits_along(model, row):
    """The logits after each token of a row. It is filled up to one length: what follows a token changes nothing there."""
    filled = np.zeros((1, TINY["max_length"]), "int32")
    filled[0, : len(row)] = row
    return whole(model)(filled).numpy()[0, : len(row)]


def slow_loop(model, prompts, max_length, end_id=None):
    """One row at a time, the whole sequence again for every token, no state."""
    rows = []
    for prompt in prompts:
        row = list(prompt)
        while len(row) < max_length and (row == prompt or row[-1] != end_id):
            row.append(int(np.argmax(logits_along(model, row)[-1])))
        rows.append(row)
    return rows


def log_probability(model, row, start):
    logs = ops.convert_to_numpy(ops.log_softmax(logits_along(model, row)))
    return sum(logs[t - 1, row[t]] for t in range(start, len(row)))


@settings(max_examples=examples(8, 15), deadline=None)
@given(data=st.data())
def test_greedy_equals_the_slow_loop(model, data):
    row = st.lists(st.integers(0, 6), min_size=1, max_size=8)
    prompts = data.draw(st.lists(row, min_size=3, max_size=3))
    end = data.draw(st.sampled_from([None, 0, 3]))
    tokens, ends = decoding.generate(model, prompts, max_length=12, end_id=end)
    want = slow_loop(model, prompts, 12, end)
    assert [r[:n].tolist() for r, n in zip(tokens, ends, strict=True)] == want


def test_greedy_looks_at_the_scores_themselves_and_a_subclass_at_what_it_makes_of_them():
    class Contrary(Greedy):
        def compute_probabilities(self, logits):
            return super().compute_probabilities(-logits)

    nearly = ops.array([[3.0, 5.0, 4.0], [1e-9, 2e-9, 0.0]])  # the second row is one value after softmax
    assert decoding.next_tokens(Greedy(), nearly).numpy().tolist() == [1, 1]
    assert decoding.next_tokens(Contrary(), nearly).numpy().tolist()[0] == 0


def test_a_row_is_frozen_at_its_end(model):
    end = slow_loop(model, [[1]], 4)[0][2]
    tokens, ends = decoding.generate(model, [[1], [2, 3]], max_length=12, end_id=end, pad_id=5)
    assert ends[0] == np.argmax(tokens[0][1:] == end) + 2
    assert np.all(tokens[0, ends[0] :] == 5)


def test_padding_is_never_chosen(model):
    favourite = slow_loop(model, [[1]], 2)[0][1]
    tokens, _ = decoding.generate(model, [[1], [2]], max_length=12, pad_id=favourite)
    beams, _, _ = decoding.beam_search(model, [[1], [2]], max_length=12, num_beams=3, pad_id=favourite)
    assert favourite not in tokens[:, 1:] and favourite not in beams[:, :, 1:]


def test_an_end_token_within_the_prompt_does_not_stop_the_row(model):
    tokens, ends = decoding.generate(model, [[3, 3, 3, 1]], max_length=6, end_id=3)
    assert tokens[0, :4].tolist() == [3, 3, 3, 1] and ends[0] > 4


def test_no_second_compilation_in_the_same_bucket():
    fresh = kerastf.create_model("gpt", **{**TINY, "max_length": 64})
    for prompt, length in (([1, 2, 3, 4], 33), ([1, 2, 3, 4, 5], 50), ([1, 2, 3, 4, 5, 6], 64)):
        fresh.generate([prompt], max_length=length)
    functions = fresh._decoding_functions
    assert len(functions) == 1 and next(iter(functions.values())).experimental_get_tracing_count() == 1


def test_buffers_have_few_lengths_and_little_to_spare():
    widths = {length: decoding._width(length) for length in range(1, 1025)}
    assert len(set(widths.values())) == 16
    assert all(length <= width < 1.25 * length + 32 for length, width in widths.items())
    assert [widths[n] for n in (1, 32, 33, 144, 256, 257, 513, 1024)] == [32, 32, 64, 160, 256, 320, 640, 1024]


def test_weights_that_change_are_seen(model):
    fresh = kerastf.create_model("gpt", **TINY)
    shake(fresh, 1)
    fresh.generate([[1]], max_length=12)
    fresh.set_weights(model.get_weights())
    assert fresh.generate([[1]], max_length=12).tolist() == model.generate([[1]], max_length=12).tolist()


def test_weights_that_come_are_seen(model):
    fresh = kerastf.create_model("gpt", **{**TINY, "dim": 16})
    shake(fresh, 1)
    before = fresh.generate([[1]], max_length=12).tolist()
    fresh.enable_lora(4)
    for weight in fresh.trainable_variables:
        if "/lora_" in weight.path:
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    row = [1]
    while len(row) < 12:
        row.append(int(np.argmax(ops.convert_to_numpy(fresh(np.array([row], "int32")))[0, -1])))
    assert fresh.generate([[1]], max_length=12).tolist() == [row] != before


def test_training_needs_no_second_compilation():
    fresh, x = kerastf.create_model("gpt", **TINY), np.ones((2, 12), "int32")
    fresh.generate([[1]], max_length=4)
    fresh.compile("sgd")
    fresh.fit(x, x, verbose=0)
    fresh.generate([[1]], max_length=4)
    assert len(fresh._decoding_functions) == 1


def test_a_model_keeps_the_loops_that_it_used_last(monkeypatch):
    monkeypatch.setattr(decoding, "KEPT", 2)
    fresh = kerastf.create_model("gpt", **TINY)
    for rows in (1, 2, 1, 3):
        fresh.generate([[1]] * rows, max_length=4)
    assert [key[2] for key in fresh._decoding_functions] == [1, 3]


@pytest.mark.parametrize("sampler", ["random", "top_k", "top_p", {"name": "random", "temperature": 0.5}])
def test_seed(model, sampler):
    draw = lambda seed: model.generate([[1], [2]], max_length=12, sampler=sampler, seed=seed).tolist()  # noqa: E731
    assert draw(1) == draw(1)
    assert len({str(draw(s)) for s in range(6)}) > 1


def test_random_sampling_follows_the_distribution(model):
    # Warm, so that no token is so rare that its count says nothing.
    chances = ops.convert_to_numpy(ops.softmax(model(ops.array([[1]]))[0, -1] / 8.0))
    rows = model.generate([[1]] * 4000, max_length=2, sampler={"name": "random", "temperature": 8.0}, seed=3)[:, 1]
    assert chances.min() > 0.005
    counts = np.bincount(rows, minlength=7) / 4000
    assert np.all(np.abs(counts - chances) < 4 * np.sqrt(chances * (1 - chances) / 4000) + 1e-9)


def test_top_k_of_one_and_cold_sampling_are_greedy(model):
    greedy = model.generate([[1], [2, 3]], max_length=12).tolist()
    for sampler in ({"name": "top_k", "k": 1}, {"name": "random", "temperature": 1e-4}, {"name": "top_p", "p": 1e-6}):
        assert model.generate([[1], [2, 3]], max_length=12, sampler=sampler, seed=0).tolist() == greedy


def test_top_k_draws_from_the_k_best_only(model):
    best = set(np.argsort(-ops.convert_to_numpy(model(ops.array([[1]]))[0, -1]))[:3].tolist())
    rows = model.generate([[1]] * 500, max_length=2, sampler={"name": "top_k", "k": 3, "temperature": 9.0}, seed=1)
    assert len(set(rows[:, 1].tolist())) > 1 and set(rows[:, 1].tolist()) <= best


def test_top_k_of_more_than_there_are_draws_from_all(model):
    drawn = [
        model.generate([[1]] * 50, max_length=4, sampler=s, seed=1) for s in ({"name": "top_k", "k": 99}, "random")
    ]
    np.testing.assert_array_equal(*drawn)


@settings(max_examples=examples(8, 20), deadline=None)
@given(prompts=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=2, max_size=2))
def test_one_beam_is_greedy(model, prompts):
    greedy, _ = decoding.generate(model, prompts, max_length=12, end_id=0)
    beams, _, _ = decoding.beam_search(model, prompts, max_length=12, num_beams=1, end_id=0)
    assert beams[:, 0].tolist() == greedy.tolist()


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_as_many_beams_as_paths_find_the_best(model, penalty):
    """49 beams over two steps of seven tokens are an exhaustive search."""
    prompts = [[1, 2], [3, 4]]
    beams, ends, scores = decoding.beam_search(model, prompts, max_length=4, num_beams=49, length_penalty=penalty)
    for row, prompt in enumerate(prompts):
        every = {
            p: log_probability(model, [*prompt, *p], 2) / 2**penalty for p in itertools.product(range(7), repeat=2)
        }
        assert tuple(beams[row, 0, 2:]) == max(every, key=every.get)
        np.testing.assert_allclose(scores[row], sorted(every.values(), reverse=True), atol=1e-4)


@settings(max_examples=examples(8, 15), deadline=None)
@given(
    prompts=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=2, max_size=2),
    end=st.sampled_from([None, 0]),
)
def test_scores_of_beams_are_their_log_probabilities(model, prompts, end):
    beams, ends, scores = decoding.beam_search(
        model, prompts, max_length=9, num_beams=3, length_penalty=0.0, end_id=end, pad_id=6
    )
    for row, prompt in enumerate(prompts):
        assert np.all(np.diff(scores[row]) <= 1e-6)
        for beam in range(3):
            n = ends[row, beam]
            want = log_probability(model, beams[row, beam, :n].tolist(), len(prompt))
            assert scores[row, beam] == pytest.approx(want, abs=1e-3)
            assert np.all(beams[row, beam, n:] == 6)
            if end is not None and n < 9:
                assert beams[row, beam, n - 1] == end


def test_searches_never_fall_below_greedy():
    """Models of random weights, 50 prompts each, with ends and penalties: the best beam is at least the greedy one."""
    fresh = kerastf.create_model("gpt", **TINY)
    models, cases, higher = 20, 0, 0
    for seed in range(models):
        shake(fresh, seed)
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, 7, 1 + i % 3).tolist() for i in range(50)]
        greedy, stops = decoding.generate(fresh, prompts, max_length=10, end_id=0)
        beams, ends, scores = decoding.beam_search(
            fresh, prompts, max_length=10, num_beams=5, length_penalty=1.0, end_id=0
        )
        for row, prompt in enumerate(prompts):
            path = greedy[row, : stops[row]].tolist()
            own = log_probability(fresh, path, len(prompt)) / max(len(path) - len(prompt), 1)
            assert scores[row, 0] >= own - 1e-4
            found = [b[:n].tolist() for b, n in zip(beams[row], ends[row], strict=True)]
            assert len({tuple(f) for f in found}) == 5, "a path stands there twice"
            cases, higher = cases + 1, higher + (scores[row, 0] > own + 1e-4)
    assert cases == 50 * models and higher > 0


def test_text_in_text_out():
    tokenizer = CharacterTokenizer("abcdef", special_tokens=("pad", "end", "unknown"))
    model = kerastf.create_model("gpt", tokenizer=tokenizer, max_length=12, dim=8, num_layers=1, num_heads=2)
    assert model.options["vocab_size"] == 9 and model.options["pad_id"] == 6
    assert model.generate("ab", max_length=6).startswith("ab")
    texts = model.generate(["a", "fed"], max_length=6)
    assert [t[:1] for t in texts] == ["a", "f"]
    assert model.generate("ab", max_length=6, num_beams=2).startswith("ab")


@given(text=st.text())
def test_byte_tokenizer_round_trip(text):
    tokenizer = ByteTokenizer(special_tokens=("pad", "end"))
    numbers = tokenizer.encode(text)
    assert tokenizer.decode([*numbers, tokenizer.end_id, tokenizer.pad_id]) == text


@given(text=st.text(min_size=1), more=st.text())
def test_character_tokenizer_round_trip(text, more):
    tokenizer = CharacterTokenizer.from_text(text, special_tokens=("unknown",))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(more)) == "".join(c for c in more if c in text)
    again = kerastf.text.from_config(tokenizer.get_config())
    assert again.encode(more) == tokenizer.encode(more)


def test_more_rows_than_prompts_change_nothing(monkeypatch):
    model = kerastf.create_model("gpt", vocab_size=30, max_length=32, dim=16, num_layers=1, num_heads=2, pad_id=0)
    shake(model, 1)
    prompts = [[3, 4, 5]], [[3, 4], [5, 6, 7]]
    settings = {"max_length": 20, "end_id": 9, "pad_id": 0}
    before = [decoding.generate(model, p, **settings) for p in prompts]
    monkeypatch.setattr(compat, "fewest_rows", lambda: 4)
    for (tokens, ends), p in zip(before, prompts, strict=True):
        more = decoding.generate(model, p, **settings)
        np.testing.assert_array_equal(more[0], tokens)
        np.testing.assert_array_equal(more[1], ends)


def test_weights_rounded_once_give_the_same_tokens(monkeypatch):
    options = {"vocab_size": 30, "max_length": 32, "dim": 16, "num_layers": 2, "num_heads": 2}
    model = kerastf.create_model("gpt", dtype="mixed_bfloat16", **options)
    shake(model, 1)
    tokens = [decoding.generate(model, [[3, 4, 5]], max_length=30)[0]]
    with compat.rounded(model):
        assert model.embedding.matrix.value.dtype == "bfloat16"
    assert model.embedding.matrix.value.dtype == "float32"
    monkeypatch.setattr(compat, "rounded", lambda model: contextlib.nullcontext())
    vars(model).pop("_decoding_functions")
    tokens.append(decoding.generate(model, [[3, 4, 5]], max_length=30)[0])
    np.testing.assert_array_equal(*tokens)


@pytest.mark.parametrize("prompts", [[[3, 4, 5]], [[3, 4], [5, 6, 7], [1]]])
def test_halves_of_weights_give_the_same_tokens(monkeypatch, prompts):
    head = {"name": "language_model", "tied": len(prompts) > 1}
    options = {"vocab_size": 31, "max_length": 24, "dim": 16, "num_layers": 1, "num_heads": 2, "head": head}
    model = kerastf.create_model("gpt", **options)
    shake(model, 1)
    found = []
    for smallest in (0, 2**40):
        for least in ("SMALL", "SMALL_FOR_ONE", "SMALL_IN_A_PAIR"):
            monkeypatch.setattr(halves, least, smallest)
        vars(model).pop("_decoding_functions", None)
        if len(prompts) == 1:
            found.append(decoding.generate(model, prompts, max_length=20))
        else:
            found.append(decoding.beam_search(model, prompts, max_length=20, num_beams=2))
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_what_only_has_steps_can_write(model):
    """A plugin may hand decoding its own view of a model, which is no layer."""

    class View:
        variables, max_length, init_state = model.variables, model.max_length, model.init_state

        def step(self, tokens, state, index):
            return model.step(tokens, state, index)

    given = [[3, 4], [5, 6, 1]]
    whole, part = (decoding.generate(m, given, max_length=10)[0] for m in (model, View()))
    np.testing.assert_array_equal(whole, part)
    np.testing.assert_array_equal(
        *(decoding.beam_search(m, given, max_length=10, num_beams=2)[0] for m in (model, View()))
    )
