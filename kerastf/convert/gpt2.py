"""GPT-2 of Hugging Face as `gpt`."""

from kerastf.convert.base import ACTIVATIONS, Converter, Field
from kerastf.registry import register

BODY = """
embedding/matrix  {body}wte.weight
position/table    {body}wpe.weight
norm/gain         {body}ln_f.weight
norm/shift        {body}ln_f.bias
"""
LAYER = """
layer_{i}/attention_norm/gain         {body}h.{i}.ln_1.weight
layer_{i}/attention_norm/shift        {body}h.{i}.ln_1.bias
layer_{i}/attention/qkv/kernel        {body}h.{i}.attn.c_attn.weight
layer_{i}/attention/qkv/bias          {body}h.{i}.attn.c_attn.bias
layer_{i}/attention/output/kernel     {body}h.{i}.attn.c_proj.weight
layer_{i}/attention/output/bias       {body}h.{i}.attn.c_proj.bias
layer_{i}/feedforward_norm/gain       {body}h.{i}.ln_2.weight
layer_{i}/feedforward_norm/shift      {body}h.{i}.ln_2.bias
layer_{i}/feedforward/expand/kernel   {body}h.{i}.mlp.c_fc.weight
layer_{i}/feedforward/expand/bias     {body}h.{i}.mlp.c_fc.bias
layer_{i}/feedforward/contract/kernel {body}h.{i}.mlp.c_proj.weight
layer_{i}/feedforward/contract/bias   {body}h.{i}.mlp.c_proj.bias
"""


@register("converter", "hf_gpt2", supports=("hf/gpt2",))
class GPT2(Converter):
    """Folders of GPT-2 and its kin, with the language-model head or none.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/gpt2)
    """

    family = "gpt"
    origin = "hf"
    model_types = ("gpt2",)
    prefixes = ("transformer.", "")
    fields = (
        Field("vocab_size", "vocab_size", 50257),
        Field("n_positions", "max_length", 1024),
        Field("n_embd", "dim", 768),
        Field("n_layer", "num_layers", 12),
        Field("n_head", "num_heads", 12),
        Field("n_inner", "mlp_dim", None),
        Field("activation_function", "activation", "gelu_new", ACTIVATIONS),
        Field("layer_norm_epsilon", "epsilon", 1e-5),
        Field("resid_pdrop", "dropout", 0.1),
    )
    also = {"embd_pdrop": "dropout", "attn_pdrop": "dropout"}  # noqa: RUF012
    needs = {  # noqa: RUF012
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        "reorder_and_upcast_attn": False,
    }  # fmt: skip
    ours = {"norm_order": "pre", "position": "learned"}  # noqa: RUF012
    body = BODY
    layer = LAYER
    heads = {"GPT2LMHeadModel": "language_model", "GPT2Model": "features"}  # noqa: RUF012
    head_tables = {"language_model": "head/matrix lm_head.weight", "features": ""}  # noqa: RUF012
    ignored = (r"h\.\d+\.attn\.(masked_)?bias", r"lm_head\.weight")

    def head_of(self, name, config, tensors):
        return {"name": name, "tied": config.get("tie_word_embeddings", True)} if name == "language_model" else name

    def written(self, options):
        return {"pad_id"}

    def write_more(self, model, problems):
        if getattr(model.head, "bias", False):
            problems.append("the head has a bias; it would have to have none")
        return {"tie_word_embeddings": getattr(model.head, "tied", True), "pad_token_id": model.options["pad_id"]}
