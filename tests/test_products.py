"""Products of matrices are the same in whatever form they are computed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from arrays import arrays
from keras import ops

from kerastf import halves, products, tracing


@pytest.mark.parametrize("one_dnn", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("units", [5, 8])
def test_products_by_halves(monkeypatch, units, turned, rows, one_dnn):
    for least in ("SMALL", "SMALL_FOR_ONE", "SMALL_IN_A_PAIR"):
        monkeypatch.setattr(halves, least, 0)
    monkeypatch.setattr(tracing, "one_dnn", lambda: one_dnn)
    prompt, token, matrix = arrays(0, (rows, 4, 6), (rows, 1, 6), (6, units))
    variable, store = keras.Variable(matrix.T if turned else matrix), {}
    for x, making in ((prompt, True), (token, False)):
        with halves.read(store, making=making):
            y = halves.product(ops.array(x), variable, transpose_b=turned)
        np.testing.assert_allclose(y, np.einsum("btc,cn->btn", x, matrix), atol=1e-5)
    variable.assign(ops.zeros_like(variable))  # the halves are what is read
    with halves.read(store, making=False):
        again = halves.product(ops.array(token), variable, transpose_b=turned)
    np.testing.assert_allclose(again, y, atol=1e-6)

    @tf.function
    def traced(x):
        with halves.read(store, making=False):
            return halves.product(x, variable, transpose_b=turned)

    made = traced.get_concrete_function(tf.constant(token)).graph.get_operations()
    sizes = sorted([i.shape.as_list() for i in op.inputs] for op in made if "MatMul" in op.type)
    uneven = units // 2, units - units // 2
    if rows > 1 or (turned and not one_dnn):
        assert sizes == [[[n, 6], [rows, 6]] for n in uneven]
    elif one_dnn:
        assert sizes == [[[2, 1, 6], [2, uneven[1], 6]]]
    else:
        assert sizes == [[[1, 6], [6, n]] for n in uneven]
    other = keras.Variable(np.eye(6))
    with halves.read(store, making=False):  # not met in the prompt, so nothing is cut within the loop
        np.testing.assert_allclose(halves.product(ops.array(token), other), token, atol=1e-6)
    assert list(store) == [id(variable)]


@pytest.mark.parametrize(
    "rows, one_dnn, least", [(2, False, 2**14), (2, True, 2**14), (1, False, 2**17), (1, True, 2**16)]
)
def test_small_matrices_stay_whole(monkeypatch, rows, one_dnn, least):
    monkeypatch.setattr(tracing, "one_dnn", lambda: one_dnn)
    store = {}
    for numbers in (least, least - 2):
        x, matrix = ops.ones((rows, 3, 2)), keras.Variable(np.ones((2, numbers // 2)))
        with halves.read(store, making=True):
            assert halves.product(x, matrix).shape == (rows, 3, numbers // 2)
        assert len(store) == 1  # the first one


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rank", [2, 3])
def test_products_in_fit_choose_their_form_and_stay_the_same(monkeypatch, rank, turned):
    monkeypatch.setattr(products, "WIDE", 5 * 7)
    monkeypatch.setattr(tracing, "one_dnn", lambda: True)
    rng = np.random.default_rng(0)
    x, above = (rng.normal(size=(*(2, 3)[: rank - 1], width)).astype("float32") for width in (5, 7))
    matrix = rng.normal(size=(7, 5) if turned else (5, 7)).astype("float32")

    @tf.function
    def traced(x, matrix, above):
        with tf.GradientTape() as tape:
            tape.watch([x, matrix])
            y = products.product(x, matrix, transpose_b=turned)
            total = tf.reduce_sum(y * above)
        return y, *tape.gradient(total, (x, matrix))

    def found(values):
        """The forms of the products, and what comes out."""
        concrete = traced.get_concrete_function(*values)
        names = [op.type for op in concrete.graph.get_operations() if "MatMul" in op.type]
        return names.count("MatMul"), len(names) - names.count("MatMul"), concrete(*values)

    values = [tf.constant(a) for a in (x, matrix, above)]
    with tracing.fusing():
        plain, batched, (y, of_x, of_matrix) = found(values)
    # Of the three, one has its second matrix transposed. Those of two axes are differentiated by TensorFlow.
    assert (plain, batched) == ((2, 1) if rank == 3 else (0, 3) if turned else (3, 0))
    rows, slopes = x.reshape(-1, 5).astype("float64"), above.reshape(-1, 7).astype("float64")
    straight = matrix.T if turned else matrix
    np.testing.assert_allclose(y, (rows @ straight).reshape(above.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_x, (slopes @ straight.T).reshape(x.shape), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(of_matrix, slopes.T @ rows if turned else rows.T @ slopes, rtol=1e-5, atol=1e-5)

    others = [(products, "WIDE", 5 * 7 + 1), (tracing, "one_dnn", lambda: False)]
    for where, name, value in [*others, (tracing, "on_accelerator", lambda: True)]:
        with monkeypatch.context() as now, tracing.fusing():
            now.setattr(where, name, value)
            traced = tf.function(traced.python_function)
            assert found(values)[1] == 0, name
    traced = tf.function(traced.python_function)
    assert found(values)[1] == 0, "outside of fit"
    with tracing.fusing():
        traced = tf.function(traced.python_function)
        assert found([tf.cast(v, "float64") for v in values])[1] == 0, "another precision"


def test_few_rows_and_a_tall_matrix_are_multiplied_turned(monkeypatch):
    monkeypatch.setattr(products, "TALL", 7)
    monkeypatch.setattr(products, "FEW", 3)
    monkeypatch.setattr(tracing, "one_dnn", lambda: False)
    rows, matrix, above = arrays(0, (3, 5), (7, 5), (3, 7))

    def run(rows, matrix, above):
        with tf.GradientTape() as tape:
            tape.watch([rows, matrix])
            y = products.product(rows, matrix, transpose_b=True)
        return y, *tape.gradient(y, (rows, matrix), output_gradients=above)

    def turned(*shapes, dtype="float32"):
        graph = tf.function(run).get_concrete_function(*(tf.TensorSpec(shape, dtype) for shape in shapes)).graph
        return "Transpose" in [op.type for op in graph.get_operations()]

    with tracing.fusing():
        found = tf.function(run)(*map(tf.constant, (rows, matrix, above)))
        assert turned((3, 5), (7, 5), (3, 7)) and turned((1, 5), (9, 5), (1, 9))
        assert not turned((4, 5), (7, 5), (4, 7)) and not turned((3, 5), (6, 5), (3, 6))
        assert not turned((None, 5), (7, 5), (None, 7)) and not turned((3, 5), (7, 5), (3, 7), dtype="float64")
        for where, name in ((tracing, "one_dnn"), (tracing, "on_accelerator")):
            with monkeypatch.context() as now:
                now.setattr(where, name, lambda: True)
                assert not turned((3, 5), (7, 5), (3, 7)), name
    assert not turned((3, 5), (7, 5), (3, 7)), "outside of fit"
    rows, matrix, above = (a.astype("float64") for a in (rows, matrix, above))
    for got, want in zip(found, (rows @ matrix.T, above @ matrix, above.T @ rows), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
