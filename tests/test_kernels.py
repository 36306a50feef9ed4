"""The backends' own kernels do what `keras.ops` does."""

import keras
import numpy as np
import pytest
from arrays import arrays
from keras import ops

from kerastf import halves, kernels


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = kernels.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_products_by_halves(monkeypatch, rows, turned):
    monkeypatch.setattr(halves, "SMALL", 0)
    prompt, token, matrix = arrays(0, (rows, 4, 6), (rows, 1, 6), (6, 5))
    variable, store = keras.Variable(matrix.T if turned else matrix), {}
    for x, making in ((prompt, True), (token, False)):
        with halves.read(store, making=making):
            y = halves.product(ops.array(x), variable, transpose_b=turned)
        np.testing.assert_allclose(y, np.einsum("btc,cn->btn", x, matrix), atol=1e-5)
    parts, axis = store[id(variable)]
    assert sorted(part.shape[axis] for part in parts) == [2, 3]
    other = keras.Variable(np.eye(6))
    with halves.read(store, making=False):  # not met in the prompt, so nothing is cut within the loop
        np.testing.assert_allclose(halves.product(ops.array(token), other), token, atol=1e-6)
    assert list(store) == [id(variable)]
