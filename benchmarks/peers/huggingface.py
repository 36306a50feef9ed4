"""Programs of Hugging Face transformers, with its attention `sdpa`."""

import torch
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from peers import data
from peers.torch_loop import DEVICE, Training, finish


def create(case, settings):
    """The program of a case."""
    model, loss = MODELS[case["family"]](case["sizes"], case["dropout"])
    return Writing(model, case) if case["kind"] == "generate" else Training(model, case, loss)


class Writing:
    """Greedy generation with a cache; on a GPU in bfloat16, with a static cache, which transformers then compiles."""

    def __init__(self, model, case):
        self.model = model.eval().to(DEVICE)
        self.tokens = torch.from_numpy(data.prompts(case)).long().to(DEVICE)
        self.options = {"max_new_tokens": case["new"], "do_sample": False, "use_cache": True}
        self.options["attention_mask"] = torch.ones_like(self.tokens)
        if case["gpu"]:
            self.model = self.model.to(torch.bfloat16)
            self.options["cache_implementation"] = "static"

    def run(self, steps):
        """So many calls; returns when they are finished."""
        for _ in range(steps):
            with torch.no_grad():
                found = self.model.generate(self.tokens, **self.options)
            wanted = self.tokens.shape[1] + self.options["max_new_tokens"]
            if found.shape[1] != wanted:
                raise ValueError(f"Generation must give {wanted} tokens. Received: {found.shape[1]}")
        finish()


def _gpt(sizes, dropout):
    config = GPT2Config(
        vocab_size=sizes["vocab_size"], n_positions=sizes["max_length"], n_embd=sizes["dim"],
        n_layer=sizes["num_layers"], n_head=sizes["num_heads"], resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=None, eos_token_id=None, attn_implementation="sdpa",
    )  # fmt: skip

    def loss(model, batch):
        logits = model(input_ids=batch["tokens"], use_cache=False).logits  # (B, T, V)
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    return GPT2LMHeadModel(config), loss


def _encoder_sizes(sizes, dropout):
    return {
        "hidden_size": sizes["dim"], "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"], "intermediate_size": 4 * sizes["dim"],
        "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, "attn_implementation": "sdpa",
    }  # fmt: skip


def _bert(sizes, dropout):
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=sizes["vocab_size"], max_position_embeddings=sizes["max_length"], **_encoder_sizes(sizes, dropout)
    )  # fmt: skip

    def loss(model, batch):
        """Scores every position; those that are not masked do not count."""
        labels = torch.full_like(batch["tokens"], -100)
        labels.scatter_(1, batch["positions"], batch["labels"])
        return model(input_ids=batch["tokens"], token_type_ids=batch["segments"], labels=labels).loss

    return BertForMaskedLM(config), loss


def _vit(sizes, dropout):
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=sizes["image_size"], patch_size=sizes["patch_size"], num_labels=sizes["num_classes"],
        **_encoder_sizes(sizes, dropout),
    )  # fmt: skip

    def loss(model, batch):
        pixels = batch["images"].permute(0, 3, 1, 2).contiguous()  # (B, D, H, W)
        return functional.cross_entropy(model(pixel_values=pixels).logits, batch["labels"])

    return ViTForImageClassification(config), loss


def _transformer(sizes, dropout):
    from transformers import MarianConfig, MarianMTModel

    depth, heads, width = sizes["num_layers"], sizes["num_heads"], sizes["mlp_dim"]
    config = MarianConfig(
        vocab_size=sizes["vocab_size"], decoder_vocab_size=sizes["vocab_size"], d_model=sizes["dim"],
        encoder_layers=depth, decoder_layers=depth, encoder_attention_heads=heads, decoder_attention_heads=heads,
        encoder_ffn_dim=width, decoder_ffn_dim=width, dropout=dropout, attention_dropout=dropout,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=2,
        max_position_embeddings=sizes["max_length"], decoder_start_token_id=1, forced_eos_token_id=2,
        attn_implementation="sdpa",
    )  # fmt: skip

    def loss(model, batch):
        logits = model(input_ids=batch["source"], decoder_input_ids=batch["target"], use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    return MarianMTModel(config), loss


MODELS = {"gpt": _gpt, "bert": _bert, "vit": _vit, "transformer": _transformer}
