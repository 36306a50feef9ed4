"""Linear attention: the contract, the definition written out in NumPy, and what "linear" means."""

import keras
import numpy as np
import pytest
from kerastf_linear_attention import Linear

import kerastf
from kerastf.testing import check_block, check_model


def test_contract():
    check_block("attention", "linear_attention/linear", level="full")


def test_gpt_with_it_keeps_the_contract_of_models():
    check_model("gpt", attention={"name": "linear_attention/linear", "chunk": 4})


@pytest.mark.parametrize("length, chunk", [(1, 4), (4, 4), (9, 4), (5, 64)])
def test_equals_the_definition(length, chunk):
    keras.utils.set_random_seed(3)
    block = Linear(num_heads=2, chunk=chunk, initializer_std=0.5)
    x = np.random.default_rng(0).normal(size=(2, length, 8)).astype("float32")
    got = keras.ops.convert_to_numpy(block(x, causal=True))
    q, k, v = (keras.ops.convert_to_numpy(d(x)) for d in (block.query, block.key, block.value))
    want = np.zeros_like(x)
    phi = lambda a: np.where(a > 0, a, np.exp(np.minimum(a, 0)) - 1) + 1  # noqa: E731
    for b in range(2):
        for h in range(2):
            part = slice(4 * h, 4 * h + 4)
            carried, total = np.zeros((4, 4)), np.zeros(4)
            for t in range(length):
                carried += np.outer(phi(k[b, t, part]), v[b, t, part])
                total += phi(k[b, t, part])
                feature = phi(q[b, t, part])
                want[b, t, part] = feature @ carried / (feature @ total)
    want = keras.ops.convert_to_numpy(block.output_projection(want))
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_length_whose_square_would_not_fit_in_memory():
    # 2 heads x 65,536^2 float32 weights would be 34 GB.
    output = Linear(num_heads=2)(keras.ops.ones((1, 65_536, 4)), causal=True)
    assert np.all(np.isfinite(keras.ops.convert_to_numpy(output)))


def test_state_does_not_grow_with_the_length():
    block = Linear(num_heads=2)
    block(keras.ops.ones((1, 3, 8)))
    short, long = (keras.tree.flatten(block.init_state(1, n)) for n in (8, 8000))
    assert [tuple(a.shape) for a in short] == [tuple(a.shape) for a in long]


def test_refuses_a_rotary_position_before_it_builds():
    with pytest.raises(kerastf.errors.ConfigError, match="`linear_attention/linear` does not support rotation"):
        kerastf.create_model("gpt.nano", vocab_size=9, attention="linear_attention/linear", position="rotary")
