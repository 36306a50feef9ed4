"""Attention piece by piece equals the definition, forward and backward, whatever the shapes."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from amounts import examples
from arrays import arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf import chunked_attention as chunked
from kerastf import compat, cutting, functional, tracing


def plain(q, k, v, *, mask=None, bias=None, causal=False, window=None):
    """The definition in float64 NumPy, row by row: `(B, H, T, D)` and so on."""
    output = np.zeros((*q.shape[:3], v.shape[-1]))
    for b, h, t in np.ndindex(*q.shape[:3]):
        scores = k[b, h].astype("float64") @ q[b, h, t].astype("float64")
        scores += 0 if bias is None else (bias if bias.ndim == 3 else bias[b])[h, t]
        distance = t - np.arange(k.shape[2])
        seen = np.ones(k.shape[2], bool) if mask is None else mask[b, 0, min(t, mask.shape[2] - 1)].copy()
        seen &= (distance >= 0) | (not causal)
        seen &= (np.abs(distance) < window) if window else True
        weights = np.where(seen, np.exp(scores - scores[seen].max()), 0)
        output[b, h, t] = weights / weights.sum() @ v[b, h]
    return output


def attend(q, k, v, **rules):
    """Attention in pieces with the heads before the positions, as in `plain`."""
    mean = chunked.attention(*(ops.swapaxes(x, 1, 2) for x in (q, k, v)), **rules)
    return ops.swapaxes(mean, 1, 2)


@contextlib.contextmanager
def small_pieces():
    """Pieces so small that short sequences have many, and some are taken row by row."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHORT": 2, "ROWS": 4, "PIECES": 3, "KEPT": 8}.items():
            patch.setattr(cutting, name, value)
        yield


cases = st.fixed_dictionaries(
    {
        "length": st.integers(2, 40), "heads": st.sampled_from([1, 3]), "causal": st.booleans(),
        "window": st.sampled_from([None, None, 1, 3, 100]), "masked": st.sampled_from([None, "keys", "pairs"]),
        "bias": st.sampled_from([None, None, 3, 4]), "keys": st.integers(2, 30), "seed": st.integers(0, 99),
    }
)  # fmt: skip


def example(case):
    """Arrays of a case, and the rules: self-attention where causality or a window is asked for."""
    length, heads, batch = case["length"], case["heads"], 2
    keys = length if case["causal"] or case["window"] else case["keys"]
    shapes = [(batch, heads, length, 4), (batch, heads, keys, 4), (batch, heads, keys, 5), (batch, heads, length, 5)]
    q, k, v, slope = arrays(case["seed"], *shapes)
    rules = {"causal": case["causal"], "window": case["window"]}
    if case["masked"]:
        rng = np.random.default_rng(case["seed"])
        mask = rng.random((batch, 1, length if case["masked"] == "pairs" else 1, keys)) < 0.7
        if rules["causal"] or rules["window"]:
            mask = mask | np.eye(length, dtype=bool)[None, None]  # each query sees itself at least
        mask[..., 0] = True
        rules["mask"] = mask
    if case["bias"]:
        rules["bias"] = arrays(case["seed"] + 1, (batch, heads, length, keys)[4 - case["bias"] :])[0]
    return (q, k, v), rules, slope


@settings(max_examples=examples(30, 60), deadline=None, derandomize=True)
@given(case=cases)
def test_attention_equals_the_definition(case):
    with small_pieces():
        inputs, rules, slope = example(case)
        if rules["window"] and "mask" in rules and not rules["causal"]:
            rules["mask"][..., :] |= np.eye(case["length"], dtype=bool)[None, None]
        got = attend(*map(ops.convert_to_tensor, inputs), **tensors(rules))
        np.testing.assert_allclose(ops.convert_to_numpy(got), plain(*inputs, **rules), atol=2e-5)


def tensors(rules):
    return {k: ops.convert_to_tensor(v) if isinstance(v, np.ndarray) else v for k, v in rules.items()}


@settings(max_examples=examples(16, 40), deadline=None, derandomize=True)
@given(case=cases, traced=st.booleans(), one_dnn=st.booleans())
def test_gradients_equal_those_of_the_whole(case, traced, one_dnn):
    tracing.shared.cache_clear()
    with small_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "one_dnn", lambda: one_dnn)
        inputs, rules, slope = example(case)
        given = tensors(rules)
        learnt = [*map(ops.convert_to_tensor, inputs), *([given["bias"]] if "bias" in given else [])]

        def whole(q, k, v, *bias):
            seen = None
            if rules["causal"] or rules["window"]:
                where = [functional.positions(x.shape[2]) for x in (q, k)]
                seen = functional.visible(*where, causal=rules["causal"], window=rules["window"])
            mask = given.get("mask")
            mask = seen if mask is None else mask if seen is None else ops.logical_and(mask, seen)
            weights = functional.weigh(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))), mask, *bias)
            return ops.matmul(weights, v)

        def pieces(q, k, v, *bias):
            return attend(q, k, v, **{**given, **({"bias": bias[0]} if bias else {})})

        def slopes(function):
            def run(*learnt):
                with tf.GradientTape() as tape:
                    tape.watch(learnt)
                    output = function(*learnt)
                return tape.gradient(output, learnt, output_gradients=ops.convert_to_tensor(slope))

            return (tf.function(run, autograph=False) if traced else run)(*learnt)

        for got, want in zip(slopes(pieces), slopes(whole), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), atol=5e-5)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("length, keys, causal, window", [
    (5, 3, True, None), (200, 100, True, None), (600, 500, True, None), (129, 65, False, 40), (255, 128, False, 40),
    (255, 128, True, 40), (3, 5, True, None), (600, 30, True, 7),
])  # fmt: skip
def test_fewer_keys_than_queries(length, keys, causal, window, biased):
    """Beyond the last key a query may see none, and its output then is some mean: nothing is asked of it."""
    q, k, v, slope = arrays(1, (2, 1, length, 4), (2, 1, keys, 4), (2, 1, keys, 5), (2, 1, length, 5))
    (bias,) = arrays(2, (1, length, keys)) if biased else (None,)
    distance = np.arange(length)[:, None] - np.arange(keys)
    seen = ((distance >= 0) | (not causal)) & ((np.abs(distance) < window) if window else True)
    asked = seen.any(-1)
    rules = {"causal": causal, "window": window, **({"bias": ops.convert_to_tensor(bias)} if biased else {})}
    learnt = [ops.convert_to_tensor(x) for x in (q, k, v)]
    with tf.GradientTape() as tape:
        tape.watch(learnt)
        got = attend(*learnt, **rules)
    slopes = tape.gradient(got, learnt, output_gradients=ops.convert_to_tensor(slope * asked[:, None]))
    with tf.GradientTape() as tape:
        tape.watch(learnt)
        scores = ops.matmul(learnt[0], ops.swapaxes(learnt[1], 2, 3)) + (0 if bias is None else bias)
        whole = ops.matmul(ops.softmax(ops.where(seen, scores, -1e9)), learnt[2])
    wanted = tape.gradient(whole, learnt, output_gradients=ops.convert_to_tensor(slope * asked[:, None]))
    np.testing.assert_allclose(got.numpy()[:, :, asked], whole.numpy()[:, :, asked], atol=1e-5)
    for a, b in zip(slopes, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_a_later_key_is_never_read():
    q, k, v = map(ops.convert_to_tensor, arrays(0, *[(1, 2, 256, 8)] * 3))
    before = attend(q, k, v, causal=True)
    spoilt = [ops.concatenate([x[:, :, :100], ops.full((1, 2, 156, 8), np.nan)], axis=2) for x in (k, v)]
    after = attend(q, *spoilt, causal=True)
    seen = len([p for p in cutting.pieces_of(256, 256, True, None) if p.last <= 100]) * cutting.SHORT
    assert seen == 64
    np.testing.assert_array_equal(before[:, :, :seen], after[:, :, :seen])


@pytest.mark.parametrize("length", [7, 64, 65, 200, 1000, 1024, 1100, 5000, 8192])
@pytest.mark.parametrize("causal, window", [(True, None), (False, None), (True, 50), (False, 50)])
def test_pieces_cover_the_queries_and_what_they_see(length, causal, window):
    pieces = cutting.pieces_of(length, length, causal, window)
    assert [p.start for p in pieces] == [0, *(p.stop for p in pieces[:-1])] and pieces[-1].stop == length
    assert len(pieces) <= cutting.PIECES + 1
    for piece in pieces:
        assert (
            piece.stop - piece.start <= cutting.ROWS or (piece.stop - piece.start) % cutting.ROWS == 0 or length <= 512
        )
        assert piece.last >= piece.stop and piece.first <= piece.start
        assert piece.last == piece.stop or not causal
        if window is not None:
            assert piece.first == max(0, piece.start - window + 1)


@small_pieces()
def test_dropout_keeps_the_mean_and_the_gradient_sees_the_same_draw():
    q, k, v = map(ops.convert_to_tensor, arrays(0, (1, 1, 20, 4), (1, 1, 20, 4), (1, 1, 20, 4)))

    @tf.function(autograph=False)
    def mean(seed, rate=0.4):
        return attend(q, k, v, causal=True, rate=rate, seed=ops.stack([3, seed]))

    one, two = (ops.convert_to_tensor(n) for n in (1, 2))
    np.testing.assert_array_equal(mean(one), mean(one))
    assert np.abs(ops.convert_to_numpy(mean(one)) - ops.convert_to_numpy(mean(two))).max() > 0.1
    average = np.mean([ops.convert_to_numpy(mean(seed)) for seed in tf.range(400)], axis=0)
    np.testing.assert_allclose(average, mean(one, rate=0.0), atol=0.2)
    seed = ops.convert_to_tensor([3, 5])
    with tf.GradientTape() as tape:
        tape.watch(v)
        total = ops.sum(attend(q, k, v, causal=True, rate=0.4, seed=seed))
    slope = tape.gradient(total, v)
    # Attention is linear in the values, so the gradient times the values is the output, if the draw is the same.
    assert float(ops.sum(slope * v)) == pytest.approx(float(total), rel=1e-4)


@contextlib.contextmanager
def by_programs(made, **changes):
    """In `fit` on a CPU without oneDNN, however few the weights are; names of the programs go to `made`."""
    chunked._program.cache_clear()
    original = tracing.program
    here = {"LARGE": 1, "program": lambda function: made.append(function.__name__) or original(function), **changes}
    tracing.shared.cache_clear()  # what was traced before would make no programs
    with pytest.MonkeyPatch.context() as patch, tracing.fusing():
        patch.setattr(tracing, "one_dnn", lambda: False)
        for name, value in here.items():
            patch.setattr(tracing, name, value)
        yield


def traced_slopes(inputs, above, **rules):
    """The output of attention in a graph, and the slopes of its inputs."""

    @tf.function(autograph=False)
    def run(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = attend(*inputs, **rules)
        return output, *tape.gradient(output, inputs, above)

    return run(*map(tf.convert_to_tensor, inputs))


PROGRAMS = ["attend", "slopes"]


@settings(max_examples=examples(6, 40), deadline=None, derandomize=True)
@given(case=cases, rate=st.sampled_from([0.0, 0.3]))
def test_programs_equal_operations(case, rate):
    inputs, rules, above = example({**case, "bias": None})
    rules = {**tensors(rules), "rate": rate, "seed": tf.constant([1, case["seed"]]) if rate else None}
    with small_pieces(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "KEPT", 64)
        patch.setattr(chunked, "MANY", 1)
        plain, made, with_one_dnn = traced_slopes(inputs, above, **rules), [], []
        with by_programs(made):
            fused = traced_slopes(inputs, above, **rules)
        with by_programs(with_one_dnn, one_dnn=lambda: True):
            put_together = traced_slopes(inputs, above, **rules)
    assert made == PROGRAMS
    in_pieces = case["causal"] or case["window"] or case["length"] > 64
    assert set(with_one_dnn) == ({"_joined", "_added"} if in_pieces and case["length"] > 2 else set())
    for found in (fused, put_together):
        for got, want in zip(found, plain, strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize(
    "why, changes",
    {
        "many weights": {}, "few": {"LARGE": 2 * 40 * 40 + 1}, "bias": {}, "halves": {}, "long": {}, "oneDNN": {},
        "XLA already": {}, "an accelerator": {"on_accelerator": lambda: True}, "no fit": {"trains_on_cpu": bool},
    }.items(),
)  # fmt: skip
def test_who_attends_by_programs(monkeypatch, why, changes):
    dtype = "bfloat16" if why == "halves" else "float32"
    inputs = [tf.cast(x, dtype) for x in arrays(0, *[(2, 2, 40, 4)] * 3)]
    made, rules = [], {"bias": tf.zeros((2, 40, 40))} if why == "bias" else {}
    if why == "long":
        monkeypatch.setattr(cutting, "KEPT", 39)
    with by_programs(made, **{"LARGE": 2 * 40 * 40, **changes}):
        if why == "oneDNN":
            monkeypatch.setattr(tracing, "one_dnn", lambda: True)
        with compat.switched(compat._compiling, why == "XLA already"):
            traced_slopes(inputs, tf.ones((2, 2, 40, 4), dtype), causal=True, **rules)
    assert made == (PROGRAMS if why == "many weights" else [])


def test_programs_have_a_gradient_of_their_gradient(monkeypatch):
    inputs = [tf.convert_to_tensor(x) for x in arrays(0, *[(1, 2, 8, 4)] * 3)]
    mask = tf.reshape(tf.range(8) != 1, (1, 1, 1, 8))

    def steepness(q, k, v):
        with tf.GradientTape() as tape:
            tape.watch(q)
            output = attend(q, k, v, mask=mask, causal=True, rate=0.3, seed=tf.constant([1, 2]))
        return tf.reduce_sum(tape.gradient(output, q) ** 2)

    @tf.function(autograph=False)
    def slopes(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            found = steepness(*inputs)
        return tape.gradient(found, inputs)

    monkeypatch.setattr(cutting, "SHORT", 2)
    made = []
    with by_programs(made):
        found = slopes(*inputs)
    assert made == PROGRAMS
    step = 1e-2
    for n, slope in enumerate(found):
        where = (0, 1, 3, 2)
        change = np.zeros(inputs[n].shape, "float32")
        change[where] = step
        ends = [steepness(*(x + sign * change if m == n else x for m, x in enumerate(inputs))) for sign in (1, -1)]
        assert float(slope[where]) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=0.02, abs=1e-3)


def test_fit_with_a_smaller_last_batch_learns_the_same_by_programs():
    x = np.arange(10 * 16, dtype="int32").reshape(10, 16) % 11

    def losses():
        keras.utils.set_random_seed(1)
        model = kerastf.create_model(
            "gpt", vocab_size=11, max_length=16, dim=16, num_layers=2, num_heads=2, dropout=0.1
        )
        model.compile("adamw")
        return model.fit(x, x, batch_size=4, epochs=2, verbose=0).history["loss"]

    plain, made = losses(), []
    with by_programs(made):
        fused = losses()
    assert [name for name in made if name in PROGRAMS] == PROGRAMS, "one pair for all layers and batches"
    np.testing.assert_allclose(fused, plain, rtol=1e-5)


def test_one_trace_for_all_layers_and_one_for_the_step(monkeypatch):
    traces = []
    original = chunked._attention

    def counted(*args, **kwargs):
        traces.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(chunked, "_attention", counted)
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=4, num_heads=2)
    model.compile("adamw")
    x = np.ones((8, 16), "int32")
    model.fit(x, x, batch_size=8, epochs=2, verbose=0)
    assert len(traces) == 1
