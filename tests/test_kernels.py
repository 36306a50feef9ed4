"""The backends' own kernels do what `keras.ops` does."""

import numpy as np
import pytest
from keras import ops

from kerastf import kernels


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = kernels.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend
