"""The last layer computes what its head reads, and that alone: as exact as all positions would be, and cheaper."""

import keras
import numpy as np
import pytest
from amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import kerastf
from kerastf import compat, functional
from kerastf.blocks.attention import MultiHead
from kerastf.blocks.stack import TransformerLayer
from kerastf.testing.subjects import shake

RNG = np.random.default_rng(0)
ATTENTIONS = {
    "multi_head": {"num_heads": 4, "num_kv_heads": 2},
    "rotary": {"name": "multi_head", "num_heads": 2, "position": "rotary"},
    "alibi": {"name": "multi_head", "num_heads": 2, "position": "alibi"},
    "cosine": {"num_heads": 2},
    "window": {"num_heads": 2, "window": 3},
    "bahdanau": {},
    "luong": {},
}


def made(attention="multi_head", **options):
    layer = TransformerLayer({"name": attention, **ATTENTIONS[attention]}, **options)
    layer.build((None, None, 16))
    shake(layer, 1)
    return layer


def gradients(layer, run):
    """The gradients of the layer's weights, when the output of `run` is weighted by numbers of its own."""
    weights = ops.convert_to_tensor(np.random.default_rng(3).normal(size=run().shape).astype("float32"))
    return compat.gradients(lambda: ops.sum(run() * weights), layer.trainable_variables)


@pytest.mark.parametrize("rank", [None, 2, 3])
@settings(max_examples=examples(12, 100), deadline=None)
@given(
    st.sampled_from(list(ATTENTIONS)), st.sampled_from(["mlp", "gated", "gated_conv"]), st.sampled_from(["pre", "post"]),
    st.booleans(), st.integers(1, 7), st.integers(1, 4), st.integers(0, 999),
)  # fmt: skip
def test_a_layer_gives_some_positions_as_it_gives_all(rank, attention, feedforward, order, causal, length, count, seed):
    layer = made(attention, feedforward=feedforward, norm_order=order, causal=causal)
    rng = np.random.default_rng(seed)
    x = ops.convert_to_tensor(rng.normal(size=(3, length, 16)).astype("float32"))
    asked = ops.convert_to_tensor(rng.integers(0, length, (3, count)).astype("int32"))
    mask = None
    if rank:
        mask = rng.random((3, length, length)[:rank]) < 0.7
        mask[..., 0] = True  # with `causal`, each query sees some key
        mask = ops.convert_to_tensor(mask)
    want = ops.take_along_axis(layer(x, mask=mask), asked[..., None], axis=1)
    np.testing.assert_allclose(layer(x, mask=mask, positions=asked), want, atol=2e-5)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize("attention", ["multi_head", "alibi", "luong"])
def test_gradients_are_those_of_all_positions(attention, order):
    layer = made(attention, norm_order=order)
    x = ops.convert_to_tensor(RNG.normal(size=(3, 5, 16)).astype("float32"))
    asked = ops.convert_to_tensor(np.array([[4, 0], [2, 2], [1, 3]], "int32"))
    want = gradients(layer, lambda: functional.pick(layer(x, training=False), asked))
    got = gradients(layer, lambda: layer(x, positions=asked, training=False))
    for variable, a, b in zip(layer.trainable_variables, got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4 * (1 + np.abs(b).max()), err_msg=variable.path)


def test_which_layers_compute_few_positions():
    assert made().can_narrow()
    assert not made(feedforward="gated_conv").can_narrow()  # it looks back
    block = {"name": "multi_head", "num_heads": 2}
    layer = TransformerLayer(block, cross_attention=block)
    layer.build((None, None, 16), (None, None, 16))
    assert not layer.can_narrow()
    x, context = (ops.convert_to_tensor(RNG.normal(size=(2, n, 16)).astype("float32")) for n in (5, 3))
    asked = ops.convert_to_tensor(np.array([[4], [2]], "int32"))
    want = functional.pick(layer(x, context), asked)
    np.testing.assert_allclose(layer(x, context, positions=asked), want, atol=2e-5)


def test_positions_with_a_context_are_refused():
    block = MultiHead(num_heads=2)
    x = ops.ones((1, 3, 8))
    with pytest.raises(ValueError, match="`positions` are for self-attention"):
        block(x, x, positions=ops.zeros((1, 1), "int32"))


# --- models


VIT = {"image_size": 16, "patch_size": 4, "dim": 16, "num_layers": 2, "num_heads": 2, "num_classes": 5}
BERT = {"vocab_size": 65, "dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.0}


@pytest.mark.parametrize(
    "options",
    [
        {}, {"norm_order": "post"}, {"registers": 2}, {"class_token": False}, {"position": "relative_2d"},
        {"feedforward": "gated_conv"}, {"head": {"name": "classifier", "pooling": "mean"}},
    ],
)  # fmt: skip
def test_vit_is_its_head_of_all_features(options):
    model = kerastf.create_model("vit", **{**VIT, **options})
    shake(model, 1)
    images = RNG.normal(size=(3, 16, 16, 3)).astype("float32")
    features = model.with_head("features")(images)  # (B, T, C)
    mask = ops.arange(features.shape[1]) >= model.prefix
    mask = ops.broadcast_to(mask, features.shape[:2])
    np.testing.assert_allclose(model(images), model.head(features, mask=mask), atol=1e-5)


@pytest.mark.parametrize("order", ["pre", "post"])
@pytest.mark.parametrize(
    "head", ["pretraining", "masked_language_model", {"name": "classifier", "num_classes": 3},
             {"name": "classifier", "num_classes": 3, "pooling": "first"},
             {"name": "classifier", "num_classes": 3, "pooling": "mean"}],
)  # fmt: skip
def test_bert_is_its_head_of_all_features(head, order):
    model = kerastf.create_model("bert", **BERT, head=head, norm_order=order)
    shake(model, 1)
    inputs = model.example_inputs(model.options, 3, 9, np.random.default_rng(1))
    inputs["tokens"][0, 6:] = 0  # padding
    found = model.body({n: x for n, x in inputs.items() if n != "masked_positions"})
    for positions in [inputs.get("masked_positions"), None] if "masked_positions" in inputs else [None]:
        known = {"pooled": found["pooled"], "positions": positions, "mask": inputs["tokens"] != 0}
        known = {n: x for n, x in known.items() if n == "mask" or n in model.head.supports}
        given = {n: x for n, x in {**inputs, "masked_positions": positions}.items() if x is not None}
        want, got = model.head(found["features"], **known), model(given)
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


def test_bert_without_a_masked_token():
    model = kerastf.create_model("bert", **BERT)
    inputs = model.example_inputs(model.options, 3, 9, np.random.default_rng(1))
    want = model(inputs)["next_sentence"]
    found = model({**inputs, "masked_positions": np.zeros((3, 0), "int32")})
    assert found["masked_tokens"].shape == (3, 0, 65)
    np.testing.assert_allclose(found["next_sentence"], want, atol=1e-6)


def test_it_is_cheaper():
    """Of the last layer, the products of queries, keys and values are left, and attention to all by one position."""
    dim, length = 768, 197
    few, all_ = kerastf.flops("vit.b16"), kerastf.flops("vit.b16", head={"name": "classifier", "pooling": "mean"})
    spared = (length - 1) * (2 * 9 * dim**2 + 4 * length * dim)
    assert abs((all_ - few) / spared - 1) < 0.02
    layers = kerastf.cost("bert.base", head="masked_language_model").layers
    last, other = (sum(row.flops for row in layers if row.path.startswith(f"layer_{i}/")) for i in (11, 10))
    length, count = 512, 1 + 77  # the first, and 15 of 100
    share = (6 * dim * length + (18 * dim + 4 * length) * count) / ((24 * dim + 4 * length) * length)
    assert abs(last / other - share) < 0.01
