"""Shapes and parts are the same however few operations find them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays
from keras import ops
from tensorflow.python.framework import op_callbacks

import kerastf
from kerastf import functional, shapes


@pytest.mark.parametrize("known", [(2, 3), (None, 3), (2, None), (None, None)])
def test_a_reshape_that_keeps_leading_axes(known):
    (x,) = arrays(0, (2, 3, 8))
    seen = []

    @tf.function(input_signature=[tf.TensorSpec((*known, 8), "float32")])
    def apart(x):
        seen.append(shapes.leading(x, 2))
        return ops.reshape(x, (*seen[-1], 4, 2))

    np.testing.assert_array_equal(apart(x), x.reshape(2, 3, 4, 2))
    if None in known and known != (None, None):
        assert seen[-1] == tuple(-1 if n is None else n for n in known)
    for rows in (0, 5) if known == (None, 3) else ():
        assert apart(np.zeros((rows, 3, 8), "float32")).shape == (rows, 3, 4, 2)


def test_leading_axes_of_what_has_no_values_yet():
    x = keras.Input((3, 8))
    assert ops.reshape(x, (*shapes.leading(x, 2), 4, 2)).shape == (None, 3, 4, 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("sizes", [[6], [2, 4], [1, 2, 3]])
def test_parts_beside_numpy(axis, sizes):
    (x,) = arrays(0, (6, 6, 6))
    want = np.split(x, np.cumsum(sizes)[:-1], axis=axis)
    got = shapes.split(ops.array(x), sizes, axis)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
    symbolic = shapes.split(keras.Input(batch_shape=(6, 6, 6)), sizes, axis)
    assert [p.shape for p in symbolic] == [p.shape for p in want]


def test_sizes_that_do_not_add_up_are_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="split_dim exactly"):
        shapes.split(ops.ones((2, 5)), [2, 2])


def operations(function):
    """Names of what TensorFlow runs."""
    found = []
    callback = lambda kind, *_, **__: found.append(kind if isinstance(kind, str) else kind.decode())  # noqa: E731
    function()  # what is done once is done
    op_callbacks.add_op_callback(callback)
    try:
        function()
    finally:
        op_callbacks.remove_op_callback(callback)
    return found


def test_a_layer_called_outside_a_graph_asks_for_few_shapes():
    layer = kerastf.create_block("attention", "multi_head", num_heads=2)
    x = ops.ones((2, 5, 8))
    kinds = operations(lambda: layer(x, causal=True))
    assert kinds.count("MatMul") == 2 and kinds.count("SplitV") == 1
    assert kinds.count("Shape") <= 1 and "StridedSlice" not in kinds


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_outside_a_graph_a_slope_is_found_when_it_is_asked_for(name):
    (x,) = arrays(0, (4, 7))
    x, gelu = tf.constant(x), functional.activation_of(name)
    alone = len(operations(lambda: gelu(x)))

    def with_slope():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x)
        return tape.gradient(y, x)

    assert alone < len(operations(with_slope)) / 2
    traced = tf.function(with_slope)
    np.testing.assert_allclose(with_slope(), traced(), rtol=1e-6, atol=1e-7)
    steps = np.linspace(-1e-2, 1e-2, 2)[:, None, None]
    low, high = (np.asarray(gelu(tf.constant(x + s.astype("float32")))) for s in steps)
    np.testing.assert_allclose(with_slope(), (high - low) / 2e-2, atol=2e-4)
