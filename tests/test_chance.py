"""What is kept by chance is kept as often as asked for, and by the same bits in any shape."""

import math

import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kerastf import chance


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = chance.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend


@pytest.mark.parametrize("shape", [(3, 4), (5, 2, 6), (7, 3), (2, 3, 5), (8,), ()])
def test_bits_stand_in_order(shape):
    """Whatever way they are drawn, a tensor of any shape has the same bits one after the other."""
    draw = tf.random.stateless_uniform([math.prod(shape)], (1, 2), minval=None, maxval=None, dtype="uint32").numpy()
    bits = draw.view("uint16")[: math.prod(shape)].reshape(shape)
    found = chance.kept_by_chance(ops.convert_to_tensor([1, 2]), shape, 0.3).numpy()
    np.testing.assert_array_equal(found, bits >= round(0.3 * 2**16))
    traced = tf.function(lambda x: chance.kept_by_chance(ops.convert_to_tensor([1, 2]), ops.shape(x), 0.3))
    spec = tf.TensorSpec((None, *shape[1:]) if shape else ())
    np.testing.assert_array_equal(traced.get_concrete_function(spec)(tf.zeros(shape)).numpy(), found)
