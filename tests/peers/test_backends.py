"""The same contracts on the other backends of Keras. `make test-peers`."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.peers

CODE = """
import kerastf
for kind, id in [("attention", "multi_head"), ("attention", "window"), ("attention", "bahdanau"), ("norm", "layer")]:
    kerastf.testing.check_block(kind, id)
for id in ("simple", "lstm", "gru"):
    kerastf.testing.check_block("cell", id)
kerastf.testing.check_model("gpt")
kerastf.testing.check_model("rnn")
both = {"bidirectional": True, "head": {"name": "tagger", "num_classes": 13}}
kerastf.testing.check_model("rnn", cell="gru", only=["gradients", "padding", "fit"], **both)
kerastf.testing.check_model("bert", only=["precision", "padding"])
for position in ("rotary", "alibi"):
    kerastf.testing.check_block("attention", "multi_head", num_heads=4, position=position, only=["precision", "steps"])
print("kept")
"""
EXACT = """
import keras
from kerastf import compat

def rounds():
    if keras.backend.backend() == "jax":
        import jax
        return jax.config.jax_default_matmul_precision != "highest"
    import torch
    return [part.allow_tf32 for part in (torch.backends.cuda.matmul, torch.backends.cudnn)] != [False, False]

before = rounds()
with compat.exact_products():
    assert not rounds()
assert before and rounds()
print("kept")
"""


@pytest.mark.parametrize("code", [CODE, EXACT], ids=["contracts", "exact"])
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_promises(backend, code):
    assert_kept(backend, code)


def assert_kept(backend, code):
    """Runs code that prints "kept" at its end."""
    environment = {**os.environ, "KERAS_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.stdout.strip().endswith("kept"), done.stdout[-2000:] + done.stderr[-3000:]


FEATURES = """
import keras, kerastf, numpy as np
from kerastf import chunked_loss
from kerastf.models import from_features
x, y = np.random.default_rng(0).integers(0, 11, (2, 20, 9)).astype("int32")
weights = np.random.default_rng(1).random((20, 9)).astype("float32")

class Look(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        assert type(self.model._jax_state) is dict  # Keras would make a container of its own, and look at each weight

def trained(large, logits):
    from_features.LARGE, chunked_loss.LOGITS = large, logits
    keras.utils.set_random_seed(1)
    model = kerastf.create_model("gpt", vocab_size=11, max_length=16, dim=16, num_layers=1, num_heads=2, pad_id=3)
    model.compile("adamw")
    data = {"sample_weight": weights, "validation_data": (x, y)}
    history = model.fit(x, y, batch_size=8, epochs=3, callbacks=[Look()], verbose=0, **data).history
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    return np.concatenate([np.ravel(a) for a in (*history.values(), *model.get_weights())])
"""
PIECES = """
whole = trained(2**60, None)
for logits in (8, 2**24):
    np.testing.assert_allclose(trained(0, logits), whole, atol=1e-5)
print("kept")
"""
GPU_PROGRAMS = """
from kerastf import kernels, tracing
from kerastf.jax_kernels import entropy, rows
whole = trained(2**60, None)
asked = []

def step_by_step(logits, labels, classes):
    asked.append(logits.shape[1] - classes)
    return plain(logits, labels, classes, interpret=True)

plain, entropy.cross_entropies = entropy.cross_entropies, step_by_step
norms, normalised = [], rows.normalised

def norm_by_step(x, *rest):
    norms.append(x.shape[-1])
    return normalised(x, *rest, True)

rows.normalised = norm_by_step
kernels._jax_on_gpu, tracing.on_accelerator = lambda: True, lambda: False
for logits in (8, 2**24):
    np.testing.assert_allclose(trained(0, logits), whole, atol=1e-5)
assert set(asked) == {117}, asked  # 128 columns, 11 of which count
assert set(norms) == {16}, norms
gain = np.ones(4, "float32")
with kernels.portable():
    assert kernels.normalised(np.ones((2, 4), "float32"), gain, None, epsilon=1e-5, dtype="float32") is None
seen = []
keras.Model.export = lambda self, path: seen.append(kernels._portable.get())
kerastf.create_model("gpt", vocab_size=5, max_length=4, dim=8, num_layers=1, num_heads=2).export("nowhere")
assert seen == [True] and not kernels._portable.get()
assert kernels.normalised(np.ones((0, 4), "float32"), gain, None, epsilon=1e-5, dtype="float32") is None
kernels.WIDEST = 3
assert kernels.normalised(np.ones((2, 4), "float32"), gain, None, epsilon=1e-5, dtype="float32") is None
print("kept")
"""


@pytest.mark.parametrize("code", [PIECES, GPU_PROGRAMS], ids=["pieces", "gpu programs"])
def test_jax_trains_the_same_from_features_and_from_logits(code):
    assert_kept("jax", FEATURES + code)


PROGRAMS = """
import math
import jax, jax.numpy as jnp, numpy as np
from kerastf.jax_kernels import attention, entropy, rows as by_rows
rng = np.random.default_rng(0)
for rows, classes, idle, dtype in [(3, 5, 0, "float32"), (2, 5000, 24, "float32"), (2, 9001, 87, "bfloat16"), (4, 1, 127, "float32")]:
    x = jnp.asarray(rng.normal(size=(rows, classes + idle)) * 3, dtype)
    x = x.at[0, classes // 2].set(20.0).at[0, 0].set(20.0)  # two are highest: the first is chosen
    labels = jnp.asarray(rng.integers(0, classes, rows), "int32")
    losses, slopes, chosen = entropy.cross_entropies(x, labels, classes, interpret=True)
    logits = np.asarray(x, "float64")[:, :classes]
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    at = np.arange(rows), np.asarray(labels)
    np.testing.assert_allclose(losses, -np.log(shares[at]), rtol=1e-5, atol=1e-5)
    shares[at] -= 1
    np.testing.assert_allclose(np.asarray(slopes, "float32")[:, :classes], shares, atol=1e-6 if dtype == "float32" else 4e-3)
    assert not np.asarray(slopes, "float32")[:, classes:].any()
    np.testing.assert_array_equal(chosen, logits.argmax(1))
for rows, length, heads, shared, width in [(3, 300, 4, 2, 16), (1, 700, 2, 1, 128), (1, 5, 1, 1, 16), (2, 1, 2, 2, 16)]:
    shapes = (rows, 1, heads, width), (rows, shared, length, width), (rows, shared, length, width)
    q, k, v = (rng.normal(size=shape).astype("float32") for shape in shapes)
    last = rng.integers(0, length, rows).astype("int32")
    last[0] = length - 1
    at = np.arange(rows), slice(None), last
    kept = [x.copy() for x in (k, v)]
    for x in kept:
        x[at] = np.nan  # to be written, not read
    own = [x[at][:, None] for x in (k, v)]
    kept = [x.reshape(rows * shared, length, width) for x in kept]
    found, *kept = attention.attention_of_one(*map(jnp.asarray, (q, *own, *kept, last)), scale=0.5, interpret=True)
    for now, then in zip(kept, (k, v)):
        np.testing.assert_array_equal(now, then.reshape(now.shape))
    for row in range(rows):
        for head in range(heads):
            key, value = (x[row, head // (heads // shared), : last[row] + 1] for x in (k, v))
            shares = np.exp(0.5 * key @ q[row, 0, head])
            np.testing.assert_allclose(found[row, 0, head], shares @ value / shares.sum(), rtol=1e-4, atol=1e-5)
by_rows.PROGRAMS = 3
for count, channels, dtype in [(7, 5, "float32"), (8, 16, "float32"), (2, 48, "bfloat16"), (1, 1, "float32")]:
    x, gain, shift, above = (rng.normal(size=s) for s in [(count, channels), channels, channels, (count, channels)])
    x, above = (jnp.asarray(3 * a + 1, dtype) for a in (x, above))
    given = x, *map(jnp.float32, (gain, shift))
    y, back = jax.vjp(lambda *given: by_rows.normalised(*given, 1e-3, dtype, False, True), *given)
    (handed_on, beside), back_of_both = jax.vjp(lambda *given: by_rows.normalised(*given, 1e-3, dtype, True, True), *given)
    np.testing.assert_array_equal(handed_on, x)
    np.testing.assert_array_equal(beside, y)
    passing = jnp.asarray(rng.normal(size=x.shape), dtype)
    for whole, part, other in zip(back_of_both((passing, above)), back(above), (passing, 0, 0)):
        np.testing.assert_allclose(np.float64(whole), np.float64(part) + np.float64(other), rtol=2e-2 if dtype == "bfloat16" else 1e-5, atol=5e-2 if dtype == "bfloat16" else 1e-5)
    x, y, above, (of_x, of_gain, of_shift) = (jax.tree.map(np.float64, a) for a in (x, y, above, back(above)))
    rate = 1 / np.sqrt(x.var(1) + 1e-3)
    normal = (x - x.mean(1, keepdims=True)) * rate[:, None]
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 2e-2, "atol": 5e-2}
    np.testing.assert_allclose(y, normal * gain + shift, **near)
    for row in range(count):  # the slopes of a row, as a matrix
        matrix = rate[row] * (np.eye(channels) - 1 / channels - np.outer(normal[row], normal[row]) / channels)
        np.testing.assert_allclose(of_x[row], matrix @ (above[row] * gain), **near)
    np.testing.assert_allclose(of_gain, (above * normal).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(of_shift, above.sum(0), rtol=1e-4, atol=1e-4)
by_rows.WRITTEN, by_rows.GRADED = 8, 4
for count, channels, dtype in [(7, 5, "float32"), (29, 16, "float32"), (30, 24, "bfloat16"), (1, 1, "float16")]:
    x, above = (jnp.asarray(rng.normal(size=(count, channels)) * 3, dtype) for _ in range(2))
    bias = jnp.asarray(rng.normal(size=channels), dtype)
    for cube in (None, 0.044715):
        y, back = jax.vjp(lambda x, bias: by_rows.gelu(x, bias, cube, True), x, bias)
        h, slope, (of_x, of_bias) = (jax.tree.map(np.float64, a) for a in (x + bias.astype("float32"), above, back(above)))
        share = np.vectorize(lambda z: 0.5 + 0.5 * math.erf(z / math.sqrt(2)))
        if cube:
            share = lambda z: 0.5 + 0.5 * np.tanh(math.sqrt(2 / math.pi) * (z + cube * z**3))
        slope *= ((h + 1e-5) * share(h + 1e-5) - (h - 1e-5) * share(h - 1e-5)) / 2e-5  # the slope, as differences
        near = {"rtol": 5e-6, "atol": 2e-6} if dtype == "float32" else {"rtol": 2**-8, "atol": 2**-8}
        np.testing.assert_allclose(np.float64(y), h * share(h), **near)
        np.testing.assert_allclose(of_x, slope, **near)
        np.testing.assert_allclose(of_bias, slope.sum(0), rtol=near["rtol"], atol=4 * near["atol"])
x, bias, above = (jnp.asarray(rng.normal(size=s), "float32") for s in [(2, 5, 7), (7,), (2, 5, 7)])
y, back = jax.vjp(by_rows.add_bias, x, bias)
np.testing.assert_allclose(y, np.asarray(x) + np.asarray(bias), rtol=1e-6)
np.testing.assert_array_equal(back(above)[0], above)
np.testing.assert_allclose(back(above)[1], np.asarray(above).sum((0, 1)), rtol=1e-5, atol=1e-6)
print("kept")
"""

ACTIVATED = """
import jax, keras, numpy as np
from kerastf import functional, kernels
from kerastf.blocks.feedforward import MLP
from kerastf.jax_kernels import rows
asked, plain = [], rows.gelu
x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")

def step_by_step(x, bias, cube):
    asked.append((x.shape, cube))
    return plain(x, bias, cube, True)

def found(activation, dtype):
    keras.utils.set_random_seed(1)
    block = MLP(16, activation=activation, initializer_std=1.0, dtype=dtype)
    block.build(x.shape)

    def loss(values):
        y = block.stateless_call(values, [], x)[0]
        return keras.ops.sum(keras.ops.cast(y, "float32") ** 2)

    values = [v.value for v in block.trainable_variables[:1]] + [v.value + 0.5 for v in block.trainable_variables[1:]]
    return [np.asarray(a) for a in jax.tree.leaves(jax.value_and_grad(loss)(values))]

def near(a, b):
    for left, right in zip(a, b, strict=True):
        assert np.abs(left - right).max() <= 0.03 * np.abs(right).max(), (left, right)

rows.gelu = step_by_step
exact = {name: found(name, "float32") for name in ("gelu", "gelu_tanh", "relu")}
kernels._jax_on_gpu, kernels.MANY = lambda: True, 12 * 16
rows.normalised = None
for name in exact:
    near(found(name, "mixed_bfloat16"), exact[name])
assert asked == [((12, 16), None), ((12, 16), 0.044715)], asked
near(found("gelu", "float32"), exact["gelu"])  # not in single precision,
with kernels.portable(), functional.plain_activations():
    near(found("gelu", "mixed_bfloat16"), exact["gelu"])  # nor in what is exported,
with functional.plain_activations():
    near(found("gelu", "mixed_bfloat16"), exact["gelu"])
kernels.MANY += 1
near(found("gelu", "mixed_bfloat16"), exact["gelu"])  # nor of few numbers
assert len(asked) == 2, asked
print("kept")
"""

WRITING = """
import keras, kerastf, numpy as np
from kerastf import kernels
from kerastf.jax_kernels import attention, rows
asked, plain, found = [], attention.attention_of_one, []

def step_by_step(*tensors, scale):
    asked.append(tensors[0].shape)
    return plain(*tensors, scale=scale, interpret=True)

attention.attention_of_one = step_by_step
normalised = rows.normalised
rows.normalised = lambda *given: normalised(*given, True)
prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
for gpu in (False, True):
    kernels._jax_on_gpu = lambda: gpu
    for options in ({"attention": "cosine"}, {}, {"position": "rotary"}, {"attention": {"name": "multi_head", "num_kv_heads": 1}}):
        keras.utils.set_random_seed(1)
        sizes = {"vocab_size": 11, "max_length": 16, "dim": 32, "num_layers": 2, "num_heads": 2, "initializer_std": 0.5}
        model = kerastf.create_model("gpt", **{**sizes, **options})
        found.append([list(map(int, row)) for row in model.generate(prompts, max_length=14)])
assert found[:4] == found[4:], found
assert len({str(f) for f in found[:4]}) > 1 and set(asked) == {(3, 1, 2, 16)}, (found, asked)
print("kept")
"""


def test_jax_writes_the_same_by_the_program_for_gpus():
    assert_kept("jax", WRITING)


def test_an_activation_by_the_program_for_gpus_is_the_same():
    assert_kept("jax", ACTIVATED)


def test_programs_for_gpus_equal_numpy():
    assert_kept("jax", PROGRAMS)
