"""Attention and loss piece by piece equal the plain forms, forward and backward, whatever the shapes."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf import chunked, functional, kernels

tf = pytest.importorskip("tensorflow") if keras.backend.backend() == "tensorflow" else None
pytestmark = pytest.mark.skipif(tf is None, reason="the pieces are TensorFlow's")


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


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


@pytest.fixture
def small_pieces(monkeypatch):
    """Pieces so small that short sequences have many, and some are taken row by row."""
    for name, value in {"SHORT": 2, "ROWS": 4, "PIECES": 3, "KEPT": 8}.items():
        monkeypatch.setattr(chunked, name, value)


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


@settings(max_examples=60, deadline=None, derandomize=True)
@given(case=cases)
def test_attention_equals_the_definition(case):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHORT": 2, "ROWS": 4, "PIECES": 3, "KEPT": 8}.items():
            patch.setattr(chunked, name, value)
        inputs, rules, slope = example(case)
        if rules["window"] and "mask" in rules and not rules["causal"]:
            rules["mask"][..., :] |= np.eye(case["length"], dtype=bool)[None, None]
        got = chunked.attention(*map(ops.convert_to_tensor, inputs), **tensors(rules))
        np.testing.assert_allclose(ops.convert_to_numpy(got), plain(*inputs, **rules), atol=2e-5)


def tensors(rules):
    return {k: ops.convert_to_tensor(v) if isinstance(v, np.ndarray) else v for k, v in rules.items()}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(case=cases, traced=st.booleans())
def test_gradients_equal_those_of_the_whole(case, traced):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"SHORT": 2, "ROWS": 4, "PIECES": 3, "KEPT": 8}.items():
            patch.setattr(chunked, name, value)
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
            return chunked.attention(q, k, v, **{**given, **({"bias": bias[0]} if bias else {})})

        def slopes(function):
            def run(*learnt):
                with tf.GradientTape() as tape:
                    tape.watch(learnt)
                    output = function(*learnt)
                return tape.gradient(output, learnt, output_gradients=ops.convert_to_tensor(slope))

            return (tf.function(run, autograph=False) if traced else run)(*learnt)

        for got, want in zip(slopes(pieces), slopes(whole), strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), atol=5e-5)


def test_a_later_key_is_never_read():
    q, k, v = map(ops.convert_to_tensor, arrays(0, *[(1, 2, 256, 8)] * 3))
    before = chunked.attention(q, k, v, causal=True)
    spoilt = [ops.concatenate([x[:, :, :100], ops.full((1, 2, 156, 8), np.nan)], axis=2) for x in (k, v)]
    after = chunked.attention(q, *spoilt, causal=True)
    seen = len([p for p in chunked.pieces_of(256, 256, True, None) if p.last <= 100]) * chunked.SHORT
    assert seen == 64
    np.testing.assert_array_equal(before[:, :, :seen], after[:, :, :seen])


@pytest.mark.parametrize("length", [7, 64, 65, 200, 1000, 1024, 1100, 5000, 8192])
@pytest.mark.parametrize("causal, window", [(True, None), (False, None), (True, 50), (False, 50)])
def test_pieces_cover_the_queries_and_what_they_see(length, causal, window):
    pieces = chunked.pieces_of(length, length, causal, window)
    assert [p.start for p in pieces] == [0, *(p.stop for p in pieces[:-1])] and pieces[-1].stop == length
    assert len(pieces) <= chunked.PIECES + 1
    for piece in pieces:
        assert (
            piece.stop - piece.start <= chunked.ROWS or (piece.stop - piece.start) % chunked.ROWS == 0 or length <= 512
        )
        assert piece.last >= piece.stop and piece.first <= piece.start
        assert piece.last == piece.stop or not causal
        if window is not None:
            assert piece.first == max(0, piece.start - window + 1)


def test_dropout_keeps_the_mean_and_the_gradient_sees_the_same_draw(small_pieces):
    q, k, v = map(ops.convert_to_tensor, arrays(0, (1, 1, 20, 4), (1, 1, 20, 4), (1, 1, 20, 4)))

    def mean(seed, rate=0.4):
        return chunked.attention(q, k, v, causal=True, rate=rate, seed=ops.convert_to_tensor([3, seed]))

    np.testing.assert_array_equal(mean(1), mean(1))
    assert np.abs(ops.convert_to_numpy(mean(1)) - ops.convert_to_numpy(mean(2))).max() > 0.1
    average = np.mean([ops.convert_to_numpy(mean(seed)) for seed in range(400)], axis=0)
    np.testing.assert_allclose(average, mean(0, rate=0.0), atol=0.2)
    seed = ops.convert_to_tensor([3, 5])
    with tf.GradientTape() as tape:
        tape.watch(v)
        total = ops.sum(chunked.attention(q, k, v, causal=True, rate=0.4, seed=seed))
    slope = tape.gradient(total, v)
    # Attention is linear in the values, so the gradient times the values is the output, if the draw is the same.
    assert float(ops.sum(slope * v)) == pytest.approx(float(total), rel=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = kernels.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 40), vocab=st.integers(2, 30), logits=st.sampled_from([8, 64, 10_000]), shift=st.booleans(),
    unknown=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_loss_from_features_equals_that_of_all_logits(rows, vocab, logits, shift, unknown, seed):
    features, matrix, moved = arrays(seed, (rows, 6), (vocab, 6), (vocab,))
    rng = np.random.default_rng(seed)
    labels, weights = rng.integers(0, vocab, rows).astype("int32"), rng.random(rows).astype("float32")
    shifts = [moved] if shift else []

    def pieces(f, m, *s):
        loss, chosen = chunked.cross_entropy(f, m, s[0] if s else None, labels, weights)
        return loss * 3.0, chosen

    def whole(f, m, *s):
        x = ops.matmul(f, ops.transpose(m)) + (s[0] if s else 0.0)
        losses = ops.sparse_categorical_crossentropy(labels, x, from_logits=True)
        return ops.sum(losses * weights) * 3.0, ops.argmax(x, axis=-1)

    def run(function):
        def go(*given):
            with tf.GradientTape() as tape:
                tape.watch(given)
                loss, chosen = function(*given)
            return loss, chosen, tape.gradient(loss, given)

        shapes = [tf.TensorSpec((None if unknown else rows, 6))] + [tf.TensorSpec(x.shape) for x in (matrix, *shifts)]
        return tf.function(go, input_signature=shapes, autograph=False)(features, matrix, *shifts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "LOGITS", logits)
        got, want = run(pieces), run(whole)
    assert float(got[0]) == pytest.approx(float(want[0]), rel=1e-5, abs=1e-5)
    np.testing.assert_array_equal(got[1], want[1])
    for a, b in zip(got[2], want[2], strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


# --- in models


def histories(monkeypatch, large, **options):
    """The history of a training with the loss from features, or with all logits, and the weights after it."""
    from kerastf.models import from_features

    monkeypatch.setattr(from_features, "LARGE", 0 if large else 2**60)
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, **options)
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1))
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 11, (2, 20, 9)).astype("int32")
    weights = rng.random((20, 9)).astype("float32")
    history = model.fit(x, y, sample_weight=weights, batch_size=8, epochs=3, validation_data=(x, y), verbose=0).history
    return history, [ops.convert_to_numpy(w) for w in model.trainable_variables]


@pytest.mark.parametrize(
    "options", [{}, {"pad_id": 3}, {"head": {"name": "language_model", "tied": False, "bias": True}}]
)
def test_a_training_is_the_same_by_features_and_by_logits(monkeypatch, options):
    (a, mine), (b, theirs) = (histories(monkeypatch, large, dropout=0.1, **options) for large in (True, False))
    assert set(a) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-4)
    for left, right in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(left, right, atol=2e-4)


def test_logits_are_never_whole_in_a_step(monkeypatch):
    model = kerastf.create_model("gpt", vocab_size=50_000, max_length=64, dim=8, num_layers=1, num_heads=2)
    model.compile("adamw")
    x = np.ones((16, 64), "int32")
    model.fit(x, x, batch_size=16, verbose=0)
    concrete = tf.function(lambda: model.train_step((ops.convert_to_tensor(x), ops.convert_to_tensor(x))))
    graph = concrete.get_concrete_function().graph
    graphs = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
    largest = max(
        int(np.prod(out.shape)) for g in graphs for op in g.get_operations() for out in op.outputs
        if out.shape.rank is not None and None not in out.shape.as_list()
    )  # fmt: skip
    assert largest < 16 * 64 * 50_000 / 2


def test_own_metrics_are_given_logits():
    model = kerastf.create_model("gpt", vocab_size=4096, max_length=64, dim=8, num_layers=1, num_heads=2)
    model.compile("adamw", metrics=[keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5")])
    x = np.random.default_rng(0).integers(0, 4096, (32, 64)).astype("int32")
    assert "top5" in model.fit(x, x, batch_size=32, verbose=0).history


@pytest.mark.parametrize("optimizer", [
    keras.optimizers.Adam(0.01), keras.optimizers.AdamW(0.01, weight_decay=0.3),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 7), clipnorm=0.5, beta_1=0.8, epsilon=1e-5),
])  # fmt: skip
def test_adam_in_one_pass_takes_the_steps_of_keras(optimizer):
    rng = np.random.default_rng(0)
    starts, gradients = arrays(1, (4, 5), (5,)), [arrays(s, (4, 5), (5,)) for s in range(2, 8)]

    def train(context):
        own = type(optimizer).from_config(optimizer.get_config())
        variables = [keras.Variable(a) for a in starts]
        own.build(variables)
        with context(own):
            for step in gradients:
                own.apply_gradients([(ops.convert_to_tensor(g), v) for g, v in zip(step, variables, strict=True)])
        assert not any(name in vars(own) for name in ("_backend_update_step", "_apply_weight_decay"))
        return [ops.convert_to_numpy(v) for v in (*variables, *own.variables)]

    import contextlib

    for a, b in zip(train(kernels.one_pass_adam), train(contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)
    del rng


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


def test_mixed_precision_stays_near(monkeypatch):
    losses = []
    for large in (True, False):
        history, _ = histories(monkeypatch, large, dtype="mixed_bfloat16", dropout=0.0)
        losses.append(history["loss"])
    np.testing.assert_allclose(*losses, rtol=0.02)
