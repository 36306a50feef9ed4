"""The backends' own kernels do what `keras.ops` and Keras's optimizers do."""

import contextlib

import keras
import numpy as np
import pytest
from arrays import arrays
from keras import ops

from kerastf import kernels


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.013])
def test_a_share_is_dropped(rate):
    kept = kernels.kept_by_chance(ops.convert_to_tensor([1, 2]), (1000, 1001), rate).numpy()
    error = 4 * (rate * (1 - rate) / kept.size) ** 0.5
    assert abs((1 - kept).mean() - rate) < error + 2**-16
    assert abs(np.corrcoef(kept[:, :-1].ravel(), kept[:, 1:].ravel())[0, 1]) < 0.005  # neighbours do not depend


@pytest.mark.parametrize("optimizer", [
    keras.optimizers.Adam(0.01), keras.optimizers.AdamW(0.01, weight_decay=0.3),
    keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.02, 7), clipnorm=0.5, beta_1=0.8, epsilon=1e-5),
])  # fmt: skip
def test_adam_in_one_pass_takes_the_steps_of_keras(optimizer):
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

    for a, b in zip(train(kernels.one_pass_adam), train(contextlib.nullcontext), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-7)
