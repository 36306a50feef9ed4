"""MarianMT of Hugging Face as `transformer`."""

from kerastf.convert.base import ACTIVATIONS, Converter, Field
from kerastf.registry import register

SELF = """
{side}_{i}/attention/qkv/kernel        {self}q_proj.weight {self}k_proj.weight {self}v_proj.weight | turned
{side}_{i}/attention/qkv/bias          {self}q_proj.bias {self}k_proj.bias {self}v_proj.bias
{side}_{i}/attention/output/kernel     {self}out_proj.weight | turned
{side}_{i}/attention/output/bias       {self}out_proj.bias
{side}_{i}/attention_norm/gain         {at}self_attn_layer_norm.weight
{side}_{i}/attention_norm/shift        {at}self_attn_layer_norm.bias
{side}_{i}/feedforward/expand/kernel   {at}fc1.weight | turned
{side}_{i}/feedforward/expand/bias     {at}fc1.bias
{side}_{i}/feedforward/contract/kernel {at}fc2.weight | turned
{side}_{i}/feedforward/contract/bias   {at}fc2.bias
{side}_{i}/feedforward_norm/gain       {at}final_layer_norm.weight
{side}_{i}/feedforward_norm/shift      {at}final_layer_norm.bias
""".replace("{self}", "{at}self_attn.").replace("{at}", "model.{side}.layers.{i}.")
CROSS = """
decoder_{i}/cross_attention/query/kernel     {at}q_proj.weight | turned
decoder_{i}/cross_attention/query/bias       {at}q_proj.bias
decoder_{i}/cross_attention/key_value/kernel {at}k_proj.weight {at}v_proj.weight | turned
decoder_{i}/cross_attention/key_value/bias   {at}k_proj.bias {at}v_proj.bias
decoder_{i}/cross_attention/output/kernel    {at}out_proj.weight | turned
decoder_{i}/cross_attention/output/bias      {at}out_proj.bias
decoder_{i}/cross_attention_norm/gain        model.decoder.layers.{i}.encoder_attn_layer_norm.weight
decoder_{i}/cross_attention_norm/shift       model.decoder.layers.{i}.encoder_attn_layer_norm.bias
""".replace("{at}", "model.decoder.layers.{i}.encoder_attn.")
SAME_ON_BOTH_SIDES = ("layers", "attention_heads", "ffn_dim")


@register("converter", "hf_marian", supports=("hf/marian",))
class Marian(Converter):
    """Folders of MarianMT, such as the OPUS-MT models.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/marian)
    """

    family = "transformer"
    model_types = ("marian",)
    fields = (
        Field("decoder_vocab_size", "vocab_size", None),
        Field("vocab_size", "source_vocab_size", 58101),
        Field("max_position_embeddings", "max_length", 1024),
        Field("d_model", "dim", 1024),
        Field("encoder_layers", "num_layers", 12),
        Field("encoder_attention_heads", "num_heads", 16),
        Field("encoder_ffn_dim", "mlp_dim", 4096),
        Field("activation_function", "activation", "gelu", ACTIVATIONS),
        Field("dropout", "dropout", 0.1),
        Field("scale_embedding", "scale_embeddings", False),
        Field("share_encoder_decoder_embeddings", "shared_embeddings", True),
        Field("pad_token_id", "source_pad_id", 58100),
        Field("decoder_start_token_id", "start_id", 58100),
        Field("eos_token_id", "end_id", 0),
    )
    also = {  # noqa: RUF012
        "decoder_layers": "num_layers", "decoder_attention_heads": "num_heads", "decoder_ffn_dim": "mlp_dim",
        "forced_eos_token_id": "end_id",
    }  # fmt: skip
    needs = {"is_encoder_decoder": True, "tie_word_embeddings": True}  # noqa: RUF012
    ours = {  # noqa: RUF012
        "norm_order": "post", "position": {"name": "sinusoidal", "layout": "concatenated"},
    }  # fmt: skip
    body = "embedding/matrix model.shared.weight"
    heads = {"MarianMTModel": "language_model"}  # noqa: RUF012
    head_tables = {"language_model": "head/shift final_logits_bias | led"}  # noqa: RUF012
    ignored = (r"model\.(en|de)coder\.embed_positions\.weight", r"model\.(en|de)coder\.embed_tokens\.weight",
               r"lm_head\.weight")  # fmt: skip

    def read_more(self, config, problems):
        for name in SAME_ON_BOTH_SIDES:
            sides = [config.get(f"{side}_{name}") for side in ("encoder", "decoder")]
            if sides[0] != sides[1]:
                problems.append(f"encoder_{name} is {sides[0]} and decoder_{name} {sides[1]}; here they are equal")
        size = config.get("decoder_vocab_size")
        return {
            **self.ours, "epsilon": 1e-5, "pad_id": config.get("pad_token_id", 58100),
            **({} if size else {"vocab_size": config.get("vocab_size", 58101)}),
        }  # fmt: skip

    def written(self, options):
        return {"pad_id", "source_tokenizer", "label_smoothing"}

    def write_more(self, model, problems):
        if model.options["pad_id"] != model.options["source_pad_id"]:
            problems.append("pad_id and source_pad_id differ; there they are one")
        if not (model.head.tied and model.head.bias):
            problems.append("the head must be tied and have a bias: head={'name': 'language_model', 'bias': True}")
        return {"bos_token_id": None}

    def head_of(self, name, config, tensors):
        return {"name": name, "tied": True, "bias": True}

    def tables(self, options):
        found = [(self.body, {})]
        if not options["shared_embeddings"]:
            found = [
                ("embedding/matrix model.decoder.embed_tokens.weight", {}),
                ("source_embedding/matrix model.encoder.embed_tokens.weight", {}),
            ]
        for i in range(options["num_layers"]):
            found += [(SELF, {"side": side, "i": i}) for side in ("encoder", "decoder")] + [(CROSS, {"i": i})]
        return found
