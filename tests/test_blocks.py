"""Numeric truth: each block against a few lines of NumPy, written differently."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kerastf
from kerastf import compat, functional
from kerastf.blocks import alignment, attention, feedforward, head, norm, position
from kerastf.blocks.cosine import Cosine
from kerastf.blocks.window import Window
from kerastf.testing.subjects import shake

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 8)).astype("float32")
CONTEXT = RNG.normal(size=(2, 4, 6)).astype("float32")


def numpy(x):
    return ops.convert_to_numpy(x)


def built(block, *inputs):
    block(*inputs)
    shake(block, seed=3)
    return block


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def dense(layer, x):
    y = x @ numpy(layer.kernel)
    return y + numpy(layer.bias) if layer.use_bias else y


def slow_attention(q, k, v, score, allowed):
    """One weight at a time: q `(B, T, H, D)`, k and v `(B, S, K, *)`."""
    batch, length, heads, _ = q.shape
    out = np.zeros((batch, length, heads, v.shape[-1]))
    for b, t, h in itertools.product(range(batch), range(length), range(heads)):
        g = h * k.shape[2] // heads
        keys = [s for s in range(k.shape[1]) if allowed(b, t, s)]
        weights = softmax(np.array([score(h, t, s, q[b, t, h], k[b, s, g]) for s in keys]))
        out[b, t, h] = sum(w * v[b, s, g] for w, s in zip(weights, keys, strict=True))
    return out


def qkv(block, x):
    heads, shared, width = block.sizes
    h = dense(block.qkv, x)
    q, k, v = np.split(h, [heads * width, (heads + shared) * width], axis=-1)
    return (a.reshape(*x.shape[:2], -1, width) for a in (q, k, v))


def turned(x, base=10000.0):
    """Rotary by complex numbers."""
    half = x.shape[-1] // 2
    z = x[..., :half] + 1j * x[..., half:]
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    z = z * np.exp(1j * angle)[None, :, None]
    return np.concatenate([z.real, z.imag], axis=-1)


MASK = np.array([[True] * 5, [True, True, False, True, False]])


@pytest.mark.parametrize("kv", [None, 1, 2])
@pytest.mark.parametrize("where", [None, "rotary", "alibi"])
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head(kv, where, causal):
    block = built(attention.MultiHead(num_heads=4, num_kv_heads=kv, position=where), X)
    q, k, v = qkv(block, X)
    if where == "rotary":
        q, k = turned(q), turned(k)
    slope = [2 ** (-2 * (h + 1)) if where == "alibi" else 0 for h in range(4)]
    got = numpy(block(X, mask=MASK, causal=causal))
    mean = slow_attention(
        q, k, v, lambda h, t, s, a, b: a @ b / math.sqrt(2) - slope[h] * abs(t - s),
        lambda b, t, s: MASK[b, s] and (s <= t or not causal),
    )  # fmt: skip
    np.testing.assert_allclose(got, dense(block.output_projection, mean.reshape(2, 5, 8)), atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_window(causal):
    block = built(Window(num_heads=2, window=2), X)
    q, k, v = qkv(block, X)
    mean = slow_attention(
        q, k, v, lambda h, t, s, a, b: a @ b / 2,
        lambda b, t, s: t - 2 < s < t + 2 and (s <= t or not causal),
    )  # fmt: skip
    want = dense(block.output_projection, mean.reshape(2, 5, 8))
    np.testing.assert_allclose(numpy(block(X, causal=causal)), want, atol=1e-5)


def test_cosine():
    block = built(Cosine(num_heads=2), X)
    q, k, v = qkv(block, X)
    scale = numpy(block.scales).ravel()
    mean = slow_attention(
        q, k, v, lambda h, t, s, a, b: scale[h] * a @ b / np.linalg.norm(a) / np.linalg.norm(b), lambda b, t, s: True
    )
    want = dense(block.output_projection, mean.reshape(2, 5, 8))
    np.testing.assert_allclose(numpy(block(X)), want, atol=1e-5)


def test_multi_head_with_a_context():
    block = built(attention.MultiHead(num_heads=2), X, CONTEXT)
    q = dense(block.query, X).reshape(2, 5, 2, 4)
    k, v = (a.reshape(2, 4, 2, 4) for a in np.split(dense(block.key_value, CONTEXT), 2, axis=-1))
    mean = slow_attention(q, k, v, lambda h, t, s, a, b: a @ b / 2, lambda b, t, s: True)
    want = dense(block.output_projection, mean.reshape(2, 5, 8))
    np.testing.assert_allclose(numpy(block(X, CONTEXT)), want, atol=1e-5)


def test_bahdanau():
    block = built(alignment.Bahdanau(units=3), X, CONTEXT)
    q, k, v = dense(block.of_query, X), dense(block.of_key, CONTEXT), numpy(block.vector)
    mean = slow_attention(
        q[:, :, None],
        k[:, :, None],
        CONTEXT[:, :, None],
        lambda h, t, s, a, b: v @ np.tanh(a + b),
        lambda b, t, s: True,
    )
    np.testing.assert_allclose(numpy(block(X, CONTEXT)), mean[:, :, 0], atol=1e-5)


def test_luong():
    block = built(alignment.Luong(score="general"), X, CONTEXT)
    w = numpy(block.of_query.kernel)
    mean = slow_attention(
        X[:, :, None], CONTEXT[:, :, None], CONTEXT[:, :, None], lambda h, t, s, a, b: a @ w @ b, lambda b, t, s: True
    )
    np.testing.assert_allclose(numpy(block(X, CONTEXT)), mean[:, :, 0], atol=1e-5)
    dot = built(alignment.Luong(score="dot"), X)
    mean = slow_attention(*(X[:, :, None],) * 3, lambda h, t, s, a, b: a @ b, lambda b, t, s: s <= t)
    np.testing.assert_allclose(numpy(dot(X, causal=True)), mean[:, :, 0], atol=1e-5)


@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_attention_as_a_function(score):
    q, k, v = (RNG.normal(size=(2, n, 1, 4)).astype("float32") for n in (3, 5, 5))
    vector = RNG.normal(size=4).astype("float32")
    scores = {
        "dot": lambda h, t, s, a, b: a @ b / 2,
        "cosine": lambda h, t, s, a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
        "additive": lambda h, t, s, a, b: vector @ np.tanh(a + b),
    }
    mean, weights = functional.attention(q, k, v, score=score, vector=vector, return_weights=True)
    np.testing.assert_allclose(numpy(mean), slow_attention(q, k, v, scores[score], lambda b, t, s: True), atol=1e-5)
    np.testing.assert_allclose(numpy(weights).sum(-1), 1, atol=1e-6)


def test_attention_mean_does_not_depend_on_the_order_of_the_keys():
    q, k, v = (ops.array(RNG.normal(size=(1, 6, 2, 4)), "float32") for _ in range(3))
    order = np.random.default_rng(1).permutation(6)
    a = functional.attention(q, k, v)
    b = functional.attention(q, ops.take(k, order, axis=1), ops.take(v, order, axis=1))
    np.testing.assert_allclose(numpy(a), numpy(b), atol=1e-6)


def test_norms():
    layer = built(norm.LayerNorm(epsilon=1e-3), X)
    g, b = numpy(layer.gain), numpy(layer.shift)
    want = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-3) * g + b
    np.testing.assert_allclose(numpy(layer(X)), want, atol=1e-5)
    theirs = keras.layers.LayerNormalization(epsilon=1e-3)
    theirs.build(X.shape)
    theirs.set_weights([g, b])
    np.testing.assert_allclose(numpy(layer(X)), numpy(theirs(X)), atol=1e-5)
    rms = built(norm.RMSNorm(), X)
    want = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-5) * numpy(rms.gain)
    np.testing.assert_allclose(numpy(rms(X)), want, atol=1e-5)


class Doubled(norm.LayerNorm):
    """A norm that changes what it inherits."""

    def call(self, x):
        return 2 * super().call(x)


@pytest.mark.parametrize("kind", [norm.LayerNorm, Doubled])
def test_a_norm_beside_its_input_is_the_norm(kind):
    layer = built(kind(epsilon=1e-3), X)
    handed_on, y = layer.beside(ops.convert_to_tensor(X))
    np.testing.assert_array_equal(numpy(handed_on), X)
    np.testing.assert_array_equal(numpy(y), numpy(layer(X)))
    half = built(kind(dtype="mixed_bfloat16"), X)
    assert {x.dtype for x in half.beside(ops.cast(X, "bfloat16"))} == {half(X).dtype}


@pytest.mark.parametrize("kind", [norm.LayerNorm, norm.RMSNorm])
def test_norms_in_half_precision_round_once(kind):
    layer, exact = built(kind(dtype="mixed_bfloat16"), X), built(kind(), X)
    x = ops.cast(X, "bfloat16")
    want = ops.cast(exact(ops.cast(x, "float32")), "bfloat16")
    with compat.rounded(layer):  # as before a loop over tokens
        loop = layer(x)
    for got in (layer(x), loop):
        assert got.dtype == "bfloat16"
        np.testing.assert_array_equal(ops.cast(got, "float32"), ops.cast(want, "float32"))


def gelu(x):
    return np.vectorize(lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))))(x)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    "name, function",
    [("gelu", gelu), ("gelu_tanh", gelu_tanh), ("relu", lambda x: np.maximum(x, 0)), ("silu", lambda x: x / (1 + np.exp(-x)))],
)  # fmt: skip
def test_feedforwards(name, function):
    mlp = built(feedforward.MLP(7, activation=name), X)
    np.testing.assert_allclose(numpy(mlp(X)), dense(mlp.contract, function(dense(mlp.expand, X))), atol=1e-5)
    gated = built(feedforward.Gated(7, activation=name), X)
    gate, value = np.split(dense(gated.expand, X), 2, axis=-1)
    np.testing.assert_allclose(numpy(gated(X)), dense(gated.contract, function(gate) * value), atol=1e-5)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoidal(layout):
    got = numpy(position.Sinusoidal(layout=layout)(ops.zeros((1, 50, 6))))[0]
    for t, i in itertools.product(range(50), range(3)):
        angle = t / 10000 ** (2 * i / 6)
        places = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, 3 + i)
        np.testing.assert_allclose(got[t, list(places)], [math.sin(angle), math.cos(angle)], atol=1e-4)


def test_rotary_depends_on_the_distance_alone():
    block = position.Rotary()
    q, k = (RNG.normal(size=(1, 1, 1, 8)).astype("float32") for _ in range(2))

    def product(t, s):
        return float(ops.sum(block(q, ops.array([t])) * block(k, ops.array([s]))))

    assert product(3, 1) == pytest.approx(product(103, 101), abs=1e-4)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def test_alibi_slopes():
    assert functional.slopes(8) == pytest.approx([2**-n for n in range(1, 9)])
    assert functional.slopes(3) == pytest.approx([2**-4, 2**-8, 2**-2])
    bias = numpy(position.ALiBi(num_heads=2)(ops.arange(4), ops.arange(4)))
    assert bias[0, 3, 1] == pytest.approx(-2 * 2**-4)


@pytest.mark.parametrize("heads", [1, 3])
def test_heads_as_rows_and_apart_again(heads):
    """Also where a graph does not know how many rows and positions there are."""

    def there_and_back(x):
        rows = functional.heads_as_rows(x)
        return rows, functional.heads_apart(rows, heads)

    x = np.random.default_rng(0).normal(size=(2, 5, heads, 4)).astype("float32")
    unknown = tf.function(there_and_back, input_signature=[tf.TensorSpec((None, None, heads, 4))])
    for rows, again in (there_and_back(ops.array(x)), unknown(x)):
        np.testing.assert_array_equal(rows, [x[b, :, k] for b in range(2) for k in range(heads)])
        np.testing.assert_array_equal(again, x)


def test_one_query_in_a_graph_that_does_not_know_how_many_rows_and_keys():
    """For XLA, heads are then rows; two of four share their keys and values."""
    q, k, v = (RNG.normal(size=shape).astype("float32") for shape in [(3, 1, 4, 6), (3, 5, 2, 6), (3, 5, 2, 7)])

    def attend(q, k, v):
        with compat.switched(compat._compiling, True):
            scores = functional.dot_scores(q, k, scale=0.5)
            return scores, functional.mean_by(scores, v)

    unknown = [tf.TensorSpec((None, None if i else 1, *x.shape[2:])) for i, x in enumerate((q, k, v))]
    scores, mean = tf.function(attend, input_signature=unknown)(q, k, v)
    k, v = (np.repeat(x, 2, axis=2) for x in (k, v))
    want = 0.5 * np.einsum("bthd,bshd->bhts", q, k)
    np.testing.assert_allclose(scores, want, atol=1e-5)
    np.testing.assert_allclose(mean, np.einsum("bhts,bshe->bthe", want, v), atol=1e-5)


def test_write_and_place():
    cache = np.zeros((2, 6, 1), "float32")
    new = np.ones((2, 2, 1), "float32")
    got = numpy(functional.write(ops.array(cache), ops.array(new), ops.array([1, 4])))[..., 0]
    assert got.tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    got = numpy(functional.write(ops.array(cache), ops.array(new), 3))[..., 0]
    assert got.tolist() == [[0, 0, 0, 1, 1, 0]] * 2


def test_pooling():
    mask = np.array([[True, True, False, False, False], [True] * 5])
    np.testing.assert_allclose(numpy(functional.last_kept(X, mask)), np.stack([X[0, 1], X[1, 4]]))
    np.testing.assert_allclose(
        numpy(functional.mean_kept(X, mask)), np.stack([X[0, :2].mean(0), X[1].mean(0)]), atol=1e-6
    )
    assert not numpy(functional.mean_kept(X, np.zeros((2, 5), bool))).any()


def test_token_accuracy_ignores_what_it_should():
    metric = head.TokenAccuracy(ignore=0)
    logits = ops.one_hot(ops.array([[1, 2, 2, 0]]), 3)
    metric.update_state(ops.array([[1, 2, 1, 0]]), logits)
    assert float(metric.result()) == pytest.approx(2 / 3)
    metric.reset_state()
    metric.update_state(ops.array([[1, 1]]), ops.one_hot(ops.array([[1, 2]]), 3), sample_weight=ops.array([[0.0, 1.0]]))
    assert float(metric.result()) == 0
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert again.ignore == 0
    metric.reset_state()  # every position counts alike, however long its row is
    metric.update_state(ops.array([[1]]), ops.one_hot(ops.array([[2]]), 3))
    metric.update_state(ops.ones((1, 9)), ops.one_hot(ops.ones((1, 9), dtype="int32"), 3))
    assert float(metric.result()) == pytest.approx(0.9)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_linear_maps_can_be_quantized():
    model = kerastf.create_model("gpt", vocab_size=11, max_length=9, dim=16, num_layers=1, num_heads=2)
    tokens = np.arange(9)[None]
    plain = np.array(model(tokens))
    model.quantize("int8")
    assert model.get_layer("layer_0").attention.qkv.kernel.dtype == "int8"
    rounded = np.array(model(tokens))
    assert 0 < np.abs(rounded - plain).max() < 0.05 * np.abs(plain).max()
