"""ViT: published sizes, NumPy written differently, positions on a grid, other image sizes, vectors, bad input."""

import gzip
import math
import pickle
import struct

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import data, functional, plots
from kerastf.blocks.stack import TransformerLayer
from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake

TINY = {"image_size": 8, "patch_size": 4, "dim": 16, "num_layers": 2, "num_heads": 2, "num_classes": 5}
SIZES = {
    "ti16": 5_717_416, "s16": 22_050_664, "b16": 86_567_656, "b32": 88_224_232, "l16": 304_326_632,
    "l32": 306_535_400, "h14": 632_045_800,
}  # fmt: skip


def array(x):
    return ops.convert_to_numpy(x)


def tiny(**options):
    model = kerastf.create_model("vit", **{**TINY, **options})
    shake(model, 1)
    return model


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


# --- sizes and truth


@pytest.mark.parametrize("preset", SIZES)
def test_published_sizes(preset):
    assert kerastf.count_parameters(f"vit.{preset}") == SIZES[preset]


def test_info_counts_the_presets():
    assert kerastf.info("vit.b16").parameters == {"b16": SIZES["b16"]}


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
    np.testing.assert_array_equal(array(functional.patches(ops.array(images), sides)), np.array(want))


def numpy_vit(model, image):
    """The paper's equations for one image, one head and one token at a time, in float64."""
    weights = {w.path: array(w).astype("float64") for w in model.weights}
    layers, heads, dim, side = (model.options[n] for n in ("num_layers", "num_heads", "dim", "patch_size"))
    width = dim // heads

    def normed(x, path):
        x = x - x.mean()
        return x / math.sqrt((x**2).mean() + 1e-6) * weights[f"{path}/gain"] + weights[f"{path}/shift"]

    def linear(x, path):
        return weights[f"{path}/kernel"].T @ x + weights[f"{path}/bias"]

    xs = [weights["class_token/table"][0]]
    for top in range(0, image.shape[0], side):
        for left in range(0, image.shape[1], side):
            xs.append(linear(image[top : top + side, left : left + side].ravel(), "embedding/project"))
    xs = [x + p for x, p in zip(xs, weights["position/table"], strict=True)]
    for n in range(layers):
        mixed = [linear(normed(x, f"layer_{n}/attention_norm"), f"layer_{n}/attention/qkv") for x in xs]
        for t, x in enumerate(list(xs)):
            found = []
            for h in range(heads):
                q, k, v = (slice(part * dim + h * width, part * dim + (h + 1) * width) for part in range(3))
                scores = np.array([mixed[t][q] @ m[k] / math.sqrt(width) for m in mixed])
                chances = np.exp(scores) / np.exp(scores).sum()
                found.append(sum(c * m[v] for m, c in zip(mixed, chances, strict=True)))
            x = x + linear(np.concatenate(found), f"layer_{n}/attention/output")
            h = linear(normed(x, f"layer_{n}/feedforward_norm"), f"layer_{n}/feedforward/expand")
            h = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in h])
            xs[t] = x + linear(h, f"layer_{n}/feedforward/contract")
    return linear(normed(xs[0], "norm"), "head/project")


def test_equals_a_vit_in_numpy():
    model = tiny(image_size=[8, 12])
    images = some(2, 8, 12, 3)
    want = np.stack([numpy_vit(model, image) for image in images])
    np.testing.assert_allclose(array(model(images)), want, atol=1e-5)


# --- options


def test_the_mean_is_taken_over_the_patches_alone():
    """With a class token and registers, `mean` leaves them out."""
    model = tiny(registers=3, head={"name": "classifier", "pooling": "mean"})
    features = array(model.with_head("features")(some(2, 8, 8, 3)))
    assert features.shape == (2, 1 + 3 + 4, 16)
    head = model.head.project
    want = features[:, 4:].mean(1) @ array(head.kernel) + array(head.bias)
    np.testing.assert_allclose(array(model(some(2, 8, 8, 3))), want, atol=1e-5)


def test_registers_stand_after_the_class_token_and_have_no_position():
    model = tiny(registers=2)
    assert tuple(model.position.table.shape) == (5, 16)
    x, mask = model.embed(ops.array(some(1, 8, 8, 3)))
    registers = next(w for w in model.weights if w.path == "registers/table")
    np.testing.assert_allclose(array(x)[0, 1:3], array(registers), atol=1e-6)
    assert mask is None


def test_preprocessing_is_part_of_the_model(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    plain = tiny()
    model = kerastf.create_model("vit", **TINY, preprocessing={"scale": 1 / 255, "mean": mean, "std": std})
    model.set_weights(plain.get_weights())
    want = array(plain(((pixels / 255 - mean) / std).astype("float32")))
    np.testing.assert_allclose(array(model(pixels)), want, atol=1e-4)
    np.testing.assert_allclose(model.predict(pixels, verbose=0), want, atol=1e-4)
    model.save(tmp_path / "vit.keras")
    again = kerastf.load_model(tmp_path / "vit.keras")
    assert again.options["preprocessing"] == {"scale": 1 / 255, "mean": mean, "std": std}
    np.testing.assert_array_equal(array(again(pixels)), array(model(pixels)))


def test_contract_with_options():
    options = {"class_token": False, "registers": 2, "drop_path": 0.3, "dropout": 0.2, "position": "relative_2d"}
    check_model("vit", only=["config", "gradients", "seed", "batch", "save"], **options)


# --- stochastic depth


def test_drop_path_keeps_the_mean_and_draws_once_per_row():
    layer = TransformerLayer({"name": "multi_head", "num_heads": 2}, drop_path=0.4)
    x = np.repeat(some(1, 3, 8), 4000, axis=0)
    layer(x[:1])
    shake(layer, 1)
    still = array(layer(x[:1], training=False))
    keras.utils.set_random_seed(3)
    moved = array(layer(x, training=True))
    skipped = np.all(np.abs(moved - x) < 1e-6, axis=(1, 2))  # both blocks
    assert abs(skipped.mean() - 0.4**2) < 0.03
    first = array(layer.attention(layer.attention_norm(x[:1])))
    alone = np.all(np.abs(moved - x - first / 0.6) < 1e-4, axis=(1, 2))  # the attention stayed, the rest did not
    assert abs(alone.mean() - 0.6 * 0.4) < 0.03
    assert np.array_equal(still, array(layer(x[:1], training=False)))


def test_drop_path_keeps_the_expectation_of_a_block():
    layer = TransformerLayer({"name": "none"}, feedforward={"name": "mlp", "mlp_dim": 4}, drop_path=0.3)
    layer(some(1, 2, 4))
    shake(layer, 1)
    for name in ("expand", "contract"):  # the feed-forward does nothing, so that the layer is linear in what it drops
        kernel = getattr(layer.feedforward, name)
        kernel.kernel.assign(ops.zeros_like(kernel.kernel))
        kernel.bias.assign(ops.zeros_like(kernel.bias))
    x = np.repeat(some(1, 2, 4), 20_000, axis=0)
    keras.utils.set_random_seed(3)
    np.testing.assert_allclose(array(layer(x, training=True)).mean(0), array(layer(x[:1]))[0], atol=0.03)


def test_drop_path_costs_nothing_when_it_is_off_and_grows_with_depth():
    layer = TransformerLayer({"name": "multi_head", "num_heads": 2})
    layer(some(1, 3, 8))
    assert layer.skip is None and layer.get_config()["drop_path"] == 0.0
    model = kerastf.create_model("vit", **{**TINY, "num_layers": 4}, drop_path=0.3)
    assert [round(b.drop_path, 6) for b in model.blocks] == [0, 0.1, 0.2, 0.3]
    again = TransformerLayer.from_config(model.blocks[2].get_config())
    assert round(again.drop_path, 6) == 0.2


def test_drop_path_outside_its_range():
    with pytest.raises(ValueError) as caught:
        TransformerLayer("multi_head", drop_path=1.0)
    assert str(caught.value) == "`drop_path` must be in [0, 1). Received: drop_path=1.0"


# --- positions on a grid


def test_sinusoidal_2d_is_that_of_a_loop():
    block = kerastf.create_block("position", "sinusoidal_2d", grid=[3, 2], prefix=1, scale=0.5)
    got = array(block(ops.zeros((1, 7, 8))))[0]
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
    table = array(block.table).reshape(3, 5, 2)
    got = array(block(ops.arange(7), ops.arange(7)))
    want = np.zeros((2, 7, 7))
    places = [(y, x) for y in range(2) for x in range(3)]
    for t, (y, x) in enumerate(places):
        for s, (v, u) in enumerate(places):
            want[:, 1 + t, 1 + s] = table[v - y + 1, u - x + 2]
    np.testing.assert_allclose(got, want, atol=1e-7)
    rows = array(block(ops.array([[1, 2], [3, 0]]), ops.arange(7)))  # one set of positions per row
    np.testing.assert_allclose(rows, np.stack([want[:, [1, 2]], want[:, [3, 0]]]), atol=1e-7)


def test_relative_2d_adds_to_scores_and_is_saved(tmp_path):
    model = tiny(position="relative_2d", registers=1)
    tables = [w for w in model.weights if w.path.endswith("attention/position/table")]
    assert [tuple(t.shape) for t in tables] == [(9, 2)] * 2
    images = some(2, 8, 8, 3)
    before = array(model(images))
    weights = array(model.attention_weights(images)[0])
    bias = array(model.blocks[0].attention.bias_by_position(ops.arange(6), ops.arange(6)))
    for table in tables[:1]:
        table.assign(ops.zeros_like(table))
    flat = array(model.attention_weights(images)[0]) * np.exp(bias)
    np.testing.assert_allclose(weights, flat / flat.sum(-1, keepdims=True), atol=1e-5)
    assert np.max(np.abs(before - array(model(images)))) > 1e-4
    model.save(tmp_path / "vit.keras")
    np.testing.assert_array_equal(array(keras.saving.load_model(tmp_path / "vit.keras")(images)), array(model(images)))


@pytest.mark.parametrize(
    "position", ["none", "learned", "sinusoidal", "sinusoidal_2d", "relative_2d", "rotary", "alibi"]
)
def test_without_positions_the_order_of_patches_does_not_matter(position):
    model = tiny(position=position, class_token=False, embedding="vector", channels=4)
    x = some(1, 4, 4)
    gap = np.max(np.abs(array(model(x)) - array(model(x[:, ::-1].copy()))))
    # A mean of the patches keeps no order, and biases by |distance| are the same from both ends.
    assert gap < 1e-5 if position in ("none", "alibi") else gap > 1e-4


# --- other sizes


def test_the_same_size_is_the_same_model():
    for position in ("learned", "relative_2d", "sinusoidal_2d"):
        model = tiny(position=position)
        same = model.resized(8)
        for a, b in zip(model.weights, same.weights, strict=True):
            np.testing.assert_array_equal(array(a), array(b))
        assert not {id(w) for w in model.weights} & {id(w) for w in same.weights}


def test_positions_are_interpolated():
    model = tiny(image_size=[8, 12])
    ramp = np.stack([[y, x] for y in range(2) for x in range(3)]) @ np.ones((2, 16))
    model.position.table.assign(np.concatenate([np.full((1, 16), 7.0), ramp]))
    larger = model.resized([16, 24], method="bilinear")
    table = array(larger.position.table)
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
    table = array(model.resized(16, method="bilinear").blocks[1].attention.bias_by_position.table)[:, 0].reshape(7, 7)
    np.testing.assert_allclose(table, table[::-1], atol=1e-6)
    np.testing.assert_allclose(table, table.T, atol=1e-6)
    assert table[3, 3] == table.min() == 0


# --- vectors


def test_padding_of_vectors_changes_nothing():
    for options in ({}, {"class_token": False, "registers": 2}, {"class_token": False}):
        model = tiny(embedding="vector", max_length=9, channels=4, pad_value=0.0, **options)
        x = some(3, 5, 4)
        padded = np.pad(x, ((0, 0), (0, 4), (0, 0)))
        np.testing.assert_allclose(array(model(padded)), array(model(x)), atol=1e-5)
        assert np.all(np.isfinite(array(model(np.zeros((2, 3, 4), "float32")))))


def test_patch_vectors_equal_the_image():
    images = some(2, 8, 8, 3)
    model = tiny()
    vectors = kerastf.create_model("vit", **TINY | {"embedding": "vector", "channels": 48})
    vectors.set_weights(model.get_weights())
    cut = functional.patches(ops.array(images), (4, 4))
    np.testing.assert_allclose(array(vectors(cut)), array(model(images)), atol=1e-5)


# --- bad input


def told(error, run):
    with pytest.raises(error) as caught:
        run()
    return str(caught.value)


def test_configurations_that_cannot_be():
    create = lambda **o: lambda: kerastf.create_model("vit", **{**TINY, **o})  # noqa: E731
    assert told(ConfigError, create(image_size=[8, 10])) == (
        "The image must be a whole number of patches high and wide. Crop or resize it, or choose another patch size. "
        "Received: an image of 8 x 10 and patches of 4 x 4"
    )
    assert told(ConfigError, create(image_size=[8, 8, 3])) == (
        "`image_size` must be a positive number, or height and width. Received: image_size=[8, 8, 3]"
    )
    assert told(ConfigError, create(max_length=4)) == (
        "`max_length` is for vectors: write embedding='vector', or leave it out. Received: max_length=4, "
        "embedding='patch'"
    )
    assert told(ConfigError, create(embedding="token")) == (
        "This model reads images or vectors: embedding='patch', 'vector', or a plugin's. Received: embedding='token'"
    )
    assert told(ConfigError, create(preprocessing={"scale": 1, "mean": [1, 2], "sdt": 3})) == (
        "`preprocessing` takes scale, mean and std. Received: sdt"
    )
    assert told(ConfigError, create(preprocessing={"mean": [0.5, 0.5]})) == (
        "`preprocessing`: `mean` must be a number or a list of 3, one per channel. Received: mean=[0.5, 0.5]"
    )
    assert told(ConfigError, create(preprocessing={"std": 0})) == (
        "`preprocessing`: `std` must be a number or a list of 3, one per channel, above 0. Received: std=0"
    )
    assert told(ConfigError, create(dim=18, num_heads=1, position="sinusoidal_2d")) == (
        "position `sinusoidal_2d`: A sinusoidal 2-D position needs a width divisible by 4. Received: dim=18"
    )
    assert told(ConfigError, create(embedding="vector", max_length=7, position="relative_2d")) == (
        "position `relative_2d` needs a grid, and `max_length` says that there is none. Choose another position, or leave "
        "`max_length` out where the vectors are the patches of an image. Received: max_length=7"
    )


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_arrays_that_are_not_images(method):
    model = kerastf.create_model("vit", **TINY)
    model.compile("adamw")
    good, labels = some(2, 8, 8, 3), np.array([0, 4])

    def give(x, y=labels):
        arguments = (x,) if method == "predict" else (x, y)
        return lambda: getattr(model, method)(*arguments, verbose=0)

    form = "The input must have shape (rows, 8, 8, 3)."
    assert told(InputError, give(good[..., :1])) == (
        f"{form} Give each pixel 3 channels, or build the model with the channels that there are. "
        "Received: shape (2, 8, 8, 1)"
    )
    assert told(InputError, give(good[..., 0])) == (
        f"{form} Give each pixel 3 channels, or build the model with the channels that there are. "
        "Received: shape (2, 8, 8)"
    )
    assert told(InputError, give(good[0])) == (
        f"{form} One image is a batch of one: images[None]. Received: shape (8, 8, 3)"
    )
    assert told(InputError, give(some(2, 8, 12, 3))) == (
        f"{form} Resize the images, or the model: model.resized([8, 12]). Received: shape (2, 8, 12, 3)"
    )
    assert told(InputError, give(some(2, 5))) == f"{form} Received: shape (2, 5)"
    for wrong in (np.nan, np.inf):
        spoilt = good.copy()
        spoilt[1, 2, 3, 0] = wrong
        assert told(InputError, give(spoilt)) == f"The input must be finite numbers. Received: {wrong}"
    if method != "predict":
        assert told(InputError, give(good, np.array([0, 5]))) == (
            "Targets of the head `classifier` must be in [0, 5). Received: 5"
        )
        assert told(InputError, give(good, np.array([-1, 4]))) == (
            "Targets of the head `classifier` must be in [0, 5). Received: -1"
        )
        assert told(InputError, give(good, np.array([0, 1, 2]))) == (
            "The head `classifier` wants targets of shape (2,) for this input. Received: shape (3,)"
        )
    give(good)()


def test_too_many_vectors():
    model = kerastf.create_model("vit", **TINY, embedding="vector", max_length=6, channels=4)
    assert told(InputError, lambda: model.predict(some(2, 7, 4))) == (
        "The model takes 6 vectors. Cut the input, or build it with max_length=7. Received: 7 vectors"
    )
    assert told(InputError, lambda: model.resized(16)) == (
        "A model of vectors without a grid has no image size. Build one with another max_length."
    )


# --- pictures


def test_rollout_is_that_of_a_loop():
    model = tiny(registers=1)
    images = some(2, 8, 8, 3)
    layers = [array(w).astype("float64") for w in model.attention_weights(images)]
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


# --- learning and data


@pytest.mark.slow
def test_learns_where_the_bright_patch_is():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 2560)
    images = rng.normal(size=(2560, 8, 8, 1)).astype("float32")
    for image, label in zip(images, labels, strict=True):
        image[4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 3.0
    model = kerastf.create_model(
        "vit", **{**TINY, "num_classes": 4, "channels": 1, "dim": 32, "initializer_std": 0.2, "class_token": False}
    )
    model.compile(keras.optimizers.AdamW(3e-3))
    model.fit(images[:2048], labels[:2048], batch_size=32, epochs=6, verbose=0)
    assert model.evaluate(images[2048:], labels[2048:], verbose=0, return_dict=True)["accuracy"] > 0.97


def test_image_batches():
    images = np.arange(20 * 36).reshape(20, 6, 6, 1) % 251 + 1
    images, labels = np.repeat(images, 3, axis=-1).astype("uint8"), np.arange(20)
    batches = data.ImageBatches(images, labels, batch_size=6, shift=2, flip=True, seed=5)
    seen = []
    for number in range(len(batches)):
        x, y = batches[number]
        again, _ = batches[number]
        np.testing.assert_array_equal(x, again)
        assert x.shape == (6, 6, 6, 3) and x.dtype == np.uint8
        for image, label in zip(x, y, strict=True):
            padded = np.pad(images[label], ((2, 2), (2, 2), (0, 0)))
            crops = [padded[i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
            assert any(np.array_equal(image, c) or np.array_equal(image, c[:, ::-1]) for c in crops)
        seen += y.tolist()
    assert len(set(seen)) == 18
    batches.on_epoch_end()
    assert not np.array_equal(batches[0][1], np.array(seen[:6]))
    plain = data.ImageBatches(images, labels, batch_size=5)
    for number in range(4):
        x, y = plain[number]
        np.testing.assert_array_equal(x, images[y])
    assert told(InputError, lambda: data.ImageBatches(images, labels[:3], batch_size=2)) == (
        "One label per image, and at least one batch of them, are needed. Received: 20 images, 3 labels, batch_size=2"
    )


def test_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    parts = {}
    for part in ("train", "t10k"):
        x, y = rng.integers(0, 256, (4, 5, 6)).astype("uint8"), rng.integers(0, 10, 4).astype("uint8")
        with gzip.open(tmp_path / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(b"\0\0\x08\x03" + struct.pack(">3I", *x.shape) + x.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 4) + y.tobytes())
        parts[part] = x, y
    for (x, y), (images, labels) in zip(parts.values(), data.read_images("fashion-mnist", tmp_path), strict=True):
        np.testing.assert_array_equal(images[..., 0], x)
        np.testing.assert_array_equal(labels, y)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 5) + b"1234")
    path = tmp_path / "t10k-labels-idx1-ubyte"
    assert told(FileFormatError, lambda: data.read_images("mnist", tmp_path)) == (
        f"The file says (5,) and holds 4 values. Received: {str(path)!r}"
    )
    path.unlink()
    assert told(FileFormatError, lambda: data.read_images("mnist", tmp_path)) == (
        f"There is no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in the folder. Received: folder={str(tmp_path)!r}"
    )
    assert told(InputError, lambda: data.read_images("mnist")) == (
        "`mnist` is read from files: give the folder. Received: folder=None"
    )
    assert told(InputError, lambda: data.read_images("mnits")) == (
        "`name` must be 'digits', 'cifar10', 'tfds:NAME', the path of a .npz file, or one of 'fashion-mnist', 'mnist', "
        "'kmnist'. Received: name='mnits'"
    )


def test_cifar10_files(tmp_path):
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    binary, python = tmp_path / "cifar-10-batches-bin", tmp_path / "py"
    binary.mkdir()
    python.mkdir()
    wanted = []
    for name in names:
        x, y = rng.integers(0, 256, (2, 3072)).astype("uint8"), rng.integers(0, 10, 2).astype("uint8")
        (binary / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], axis=1).tobytes())
        (python / name).write_bytes(pickle.dumps({b"data": x, b"labels": y.tolist()}, protocol=2))
        wanted.append((x, y))
    for folder in (tmp_path, python):
        (images, labels), (test_images, test_labels) = data.read_images("cifar10", folder)
        assert images.shape == (10, 32, 32, 3) and test_images.shape == (2, 32, 32, 3)
        assert labels.tolist() == [int(n) for _, y in wanted[:5] for n in y]
        assert images[0, 4, 7].tolist() == [int(wanted[0][0][0, plane * 1024 + 4 * 32 + 7]) for plane in range(3)]
        assert test_labels.tolist() == wanted[5][1].tolist()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Bad:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Bad(), protocol=2))
    assert told(FileFormatError, lambda: data.read_images("cifar10", tmp_path)) == (
        "A file of images may hold arrays only. Received: __builtin__.print"
    )


def test_arrays_in_a_file(tmp_path):
    arrays = {
        "x_train": np.zeros((3, 4, 4), "uint8"),
        "y_train": np.zeros((3, 1)),
        "x_test": np.ones((2, 4, 4, 3)),
        "y_test": [1, 2],
    }
    np.savez(tmp_path / "images.npz", **arrays)
    (x, y), (u, v) = data.read_images(str(tmp_path / "images.npz"))
    assert (x.shape, y.shape, u.shape, v.tolist()) == ((3, 4, 4, 1), (3,), (2, 4, 4, 3), [1, 2])


def test_digits():
    pytest.importorskip("sklearn")
    (x, y), (u, v) = data.read_images("digits")
    assert (x.shape, u.shape, x.max()) == ((1438, 8, 8, 1), (359, 8, 8, 1), 16)
    assert np.bincount(np.concatenate([y, v])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
