"""Activations and norms whose gradients are written by hand: against the definitions, and against derived gradients."""

import contextlib
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kerastf import compat, functional, kernels, tracing
from kerastf.functional import norms

EXACT = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))
GELUS = {
    "gelu": (EXACT, {"approximate": False}),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        {"approximate": True},
    ),
}


def slopes(function, above, *given, traced=False):
    """Values and gradients of a function at NumPy arrays."""

    def run(above, *given):
        with tf.GradientTape() as tape:
            tape.watch(given)
            y = function(*given)
        return y, tape.gradient(y, given, output_gradients=ops.cast(above, y.dtype))

    run = tf.function(run, autograph=False) if traced else run
    y, found = run(*map(ops.convert_to_tensor, (above, *given)))
    return ops.convert_to_numpy(y), [ops.convert_to_numpy(x) for x in found]


@pytest.mark.parametrize("way", ["plain", "traced", "program"])
@pytest.mark.parametrize("name", GELUS)
def test_gelu(monkeypatch, name, way):
    monkeypatch.setattr(tracing, "LARGE", 1)
    monkeypatch.setattr(tracing, "NARROW", 4_001)
    definition, form = GELUS[name]
    x = np.linspace(-12, 12, 4_001, dtype="float32")
    above = arrays(0, x.shape)[0]
    with tracing.fusing() if way == "program" else contextlib.nullcontext():
        y, (slope,) = slopes(functional.activation_of(name), above, x, traced=way != "plain")
    np.testing.assert_allclose(y, definition(x.astype("float64")), atol=2e-6)
    derived = slopes(lambda x: keras.activations.gelu(x, **form), above, x)[1][0]
    np.testing.assert_allclose(slope, derived, atol=1e-5)
    step = 1e-5
    by_steps = (definition(x.astype("float64") + step) - definition(x.astype("float64") - step)) / (2 * step)
    np.testing.assert_allclose(slope, above * by_steps, atol=1e-5)


@pytest.mark.parametrize("name", GELUS)
def test_gelu_as_a_program_has_a_gradient_of_its_gradient(monkeypatch, name):
    monkeypatch.setattr(tracing, "LARGE", 1)
    monkeypatch.setattr(tracing, "NARROW", 41)
    definition, x, step = GELUS[name][0], np.linspace(-4, 4, 41), 1e-3

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = functional.activation_of(name)(x)
        return tape.gradient(y, x)

    with tracing.fusing():
        bend = slopes(slope, np.ones(41, "float32"), x.astype("float32"), traced=True)[1][0]
    np.testing.assert_allclose(
        bend, (definition(x + step) - 2 * definition(x) + definition(x - step)) / step**2, atol=1e-5
    )


@pytest.mark.parametrize("name", GELUS)
def test_gelu_far_out_and_in_half_precision(name):
    function = functional.activation_of(name)
    far = np.array([-1e30, -1e4, 1e4, 1e30], "float32")
    y, (slope,) = slopes(function, np.ones(4, "float32"), far)
    np.testing.assert_array_equal(y[1:3], [0, 1e4])
    assert np.all(np.isfinite(slope[1:3])) and slope[1] == 0 and slope[2] == 1
    half = function(ops.convert_to_tensor(np.linspace(-3, 3, 50), "bfloat16"))
    assert half.dtype == "bfloat16"
    want = GELUS[name][0](np.linspace(-3, 3, 50))
    np.testing.assert_allclose(ops.convert_to_numpy(ops.cast(half, "float32")), want, atol=0.03)


@pytest.mark.parametrize("name", GELUS)
def test_gelu_of_double_precision_keeps_it_under_xla(name):
    x = np.linspace(-6, 6, 201)
    y = compat.compiled(functional.activation_of(name), None)(tf.constant(x, "float64"))
    assert y.dtype == "float64"
    np.testing.assert_allclose(y, GELUS[name][0](x), atol=1e-12)


@pytest.mark.parametrize("name", GELUS)
def test_gelu_of_half_precision_rounds_once_where_xla_compiles_it(name):
    x = ops.convert_to_tensor(np.linspace(-6, 6, 2_001), "bfloat16")
    definition, step = GELUS[name][0], 1e-5
    exact = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")

    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = functional.activation_of(name)(x)
        return y, tape.gradient(y, x)

    found = compat.compiled(both, None)(x)
    want = definition(exact), (definition(exact + step) - definition(exact - step)) / (2 * step)
    for got, true in zip(found, want, strict=True):
        assert got.dtype == "bfloat16"
        error = np.abs(ops.convert_to_numpy(ops.cast(got, "float32")) - true)
        assert np.all(error <= 2**-8 * np.abs(true) + 1e-4), error.max()


@pytest.mark.parametrize("name", GELUS)
def test_gelu_of_half_precision_rounds_once_in_fit_however_wide(monkeypatch, name):
    monkeypatch.setattr(tracing, "LARGE", 2_001)
    x = ops.convert_to_tensor(np.linspace(-6, 6, 2_001)[None], "bfloat16")
    definition, step = GELUS[name][0], 1e-5
    exact = ops.convert_to_numpy(ops.cast(x, "float32")).astype("float64")

    @tf.function(autograph=False)
    def both(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = functional.activation_of(name)(x)
        return y, tape.gradient(y, x)

    with tracing.fusing():
        found = both(x)
    want = definition(exact), (definition(exact + step) - definition(exact - step)) / (2 * step)
    for got, true in zip(found, want, strict=True):
        assert got.dtype == "bfloat16"
        error = np.abs(ops.convert_to_numpy(ops.cast(got, "float32")) - true)
        assert np.all(error <= 2**-8 * np.abs(true) + 1e-4), error.max()


@pytest.mark.parametrize("name", GELUS)
def test_gelu_with_a_bias_as_a_program(monkeypatch, name):
    monkeypatch.setattr(tracing, "LARGE", 1)
    x, bias, above = arrays(0, (3, 5, 7), (7,), (3, 5, 7))
    activation = functional.activation_of(name)

    def biased(x, bias):
        return functional.add_bias(x, bias, activation)

    with tracing.fusing():
        y, (of_x, of_bias) = slopes(biased, above, x, bias, traced=True)
    np.testing.assert_allclose(y, GELUS[name][0]((x + bias).astype("float64")), atol=2e-6)
    want = slopes(lambda x: keras.activations.gelu(x, **GELUS[name][1]), above, x + bias)[1][0]
    np.testing.assert_allclose(of_x, want, atol=1e-5)
    np.testing.assert_allclose(of_bias, want.sum((0, 1)), atol=2e-5)


@contextlib.contextmanager
def norms_by_programs():
    """In `fit` on a CPU with oneDNN, however small the rows are."""
    with pytest.MonkeyPatch.context() as patch, tracing.fusing():
        patch.setattr(tracing, "one_dnn", lambda: True)
        patch.setattr(norms, "MANY", 1)
        yield


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    rows=st.integers(1, 9), wide=st.integers(2, 40), shift=st.booleans(), deep=st.booleans(),
    way=st.sampled_from(["plain", "traced", "programs"]), offset=st.sampled_from([0.0, 100.0]), beside=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_normalise(rows, wide, shift, way, deep, offset, beside, seed):
    traced = way != "plain"
    shape = (2, rows, wide) if deep else (rows, wide)
    x, above, gain, moved = arrays(seed, shape, shape, (wide,), (wide,))
    x = x + offset
    learnt = [x, gain, moved] if shift else [x, gain]

    def whole(x, gain, shift=None):
        if not beside:
            return functional.normalise(x, gain, shift, epsilon=1e-3)
        handed_on, y = functional.normalise(x, gain, shift, epsilon=1e-3, beside=True)
        return 3 * handed_on + y

    with norms_by_programs() if way == "programs" else contextlib.nullcontext():
        y, found = slopes(whole, above, *learnt, traced=traced)
    exact = x.astype("float64")
    centred = exact - exact.mean(-1, keepdims=True)
    want = gain * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-3) + (moved if shift else 0)
    want = want + 3 * exact if beside else want
    np.testing.assert_allclose(y, want, atol=2e-5 if offset == 0 else 2e-3)
    share = 3.0 if beside else 0.0
    derived = slopes(lambda x, *rest: share * x + norms._forward(1e-3, x, *rest)[0], above, *learnt)[1]
    for got, other in zip(found, derived, strict=True):
        np.testing.assert_allclose(got, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("by_programs", [False, True])
def test_half_precision_is_normalised_in_float32(by_programs):
    x = arrays(0, (4, 64))[0]
    half = ops.cast(ops.convert_to_tensor(x), "bfloat16")

    def both(half):
        with tf.GradientTape() as tape:
            tape.watch(half)
            y = functional.normalise(half, ops.ones(64), None, epsilon=1e-5)
        return y, tape.gradient(y, half)

    with norms_by_programs() if by_programs else contextlib.nullcontext():
        y, slope = (tf.function(both, autograph=False) if by_programs else both)(half)
    assert y.dtype == "float32" and slope.dtype == "bfloat16"
    rounded = ops.convert_to_numpy(ops.cast(half, "float32"))
    np.testing.assert_allclose(
        y, (rounded - rounded.mean(-1, keepdims=True)) / rounded.std(-1, keepdims=True), atol=1e-3
    )


def test_norms_by_programs_have_a_gradient_of_their_gradient():
    x, above, gain = arrays(0, (2, 3, 6), (2, 3, 6), (6,))

    def steepness(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = functional.normalise(x, ops.convert_to_tensor(gain), None, epsilon=0.1)
        return tf.reduce_sum(tape.gradient(y, x, output_gradients=ops.convert_to_tensor(above)) ** 2)

    with norms_by_programs():
        found = slopes(steepness, np.float32(1), x, traced=True)[1][0]
    step = 1e-2
    for where in ((0, 0, 0), (1, 2, 5), (0, 1, 3)):
        change = np.zeros_like(x)
        change[where] = step
        ends = [float(steepness(ops.convert_to_tensor(x + sign * change))) for sign in (1, -1)]
        assert found[where] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02, abs=1e-2)


@pytest.mark.parametrize(
    "why, count", {"large rows": 1, "small rows": 0, "no oneDNN": 0, "no fit": 0, "unknown length": 0}.items()
)
def test_which_norms_go_by_programs(monkeypatch, why, count):
    made, original = [], norms._programs
    monkeypatch.setattr(norms, "_programs", lambda epsilon: made.append(epsilon) or original(epsilon))
    monkeypatch.setattr(norms, "MANY", 24 + (why == "small rows"))
    monkeypatch.setattr(tracing, "one_dnn", lambda: why != "no oneDNN")
    given = tf.TensorSpec((None, None if why == "unknown length" else 4, 6))
    run = tf.function(lambda x: functional.normalise(x, ops.ones(6), None, epsilon=0.1), autograph=False)
    with contextlib.nullcontext() if why == "no fit" else tracing.fusing():
        run.get_concrete_function(given)
    assert len(made) == count


@pytest.mark.parametrize("where", ["eager", "traced", "fit"])
@pytest.mark.parametrize("shape", [(3,), (0, 3), (7, 3), (5, 900, 3), (2, 3, 4, 5, 6, 3)], ids=str)
@pytest.mark.parametrize("dtype, bound", [("float32", 1e-5), ("float16", 2**-10), ("bfloat16", 2**-7)])
def test_a_bias_is_added_and_learns_the_sum_of_all_rows(monkeypatch, shape, dtype, bound, where):
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    x, above = (ops.cast(np.abs(a), dtype) for a in arrays(0, shape, shape))
    bias = ops.convert_to_tensor([1.0, -2.0, 3.0], dtype)

    def run():
        with tf.GradientTape() as tape:
            tape.watch((x, bias))
            y = functional.add_bias(x, bias)
        return y, *tape.gradient(y, (x, bias), output_gradients=above), kernels.summed_rows(above)

    with tracing.fusing() if where == "fit" else contextlib.nullcontext():
        y, of_x, of_bias, total = (run if where == "eager" else tf.function(run, autograph=False))()
    exact = [np.asarray(ops.cast(a, "float64")) for a in (x, bias, above)]
    np.testing.assert_array_equal(y, ops.cast(exact[0] + exact[1], dtype))
    np.testing.assert_array_equal(of_x, above)
    for found in (of_bias, total):
        assert keras.backend.standardize_dtype(found.dtype) == dtype
        want = exact[2].reshape(-1, 3).sum(0) if len(shape) > 1 else exact[2]
        np.testing.assert_allclose(np.asarray(ops.cast(found, "float64")), want, rtol=bound)


@pytest.mark.parametrize(
    "why, kernel", {"fit": "MatMul", "no oneDNN": "BiasAddGrad", "no fit": "BiasAddGrad", "half": "BiasAddGrad"}.items()
)
def test_which_biases_learn_by_a_product(monkeypatch, why, kernel):
    monkeypatch.setattr(tracing, "one_dnn", lambda: why != "no oneDNN")
    dtype = "float16" if why == "half" else "float32"

    @tf.function(autograph=False)
    def run(x, bias):
        with tf.GradientTape() as tape:
            tape.watch(bias)
            y = functional.add_bias(x, bias)
        return tape.gradient(y, bias)

    with contextlib.nullcontext() if why == "no fit" else tracing.fusing():
        graph = run.get_concrete_function(tf.TensorSpec((None, 3), dtype), tf.TensorSpec((3,), dtype)).graph
    assert [op.type for op in graph.get_operations() if op.type in ("MatMul", "BiasAddGrad")] == [kernel]
