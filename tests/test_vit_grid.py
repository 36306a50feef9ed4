"""ViT's grid of patches: how it is cut, positions on it, other image sizes, pictures of it."""

import math

import keras
import numpy as np
import pytest
from keras import ops
from messages import told
from tensors import numpy
from tiny_vit import some, tiny

import kerastf
from kerastf import functional, plots
from kerastf.errors import InputError
from kerastf.testing.subjects import shake


@pytest.mark.parametrize("shape, sides", [((2, 8, 8, 3), (4, 4)), ((1, 6, 8, 1), (2, 4)), ((2, 5, 3, 2), (1, 3))])
def test_patches_are_those_of_a_loop(shape, sides):
    images = some(*shape)
    high, wide = sides
    want = [
        [
            np.concatenate([image[top + y, left + x] for y in range(high) for x in range(wide)])
            for top in range(0, shape[1], high)
            for left in range(0, shape[2], wide)
        ]
        for image in images
    ]
    np.testing.assert_array_equal(numpy(functional.patches(ops.array(images), sides)), np.array(want))


# --- positions on a grid


def test_sinusoidal_2d_is_that_of_a_loop():
    block = kerastf.create_block("position", "sinusoidal_2d", grid=[3, 2], prefix=1, scale=0.5)
    got = numpy(block(ops.zeros((1, 7, 8))))[0]
    assert np.all(got[0] == 0)
    for row in range(3):
        for column in range(2):
            want = []
            for place in (row, column):
                for i in range(2):
                    angle = place / 10000 ** (2 * i / 4)
                    want += [0.5 * math.sin(angle), 0.5 * math.cos(angle)]
            np.testing.assert_allclose(got[1 + 2 * row + column], want, atol=1e-6)


def test_relative_2d_is_that_of_a_loop():
    block = kerastf.create_block("position", "relative_2d", grid=[2, 3], num_heads=2, prefix=1)
    block.build()
    shake(block, 1)
    table = numpy(block.table).reshape(3, 5, 2)
    got = numpy(block(ops.arange(7), ops.arange(7)))
    want = np.zeros((2, 7, 7))
    places = [(y, x) for y in range(2) for x in range(3)]
    for t, (y, x) in enumerate(places):
        for s, (v, u) in enumerate(places):
            want[:, 1 + t, 1 + s] = table[v - y + 1, u - x + 2]
    np.testing.assert_allclose(got, want, atol=1e-7)
    rows = numpy(block(ops.array([[1, 2], [3, 0]]), ops.arange(7)))  # one set of positions per row
    np.testing.assert_allclose(rows, np.stack([want[:, [1, 2]], want[:, [3, 0]]]), atol=1e-7)


def test_relative_2d_adds_to_scores_and_is_saved(tmp_path):
    model = tiny(position="relative_2d", registers=1)
    tables = [w for w in model.weights if w.path.endswith("attention/position/table")]
    assert [tuple(t.shape) for t in tables] == [(9, 2)] * 2
    images = some(2, 8, 8, 3)
    before = numpy(model(images))
    weights = numpy(model.attention_weights(images)[0])
    bias = numpy(model.blocks[0].attention.bias_by_position(ops.arange(6), ops.arange(6)))
    for table in tables[:1]:
        table.assign(ops.zeros_like(table))
    flat = numpy(model.attention_weights(images)[0]) * np.exp(bias)
    np.testing.assert_allclose(weights, flat / flat.sum(-1, keepdims=True), atol=1e-5)
    assert np.max(np.abs(before - numpy(model(images)))) > 1e-4
    model.save(tmp_path / "vit.keras")
    np.testing.assert_array_equal(numpy(keras.saving.load_model(tmp_path / "vit.keras")(images)), numpy(model(images)))


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "sinusoidal_2d", "relative_2d", "rotary", "alibi"]
)
def test_without_positions_the_order_of_patches_does_not_matter(position):
    model = tiny(position=position, class_token=False, embedding="vector", channels=4)
    x = some(1, 4, 4)
    gap = np.max(np.abs(numpy(model(x)) - numpy(model(x[:, ::-1].copy()))))
    # A mean of the patches keeps no order, and biases by |distance| are the same from both ends.
    assert gap < 1e-5 if position in ("none", "alibi") else gap > 1e-4


# --- other sizes


def test_the_same_size_is_the_same_model():
    for position in ("learned", "relative_2d", "sinusoidal_2d"):
        model = tiny(position=position)
        same = model.resized(8)
        for a, b in zip(model.weights, same.weights, strict=True):
            np.testing.assert_array_equal(numpy(a), numpy(b))
        assert not {id(w) for w in model.weights} & {id(w) for w in same.weights}


def test_another_size_keeps_what_is_frozen_and_what_lora_learnt():
    model = tiny()
    model.blocks[0].trainable = False
    other = model.resized(16)
    assert {w.path for w in other.trainable_weights} == {w.path for w in model.trainable_weights}
    adapted = tiny()
    adapted.enable_lora(2)
    for weight in adapted.trainable_weights:
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    x = some(2, 8, 8, 3)
    np.testing.assert_allclose(numpy(adapted.resized(8)(x)), numpy(adapted(x)), atol=1e-4)


def test_positions_are_interpolated():
    model = tiny(image_size=[8, 12])
    ramp = np.stack([[y, x] for y in range(2) for x in range(3)]) @ np.ones((2, 16))
    model.position.table.assign(np.concatenate([np.full((1, 16), 7.0), ramp]))
    larger = model.resized([16, 24], method="bilinear")
    table = numpy(larger.position.table)
    assert table.shape == (1 + 4 * 6, 16) and np.all(table[0] == 7)
    middle = table[1:, 0].reshape(4, 6)[1:-1, 1:-1]  # a ramp stays a ramp of half the slope
    want = np.array([[0.25 + 0.5 * y + 0.25 + 0.5 * x for x in range(4)] for y in range(2)])
    np.testing.assert_allclose(middle, want, atol=1e-6)
    assert tuple(larger(some(1, 16, 24, 3)).shape) == (1, 5)
    assert larger.options["image_size"] == [16, 24]


def test_relative_positions_are_interpolated_about_their_middle():
    model = tiny(position="relative_2d")
    for block in model.blocks:
        steps = np.array([[abs(y) + abs(x)] * 2 for y in (-1, 0, 1) for x in (-1, 0, 1)], dtype="float32")
        block.attention.bias_by_position.table.assign(steps)
    table = numpy(model.resized(16, method="bilinear").blocks[1].attention.bias_by_position.table)[:, 0].reshape(7, 7)
    np.testing.assert_allclose(table, table[::-1], atol=1e-6)
    np.testing.assert_allclose(table, table.T, atol=1e-6)
    assert table[3, 3] == table.min() == 0


# --- pictures


def test_rollout_is_that_of_a_loop():
    model = tiny(registers=1)
    images = some(2, 8, 8, 3)
    layers = [numpy(w).astype("float64") for w in model.attention_weights(images)]
    for row in range(2):
        total = np.eye(6)
        for weights in layers:
            step = sum(weights[row]) / 2 + np.eye(6)
            total = (step / step.sum(-1, keepdims=True)) @ total
        np.testing.assert_allclose(model.rollout(images)[row].ravel(), total[0, 2:], atol=1e-6)


def test_pictures(tmp_path):
    plots.position_similarity(some(6, 8), (2, 3), path=tmp_path / "positions.png")
    plots.rollout(some(2, 8, 8, 1), np.ones((2, 4, 4)), labels=["a", "$"], path=tmp_path / "rollout.png")
    assert (tmp_path / "positions.png").stat().st_size > 2000 < (tmp_path / "rollout.png").stat().st_size
    assert told(InputError, lambda: plots.position_similarity(some(7, 8), (2, 3))) == (
        "`table` must hold one vector for each of 2 x 3 places. Received: shape (7, 8)"
    )
    assert told(InputError, lambda: plots.rollout(some(2, 8, 8, 2), np.ones((2, 4, 4)))) == (
        "`images` must be (B, H, W, 1 or 3), `maps` (B, rows, columns), and `labels` B of them or None. "
        "Received: shapes (2, 8, 8, 2) and (2, 4, 4), labels=None"
    )
