"""The selective state space: the contract, the definition as a loop in NumPy, and what "linear" and "finite" mean."""

import keras
import numpy as np
import pytest
from keras import ops
from kerastf_ssm import Selective, recurrence

import kerastf
from kerastf import compat
from kerastf.testing import check_block, check_model

ID = "ssm/selective"


def made(length=5, rows=2, dim=8, seed=3, **options):
    """A block whose weights all matter, and an input."""
    keras.utils.set_random_seed(seed)
    block = Selective(**{"state_dim": 3, "chunk": 4, "initializer_std": 0.5, **options})
    x = np.random.default_rng(0).normal(size=(rows, length, dim)).astype("float32")
    block(x)
    for weight in (block.kernel_bias, block.skip, block.gain):
        weight.assign(weight + 0.3 * keras.random.normal(weight.shape))
    return block, x


def numpy(x):
    return np.asarray(ops.convert_to_numpy(x), "float64")


def silu(x):
    return x / (1 + np.exp(-x))


def by_definition(block, u, keep=None):
    """One row `(T, C)`, one step after the other."""
    weight = {w.path.removeprefix(block.path + "/"): numpy(w) for w in block.weights}
    inner, state_dim, width = block.inner, block.state_dim, block.kernel_size
    rank = weight["delta_kernel"].shape[0]
    both = u.astype("float64") @ weight["input/kernel"]
    x, z = both[:, :inner], both[:, inner:]
    if keep is not None:
        x = x * keep[:, None]
    h, outputs = np.zeros((inner, state_dim)), []
    for t in range(len(u)):
        seen = sum(weight["kernel"][w] * x[t - width + 1 + w] for w in range(width) if t - width + 1 + w >= 0)
        v = silu(seen + weight["kernel_bias"])
        chosen = v @ weight["selection/kernel"]
        delta = np.log1p(np.exp(chosen[:rank] @ weight["delta_kernel"] + weight["delta_bias"]))
        if keep is not None and not keep[t]:
            delta = 0 * delta
        write, read = chosen[rank : rank + state_dim], chosen[rank + state_dim :]
        for i in range(inner):
            a = -np.exp(weight["log_decay"][:, i])
            h[i] = np.exp(delta[i] * a) * h[i] + delta[i] * write * v[i]
        y = (h @ read + weight["skip"] * v) * silu(z[t])
        outputs.append(y / np.sqrt(np.mean(y**2) + block.epsilon) * weight["gain"] @ weight["output/kernel"])
    return np.stack(outputs)


def test_contract():
    check_block("attention", ID, level="full")


@pytest.mark.slow
def test_gpt_with_it_keeps_the_contract_of_models():
    check_model("gpt", attention={"name": ID, "state_dim": 4, "chunk": 4})


def test_gpt_with_it_decodes():
    check_model("gpt", attention={"name": ID, "state_dim": 2, "chunk": 2}, only=["causal", "padding", "steps"])


@pytest.mark.parametrize("length, chunk", [(1, 4), (3, 4), (4, 4), (9, 4), (21, 2), (7, 1), (5, 64)])
def test_equals_the_definition(length, chunk):
    block, x = made(length, chunk=chunk)
    want = np.stack([by_definition(block, row) for row in x])
    np.testing.assert_allclose(numpy(block(x, causal=True)), want, atol=2e-5)


@pytest.mark.parametrize("options", [{"kernel_size": 1}, {"expansion": 1, "rank": 3}, {"state_dim": 1}])
def test_equals_the_definition_with_other_sizes(options):
    block, x = made(6, **options)
    want = np.stack([by_definition(block, row) for row in x])
    np.testing.assert_allclose(numpy(block(x)), want, atol=2e-5)


def test_first_values():
    block = Selective()
    block(ops.ones((1, 2, 64)))
    np.testing.assert_allclose(numpy(-ops.exp(block.log_decay))[:, 5], -np.arange(1, 17), rtol=1e-5)
    deltas = numpy(ops.softplus(block.delta_bias))
    assert 0.00099 < deltas.min() < 0.003 and 0.03 < deltas.max() < 0.1001


# --- the recurrence


def loop(decay, added, first):
    states = []
    for t in range(decay.shape[1]):
        first = decay[:, t] * first + added[:, t]
        states.append(first)
    return ops.stack(states, axis=1)


@pytest.mark.parametrize("length, chunk", [(1, 1), (2, 8), (8, 2), (13, 4), (37, 4)])
def test_recurrence_and_its_gradient_equal_a_loop(length, chunk):
    rng = np.random.default_rng(length)
    arrays = rng.uniform(size=(2, length, 3, 2)), rng.normal(size=(2, length, 3, 2)), rng.normal(size=(2, 3, 2))
    variables = [keras.Variable(a.astype("float32")) for a in arrays]
    aim = rng.normal(size=(2, length, 3, 2)).astype("float32")
    states, last = recurrence(*(v.value for v in variables), chunk)
    want = loop(*(v.value for v in variables))
    np.testing.assert_allclose(numpy(states), numpy(want), atol=1e-5)
    np.testing.assert_allclose(numpy(last), numpy(want)[:, -1], atol=1e-5)
    found = [
        compat.gradients(lambda run=run: ops.sum(run(*(v.value for v in variables)) * aim), variables)
        for run in (lambda d, a, f: recurrence(d, a, f, chunk)[0], loop)
    ]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(numpy(a), numpy(b), atol=1e-4)


def test_a_length_that_is_not_known_when_the_graph_is_made():
    import tensorflow as tf

    block, x = made(13)
    function = tf.function(lambda x: block(x), input_signature=[tf.TensorSpec((None, None, 8))])
    np.testing.assert_allclose(numpy(function(x)), numpy(block(x)), atol=1e-6)
    np.testing.assert_allclose(numpy(function(x[:1, :3])), numpy(block(x[:1, :3])), atol=1e-6)


def test_chunk_size_does_not_matter():
    want = None
    for chunk in (1, 2, 8, 64):
        block, x = made(23, chunk=chunk)
        want = numpy(block(x)) if want is None else want
        np.testing.assert_allclose(numpy(block(x)), want, atol=1e-5)


@pytest.mark.parametrize("bias", [-1e4, -30.0, 30.0, 1e4, 1e8])
def test_extreme_deltas_stay_finite_forward_and_backward(bias):
    block, x = made(40)
    block.delta_bias.assign(bias * np.where(np.arange(block.inner) % 2, 1, -1))  # some forget at once, others never
    assert np.all(np.isfinite(numpy(block(x))))
    for gradient in compat.gradients(lambda: ops.sum(block(x) ** 2), block.trainable_variables):
        assert np.all(np.isfinite(numpy(gradient)))


# --- masks


def test_masked_positions_neither_add_nor_fade_and_the_convolution_does_not_see_them():
    block, x = made(9)
    keep = np.random.default_rng(5).uniform(size=(2, 9)) > 0.4
    want = np.stack([by_definition(block, row, k) for row, k in zip(x, keep, strict=True)])
    np.testing.assert_allclose(numpy(block(x, mask=ops.convert_to_tensor(keep))), want, atol=2e-5)
    other = np.where(keep[..., None], x, 7 * x + 3).astype("float32")
    got = numpy(block(other, mask=ops.convert_to_tensor(keep)))
    np.testing.assert_allclose(got[keep], want[keep], atol=2e-5)


def test_padding_on_the_left_changes_nothing():
    block, x = made(6)
    padded = np.concatenate([np.full((2, 3, 8), 5.0, "float32"), x], axis=1)
    mask = np.broadcast_to(np.arange(9) >= 3, (2, 9))
    got = block(padded, mask=ops.convert_to_tensor(mask))[:, 3:]
    np.testing.assert_allclose(numpy(got), numpy(block(x)), atol=1e-5)


def test_a_full_mask_gives_each_position_its_own_sweep():
    block, x = made(6)
    mask = np.random.default_rng(8).uniform(size=(2, 6, 6)) > 0.4
    got = numpy(block(x, mask=ops.convert_to_tensor(mask)))
    for t in range(6):
        alone = numpy(block(x, mask=ops.convert_to_tensor(mask[:, t])))[:, t]
        np.testing.assert_allclose(got[:, t], alone, atol=1e-5)


# --- cost


def test_state_does_not_grow_with_the_length():
    block, _ = made()
    short, long = (keras.tree.flatten(block.init_state(1, n)) for n in (8, 8000))
    assert [tuple(a.shape) for a in short] == [tuple(a.shape) for a in long]


def test_a_length_of_16k():
    # One head's weights of that length would be 1 GB.
    block = Selective(state_dim=4)
    output = block(np.random.default_rng(0).normal(size=(1, 16_384, 8)).astype("float32"))
    assert np.all(np.isfinite(numpy(output)))


def test_arithmetic_grows_with_the_length_and_all_of_it_is_counted():
    def cost(length):
        model = kerastf.create_model(
            "gpt", vocab_size=9, max_length=length, dim=16, num_layers=1, num_heads=2, attention=ID
        )
        found = kerastf.cost(model, length=length)
        assert not found.missed
        return sum(row.flops for row in found.layers if row.path.startswith("layer_0/attention/") or
                   row.path == "layer_0/attention")  # fmt: skip

    assert cost(512) / cost(256) == pytest.approx(2, rel=0.02)


# --- what it refuses


@pytest.mark.parametrize("family", ["bert", "vit", "transformer"])
def test_a_family_whose_positions_see_both_sides_refuses_it(family):
    sizes = {"image_size": 8, "patch_size": 4} if family == "vit" else {"vocab_size": 9}
    with pytest.raises(kerastf.errors.ConfigError, match=f"sees the past only, and positions of `{family}` see both"):
        kerastf.create_model(family, dim=16, num_layers=1, num_heads=2, attention=ID, **sizes)


def test_cross_attention_and_rotation_are_refused():
    with pytest.raises(kerastf.errors.ConfigError, match="`ssm/selective` does not support cross"):
        kerastf.create_model("transformer", vocab_size=9, cross_attention=ID)
    with pytest.raises(kerastf.errors.ConfigError, match="`ssm/selective` does not support rotation"):
        kerastf.create_model("gpt.nano", vocab_size=9, attention=ID, position="rotary")


def test_calls_that_it_cannot_answer():
    block, x = made()
    with pytest.raises(ValueError, match=r"sees the past only: write causal=True. Received: causal=False"):
        block(x, causal=False)
    with pytest.raises(ValueError, match="reads its own sequence"):
        block(x, ops.convert_to_tensor(x))
    with pytest.raises(ValueError, match=r"`chunk` must be a power of two. Received: chunk=12"):
        Selective(chunk=12)
    model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=16, num_layers=1, num_heads=2, attention=ID)
    with pytest.raises(kerastf.errors.InputError, match="`ssm/selective` has no weights to look at"):
        model.attention_weights(np.zeros((1, 3), "int32"))


@pytest.mark.slow
def test_learns_to_repeat_what_it_saw_before():
    """The second half of a row is its first: what is needed must be carried over five positions."""
    rng = np.random.default_rng(0)
    half = rng.integers(1, 9, (512, 5))
    tokens = np.concatenate([half, half], axis=1).astype("int32")
    keras.utils.set_random_seed(0)
    model = kerastf.create_model(
        "gpt", vocab_size=9, max_length=10, dim=32, num_layers=2, num_heads=2, dropout=0.0, attention=ID
    )
    model.compile(keras.optimizers.AdamW(5e-3))
    model.fit(tokens[:, :-1], tokens[:, 1:], epochs=12, batch_size=32, verbose=0)
    guessed = np.argmax(numpy(model(tokens[:64, :-1])), axis=-1)[:, 4:]
    assert np.mean(guessed == tokens[:64, 5:]) > 0.9
