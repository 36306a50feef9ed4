"""Folders that transformers write, read here, and back again: outputs, names and bits. `make test-peers`."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import convert
from kerastf.convert import tensors

pytestmark = pytest.mark.peers

GPT2 = [
    {"vocab_size": 97, "n_positions": 32, "n_embd": 48, "n_layer": 3, "n_head": 4},
    {"vocab_size": 31, "n_positions": 17, "n_embd": 32, "n_layer": 1, "n_head": 8, "n_inner": 72, "activation_function": "relu"},
    {"vocab_size": 64, "n_positions": 20, "n_embd": 24, "n_layer": 2, "n_head": 2, "activation_function": "gelu",
     "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3},
    {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 1, "activation_function": "silu"},
]  # fmt: skip
BERT = [
    {"vocab_size": 97, "max_position_embeddings": 32, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
     "intermediate_size": 80},
    {"vocab_size": 50, "max_position_embeddings": 24, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 8,
     "intermediate_size": 40, "hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-5, "pad_token_id": 2},
    {"vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
     "intermediate_size": 64, "hidden_act": "gelu_new", "tie_word_embeddings": False},
]  # fmt: skip
VIT = [
    {"image_size": 16, "patch_size": 8, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
     "intermediate_size": 80, "num_labels": 5},
    {"image_size": 12, "patch_size": 4, "num_channels": 1, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
     "intermediate_size": 64, "num_labels": 3, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6},
    {"image_size": [8, 16], "patch_size": [4, 8], "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
     "intermediate_size": 24, "num_labels": 2, "hidden_act": "relu"},
]  # fmt: skip
MARIAN = [
    {"vocab_size": 97, "d_model": 48, "layers": 2, "attention_heads": 4, "ffn_dim": 80, "max_position_embeddings": 32,
     "pad_token_id": 96, "decoder_start_token_id": 96, "scale_embedding": True, "activation_function": "swish"},
    {"vocab_size": 50, "d_model": 32, "layers": 1, "attention_heads": 2, "ffn_dim": 40, "max_position_embeddings": 20,
     "pad_token_id": 1, "decoder_start_token_id": 3, "activation_function": "relu"},
    {"vocab_size": 60, "d_model": 16, "layers": 3, "attention_heads": 1, "ffn_dim": 64, "max_position_embeddings": 24,
     "pad_token_id": 40, "decoder_start_token_id": 40, "share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41},
]  # fmt: skip


def marian_config(sizes):
    sides = {
        f"{side}_{n}": sizes[n] for side in ("encoder", "decoder") for n in ("layers", "attention_heads", "ffn_dim")
    }
    rest = {k: v for k, v in sizes.items() if k not in ("layers", "attention_heads", "ffn_dim")}
    return {"eos_token_id": 0, "forced_eos_token_id": 0, **sides, **rest}


CASES = {
    **{f"gpt2-{i}": ("GPT2LMHeadModel", "GPT2Config", c) for i, c in enumerate(GPT2)},
    "gpt2-body": ("GPT2Model", "GPT2Config", GPT2[0]),
    **{f"{head}-{i}": (f"Bert{head}", "BertConfig", c) for i, c in enumerate(BERT) for head in
       ("ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
        "Model") if not (head == "ForPreTraining" and i == 2)},
    **{f"vit-{i}": ("ViTForImageClassification", "ViTConfig", c) for i, c in enumerate(VIT)},
    **{f"marian-{i}": ("MarianMTModel", "MarianConfig", marian_config(c)) for i, c in enumerate(MARIAN) if i < 2},
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"vocab_size": 97, "max_position_embeddings": 32, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 80}),
    **{f"roberta-{head}": (f"Roberta{head}", "RobertaConfig",
        {"vocab_size": 97, "max_position_embeddings": 34, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 80, "type_vocab_size": 1, "num_labels": 4})
       for head in ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "Model")},
    "deit": ("DeiTForImageClassification", "DeiTConfig", VIT[0]),
}  # fmt: skip
FAMILIES = {
    "GPT2": "gpt",
    "Bert": "bert",
    "ViT": "vit",
    "Mari": "transformer",
    "Dist": "bert",
    "Robe": "bert",
    "DeiT": "vit",
}


def family_of(name):
    return next(f for start, f in FAMILIES.items() if name.startswith(start))


def theirs_of(name, config, sizes, seed=0):
    """Their model with every weight shaken."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(seed)
    if "num_labels" not in sizes and ("Classification" in name):
        sizes = {**sizes, "id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes)).eval()
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):  # sinusoids are no weights
            parameter.add_(0.1 * torch.randn_like(parameter))
        if name == "MarianMTModel":
            model.final_logits_bias.add_(torch.randn_like(model.final_logits_bias))
    return model


def inputs_for(theirs, seed=0):
    """A batch for theirs and the same for ours; rows of text are of different lengths."""
    import torch

    rng, config = np.random.default_rng(seed), theirs.config
    if config.model_type in ("vit", "deit"):
        size = config.image_size if isinstance(config.image_size, list) else [config.image_size] * 2
        images = rng.normal(size=(3, *size, config.num_channels)).astype("float32")
        return {"pixel_values": torch.tensor(images.transpose(0, 3, 1, 2))}, images
    if config.model_type == "gpt2":
        tokens = rng.integers(0, config.vocab_size, (3, 12))
        return {"input_ids": torch.tensor(tokens)}, tokens.astype("int32")
    pad = config.pad_token_id
    tokens = rng.integers(5, min(config.vocab_size, 40), (3, 12))
    keep = np.arange(12) < np.array([12, 7, 9])[:, None]
    tokens = np.where(keep, tokens, pad)
    attention = {"input_ids": torch.tensor(tokens), "attention_mask": torch.tensor(keep.astype("int64"))}
    if config.model_type == "marian":
        target = np.concatenate([np.full((3, 1), config.decoder_start_token_id), rng.integers(5, 40, (3, 8))], axis=1)
        return {**attention, "decoder_input_ids": torch.tensor(target)}, {
            "source": tokens.astype("int32"), "target": target.astype("int32"),
        }  # fmt: skip
    ours = {"tokens": tokens.astype("int32")}
    if config.model_type == "bert":
        segments = rng.integers(0, config.type_vocab_size, tokens.shape)
        attention["token_type_ids"] = torch.tensor(segments)
        ours["segments"] = segments.astype("int32")
    return attention, ours


def outputs_of(theirs, batch):
    import torch

    with torch.no_grad():
        found = theirs(**batch)
    names = (
        "prediction_logits",
        "seq_relationship_logits",
        "start_logits",
        "end_logits",
        "logits",
        "last_hidden_state",
    )
    return [found[n].numpy() for n in names if n in found]


def ours_of(model, batch):
    found = model(ops.convert_to_tensor(batch) if isinstance(batch, np.ndarray) else
                  {k: ops.convert_to_tensor(v) for k, v in batch.items()})  # fmt: skip
    if isinstance(found, dict):
        return [ops.convert_to_numpy(found["masked_tokens"]), ops.convert_to_numpy(found["next_sentence"])[:, ::-1]]
    found = ops.convert_to_numpy(found)
    if model.head.registry_entry.id == "span":
        return [found[..., 0], found[..., 1]]
    return [found]


def gap(theirs, ours, batch):
    """The largest difference where there is text."""
    tokens = batch["tokens"] if isinstance(batch, dict) and "tokens" in batch else None
    worst = 0.0
    for a, b in zip(theirs, ours, strict=True):
        assert a.shape == b.shape
        if tokens is not None and a.shape[:2] == tokens.shape:
            keep = np.arange(12) < np.array([12, 7, 9])[:, None]
            a, b = a[keep], b[keep]
        worst = max(worst, float(np.max(np.abs(a - b))))
    return worst


@pytest.mark.parametrize("case", CASES)
def test_there_and_back(case, tmp_path):
    import transformers

    name, config, sizes = CASES[case]
    theirs = theirs_of(name, config, sizes)
    theirs.save_pretrained(tmp_path / "theirs")
    model = kerastf.create_model(family_of(name), weights=tmp_path / "theirs")
    batch, own = inputs_for(theirs)
    want = outputs_of(theirs, batch)
    found = gap(want, ours_of(model, own), own)
    print(f"\n{case}: largest difference of outputs {found:.1e}")
    assert found < 1e-4

    model.save(tmp_path / "model.keras")  # as a file of ours it is the same
    again = kerastf.load_model(tmp_path / "model.keras")
    assert gap(want, ours_of(again, own), own) < 1e-4

    convert.save(again, tmp_path / "back", type=theirs.config.model_type)
    back, told = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    assert gap(outputs_of(back.eval(), batch), want, own) < (1e-4 if "deit" in case else 1e-6)
    if case == "deit" or case.startswith("roberta"):
        return  # their rows that nobody reads are not kept
    first, second = (tensors.open_folder(tmp_path / f) for f in ("theirs", "back"))
    assert sorted(first) == sorted(second)
    unread = "cls.predictions.bias" if not sizes.get("tie_word_embeddings", True) else None  # there nobody reads it
    for tensor in (t for t in first if t != unread):
        np.testing.assert_array_equal(first.read(tensor), second.read(tensor), strict=True)
    if "Classification" in name and "num_labels" not in sizes:
        assert model.head.labels == ["bad", "so so", "good"]
        assert back.config.id2label == {0: "bad", 1: "so so", 2: "good"}


@pytest.mark.parametrize("how", ["float16", "bfloat16", "sharded"])
@pytest.mark.parametrize("case", ["gpt2-0", "ForMaskedLM-0", "vit-0", "marian-0"])
def test_other_files(case, how, tmp_path):
    import torch

    name, config, sizes = CASES[case]
    theirs = theirs_of(name, config, sizes)
    if how == "sharded":
        total = sum(4 * p.numel() for p in theirs.parameters())
        theirs.save_pretrained(tmp_path, max_shard_size=int(total / 2.5))
        assert len(list(tmp_path.glob("*.safetensors"))) == 3
    else:
        theirs.to(getattr(torch, how)).save_pretrained(tmp_path)
        theirs = type(theirs).from_pretrained(tmp_path, dtype=torch.float32).eval()
    model = kerastf.create_model(family_of(name), weights=tmp_path)
    batch, own = inputs_for(theirs)
    assert gap(outputs_of(theirs, batch), ours_of(model, own), own) < 1e-4


def test_marian_with_two_vocabularies(tmp_path):
    theirs = theirs_of("MarianMTModel", "MarianConfig", marian_config(MARIAN[2]))
    theirs.save_pretrained(tmp_path)
    model = kerastf.create_model("transformer", weights=tmp_path)
    batch, own = inputs_for(theirs)
    assert gap(outputs_of(theirs, batch), ours_of(model, own), own) < 1e-4


def test_translation_is_the_same(tmp_path):
    import torch

    theirs = theirs_of("MarianMTModel", "MarianConfig", marian_config(MARIAN[0]))
    theirs.save_pretrained(tmp_path)
    model = kerastf.create_model("transformer", weights=tmp_path)
    source = np.random.default_rng(0).integers(5, 90, (4, 9))
    want = theirs.generate(
        torch.tensor(source),
        max_length=20,
        num_beams=1,
        do_sample=False,
        bad_words_ids=[[96]],
        forced_eos_token_id=None,
    )
    got = model.generate(source.tolist(), max_length=19)
    for row, other in zip(got, want.tolist(), strict=True):
        ended = [n for n in other[1:] if n != 96]
        assert row == (ended[: ended.index(0)] if 0 in ended else ended)
