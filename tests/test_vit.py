"""ViT: published sizes, NumPy written differently, options, stochastic depth, vectors, bad input, learning."""

import math

import keras
import numpy as np
import pytest
from keras import ops
from messages import told
from tensors import numpy
from tiny_vit import TINY, some, tiny

import kerastf
from kerastf import functional
from kerastf.blocks.stack import TransformerLayer
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake

SIZES = {
    "ti16": 5_717_416, "s16": 22_050_664, "b16": 86_567_656, "b32": 88_224_232, "l16": 304_326_632,
    "l32": 306_535_400, "h14": 632_045_800,
}  # fmt: skip


# --- sizes and truth


@pytest.mark.parametrize("preset", SIZES)
def test_published_sizes(preset):
    assert kerastf.count_parameters(f"vit.{preset}") == SIZES[preset]


def test_info_counts_the_presets():
    assert kerastf.info("vit.b16").parameters == {"b16": SIZES["b16"]}


def numpy_vit(model, image):
    """The paper's equations for one image, one head and one token at a time, in float64."""
    weights = {w.path: numpy(w).astype("float64") for w in model.weights}
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
    np.testing.assert_allclose(numpy(model(images)), want, atol=1e-5)


# --- options


def test_the_mean_is_taken_over_the_patches_alone():
    """With a class token and registers, `mean` leaves them out."""
    model = tiny(registers=3, head={"name": "classifier", "pooling": "mean"})
    features = numpy(model.with_head("features")(some(2, 8, 8, 3)))
    assert features.shape == (2, 1 + 3 + 4, 16)
    head = model.head.project
    want = features[:, 4:].mean(1) @ numpy(head.kernel) + numpy(head.bias)
    np.testing.assert_allclose(numpy(model(some(2, 8, 8, 3))), want, atol=1e-5)


def test_registers_stand_after_the_class_token_and_have_no_position():
    model = tiny(registers=2)
    assert tuple(model.position.table.shape) == (5, 16)
    x, mask = model.embed(ops.array(some(1, 8, 8, 3)))
    registers = next(w for w in model.weights if w.path == "registers/table")
    np.testing.assert_allclose(numpy(x)[0, 1:3], numpy(registers), atol=1e-6)
    assert mask is None


def test_preprocessing_is_part_of_the_model(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype("uint8")
    mean, std = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    plain = tiny()
    model = kerastf.create_model("vit", **TINY, preprocessing={"scale": 1 / 255, "mean": mean, "std": std})
    model.set_weights(plain.get_weights())
    want = numpy(plain(((pixels / 255 - mean) / std).astype("float32")))
    np.testing.assert_allclose(numpy(model(pixels)), want, atol=1e-4)
    np.testing.assert_allclose(model.predict(pixels, verbose=0), want, atol=1e-4)
    model.save(tmp_path / "vit.keras")
    again = kerastf.load_model(tmp_path / "vit.keras")
    assert again.options["preprocessing"] == {"scale": 1 / 255, "mean": mean, "std": std}
    np.testing.assert_array_equal(numpy(again(pixels)), numpy(model(pixels)))


def test_contract_with_options():
    options = {"class_token": False, "registers": 2, "drop_path": 0.3, "dropout": 0.2, "position": "relative_2d"}
    check_model("vit", only=["config", "gradients", "seed", "batch", "save"], **options)


# --- stochastic depth


def test_drop_path_keeps_the_mean_and_draws_once_per_row():
    layer = TransformerLayer({"name": "multi_head", "num_heads": 2}, drop_path=0.4)
    x = np.repeat(some(1, 3, 8), 4000, axis=0)
    layer(x[:1])
    shake(layer, 1)
    still = numpy(layer(x[:1], training=False))
    keras.utils.set_random_seed(3)
    moved = numpy(layer(x, training=True))
    skipped = np.all(np.abs(moved - x) < 1e-6, axis=(1, 2))  # both blocks
    assert abs(skipped.mean() - 0.4**2) < 0.03
    first = numpy(layer.attention(layer.attention_norm(x[:1])))
    alone = np.all(np.abs(moved - x - first / 0.6) < 1e-4, axis=(1, 2))  # the attention stayed, the rest did not
    assert abs(alone.mean() - 0.6 * 0.4) < 0.03
    assert np.array_equal(still, numpy(layer(x[:1], training=False)))


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
    np.testing.assert_allclose(numpy(layer(x, training=True)).mean(0), numpy(layer(x[:1]))[0], atol=0.03)


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


# --- vectors


def test_padding_of_vectors_changes_nothing():
    for options in ({}, {"class_token": False, "registers": 2}, {"class_token": False}):
        model = tiny(embedding="vector", max_length=9, channels=4, pad_value=0.0, **options)
        x = some(3, 5, 4)
        padded = np.pad(x, ((0, 0), (0, 4), (0, 0)))
        np.testing.assert_allclose(numpy(model(padded)), numpy(model(x)), atol=1e-5)
        assert np.all(np.isfinite(numpy(model(np.zeros((2, 3, 4), "float32")))))


def test_patch_vectors_equal_the_image():
    images = some(2, 8, 8, 3)
    model = tiny()
    vectors = kerastf.create_model("vit", **TINY | {"embedding": "vector", "channels": 48})
    vectors.set_weights(model.get_weights())
    cut = functional.patches(ops.array(images), (4, 4))
    np.testing.assert_allclose(numpy(vectors(cut)), numpy(model(images)), atol=1e-5)


# --- bad input


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


# --- learning


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
