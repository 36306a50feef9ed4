"""Transformer layers beside PyTorch's, and the whole model beside Hugging Face's MarianMTModel, with the same weights."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf.blocks.stack import TransformerLayer

pytestmark = pytest.mark.peers


def linear(dense, weight, bias):
    dense.kernel.assign(weight.detach().numpy().T)
    dense.bias.assign(bias.detach().numpy())


def normalise(norm, theirs):
    norm.gain.assign(theirs.weight.detach().numpy())
    norm.shift.assign(theirs.bias.detach().numpy())


def cross(block, theirs):
    """PyTorch keeps query, key and value in one matrix; ours keeps the query apart from key and value."""
    width = theirs.embed_dim
    linear(block.query, theirs.in_proj_weight[:width], theirs.in_proj_bias[:width])
    linear(block.key_value, theirs.in_proj_weight[width:], theirs.in_proj_bias[width:])
    linear(block.output_projection, theirs.out_proj.weight, theirs.out_proj.bias)


def copy_layer(layer, theirs):
    linear(layer.attention.qkv, theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias)
    linear(layer.attention.output_projection, theirs.self_attn.out_proj.weight, theirs.self_attn.out_proj.bias)
    norms = [layer.attention_norm, layer.feedforward_norm]
    if "cross_attention" in layer.parts:
        norms.insert(1, layer.cross_attention_norm)
        cross(layer.cross_attention, theirs.multihead_attn)
    for number, norm in enumerate(norms, 1):
        normalise(norm, getattr(theirs, f"norm{number}"))
    linear(layer.feedforward.expand, theirs.linear1.weight, theirs.linear1.bias)
    linear(layer.feedforward.contract, theirs.linear2.weight, theirs.linear2.bias)


@pytest.mark.parametrize("order", ["pre", "post"])
def test_encoder_and_decoder_layers(order):
    import torch

    torch.manual_seed(1)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 16)).astype("float32"), rng.normal(size=(2, 4, 16)).astype("float32")
    keep = np.array([[True] * 5, [True, True, True, False, False]])
    given = {"d_model": 16, "nhead": 4, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True}
    options = {"feedforward": {"name": "mlp", "mlp_dim": 32, "activation": "relu"}, "norm_order": order}
    attention = {"name": "multi_head", "num_heads": 4}

    theirs = torch.nn.TransformerEncoderLayer(**given, norm_first=order == "pre")
    layer = TransformerLayer(attention, **options)
    layer.build(x.shape)
    copy_layer(layer, theirs)
    want = theirs(torch.tensor(x), src_key_padding_mask=torch.tensor(~keep)).detach().numpy()
    got = ops.convert_to_numpy(layer(x, mask=keep))
    assert np.max(np.abs((got - want)[keep])) < 1e-5

    theirs = torch.nn.TransformerDecoderLayer(**given, norm_first=order == "pre")
    layer = TransformerLayer(attention, **options, causal=True, cross_attention=attention)
    layer.build(y.shape, x.shape)
    copy_layer(layer, theirs)
    want = theirs(
        torch.tensor(y), torch.tensor(x), tgt_mask=torch.triu(torch.full((4, 4), -torch.inf), 1),
        memory_key_padding_mask=torch.tensor(~keep),
    ).detach().numpy()  # fmt: skip
    got = ops.convert_to_numpy(layer(y, x, context_mask=keep))
    gap = np.max(np.abs(got - want))
    print(f"\n{order}-norm decoder layer: {gap:.2e}")
    assert gap < 1e-5


def test_marian():
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(2)
    size = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    theirs = MarianMTModel(
        MarianConfig(
            vocab_size=61, d_model=32, encoder_ffn_dim=48, decoder_ffn_dim=48, **size, activation_function="swish",
            scale_embedding=True, pad_token_id=60, eos_token_id=0, decoder_start_token_id=60, max_position_embeddings=32,
            init_std=0.3,
        )
    ).eval()  # fmt: skip
    model = kerastf.create_model(
        "transformer", vocab_size=61, max_length=32, dim=32, num_layers=2, num_heads=4, mlp_dim=48, activation="silu",
        norm_order="post", position={"name": "sinusoidal", "layout": "concatenated"}, source_pad_id=60, start_id=60,
        end_id=0, head={"name": "language_model", "bias": True},
    )  # fmt: skip
    # Their position table is made from float64 angles on whole pairs of frequencies, ours likewise: no weights there.
    model.embedding.matrix.assign(theirs.model.shared.weight.detach().numpy())
    model.head.shift.assign(theirs.final_logits_bias.detach().numpy()[0])
    for ours, layers in ((model.encoder, theirs.model.encoder.layers), (model.decoder, theirs.model.decoder.layers)):
        for block, other in zip(ours, layers, strict=True):
            q, k, v, o = (getattr(other.self_attn, f"{n}_proj") for n in ("q", "k", "v", "out"))
            linear(block.attention.qkv, torch.cat([q.weight, k.weight, v.weight]), torch.cat([q.bias, k.bias, v.bias]))
            linear(block.attention.output_projection, o.weight, o.bias)
            normalise(block.attention_norm, other.self_attn_layer_norm)
            if "cross_attention" in block.parts:
                q, k, v, o = (getattr(other.encoder_attn, f"{n}_proj") for n in ("q", "k", "v", "out"))
                linear(block.cross_attention.query, q.weight, q.bias)
                linear(block.cross_attention.key_value, torch.cat([k.weight, v.weight]), torch.cat([k.bias, v.bias]))
                linear(block.cross_attention.output_projection, o.weight, o.bias)
                normalise(block.cross_attention_norm, other.encoder_attn_layer_norm)
            linear(block.feedforward.expand, other.fc1.weight, other.fc1.bias)
            linear(block.feedforward.contract, other.fc2.weight, other.fc2.bias)
            normalise(block.feedforward_norm, other.final_layer_norm)
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 60, (3, 7)), rng.integers(1, 60, (3, 5))
    source[1, 4:] = 60
    with torch.no_grad():
        want = theirs(
            input_ids=torch.tensor(source), attention_mask=torch.tensor((source != 60).astype(int)),
            decoder_input_ids=torch.tensor(target),
        ).logits.numpy()  # fmt: skip
    got = ops.convert_to_numpy(model({"source": ops.array(source), "target": ops.array(target)}))
    gap = np.max(np.abs(got - want))
    print(f"\nMarian logits: largest difference {gap:.2e}")
    assert gap < 1e-4
