"""Backbones of KerasHub as models of ours, and back."""

from kerastf.convert.base import Converter, Field
from kerastf.registry import register

ATTENTION = """
layer_{i}/attention/qkv/kernel    {at}{self}/query/kernel {at}{self}/key/kernel {at}{self}/value/kernel | heads_out
layer_{i}/attention/qkv/bias      {at}{self}/query/bias {at}{self}/key/bias {at}{self}/value/bias | heads_bias
layer_{i}/attention/output/kernel {at}{self}/attention_output/kernel | heads_in
layer_{i}/attention/output/bias   {at}{self}/attention_output/bias
"""
LAYER = (
    ATTENTION
    + """
layer_{i}/attention_norm/gain         {at}self_attention_layer_norm/gamma
layer_{i}/attention_norm/shift        {at}self_attention_layer_norm/beta
layer_{i}/feedforward/expand/kernel   {at}feedforward_intermediate_dense/kernel
layer_{i}/feedforward/expand/bias     {at}feedforward_intermediate_dense/bias
layer_{i}/feedforward/contract/kernel {at}feedforward_output_dense/kernel
layer_{i}/feedforward/contract/bias   {at}feedforward_output_dense/bias
layer_{i}/feedforward_norm/gain       {at}feedforward_layer_norm/gamma
layer_{i}/feedforward_norm/shift      {at}feedforward_layer_norm/beta
"""
).replace("{at}", "transformer_layer_{i}/")
SIZES = (
    Field("vocabulary_size", "vocab_size"),
    Field("max_sequence_length", "max_length"),
    Field("hidden_dim", "dim"),
    Field("num_layers", "num_layers"),
    Field("num_heads", "num_heads"),
    Field("intermediate_dim", "mlp_dim"),
    Field("dropout", "dropout", 0.1),
)


class Backbone(Converter):
    """What the backbones share: no head of theirs, and weights by their paths."""

    origin = "keras_hub"
    head_tables = {"features": "", "language_model": ""}  # noqa: RUF012

    def head(self, config, tensors):
        return "features"

    def config(self, model):
        found = super().config(model)
        if found.get("intermediate_dim", 0) is None:  # the default of our feed-forward; theirs has none
            found["intermediate_dim"] = 4 * found["hidden_dim"]
        return found


@register("converter", "keras_hub_gpt2", supports=("keras_hub/GPT2Backbone",))
class GPT2Backbone(Backbone):
    """`keras_hub.models.GPT2Backbone`; its language model is tied, so `head="language_model"` is whole too."""

    family = "gpt"
    model_types = ("GPT2Backbone",)
    fields = SIZES
    ours = {"norm_order": "pre", "position": "learned", "activation": "gelu_tanh", "epsilon": 1e-5}  # noqa: RUF012
    body = """
embedding/matrix token_embedding/embeddings
position/table   position_embedding/embeddings
norm/gain        layer_norm/gamma
norm/shift       layer_norm/beta
"""
    layer = LAYER.replace("{self}", "self_attention")
    heads = {"GPT2Backbone": "features", "GPT2CausalLM": "language_model"}  # noqa: RUF012

    def written(self, options):
        return {"pad_id"}


@register("converter", "keras_hub_bert", supports=("keras_hub/BertBackbone",))
class BertBackbone(Backbone):
    """`keras_hub.models.BertBackbone`, pooler included."""

    family = "bert"
    model_types = ("BertBackbone",)
    fields = (*SIZES, Field("num_segments", "num_segments", 2))
    ours = {  # noqa: RUF012
        "norm_order": "post", "position": "learned", "activation": "gelu_tanh", "epsilon": 1e-12, "pad_id": 0,
    }  # fmt: skip
    body = """
embedding/matrix     token_embedding/embeddings
position/table       position_embedding/embeddings
segment/table        segment_embedding/embeddings
embedding_norm/gain  embeddings_layer_norm/gamma
embedding_norm/shift embeddings_layer_norm/beta
pooler/kernel        pooled_dense/kernel
pooler/bias          pooled_dense/bias
"""
    layer = LAYER.replace("{self}", "self_attention_layer")
    heads = {"BertBackbone": "features"}  # noqa: RUF012


@register("converter", "keras_hub_vit", supports=("keras_hub/ViTBackbone",))
class ViTBackbone(Backbone):
    """`keras_hub.models.ViTBackbone`."""

    family = "vit"
    model_types = ("ViTBackbone",)
    fields = (
        Field("hidden_dim", "dim"),
        Field("num_layers", "num_layers"),
        Field("num_heads", "num_heads"),
        Field("mlp_dim", "mlp_dim"),
        Field("dropout_rate", "dropout", 0.0),
        Field("layer_norm_epsilon", "epsilon", 1e-6),
    )
    needs = {"use_mha_bias": True, "use_mlp_bias": True, "use_class_token": True, "use_patch_bias": True}  # noqa: RUF012
    ours = {"norm_order": "pre", "position": "learned", "activation": "gelu", "class_token": True}  # noqa: RUF012
    body = """
embedding/project/kernel vit_patching_and_embedding/patch_embedding/kernel | patches_last
embedding/project/bias   vit_patching_and_embedding/patch_embedding/bias
class_token/table        vit_patching_and_embedding/class_token | led
position/table           vit_patching_and_embedding/position_embedding/embeddings
norm/gain                vit_encoder/ln/gamma
norm/shift               vit_encoder/ln/beta
"""
    layer = (
        ATTENTION.replace("{self}", "mha")
        + """
layer_{i}/attention_norm/gain         {at}ln_1/gamma
layer_{i}/attention_norm/shift        {at}ln_1/beta
layer_{i}/feedforward/expand/kernel   {at}mlp/dense_1/kernel
layer_{i}/feedforward/expand/bias     {at}mlp/dense_1/bias
layer_{i}/feedforward/contract/kernel {at}mlp/dense_2/kernel
layer_{i}/feedforward/contract/bias   {at}mlp/dense_2/bias
layer_{i}/feedforward_norm/gain       {at}ln_2/gamma
layer_{i}/feedforward_norm/shift      {at}ln_2/beta
"""
    ).replace("{at}", "vit_encoder/transformer_block_{next}/")
    heads = {"ViTBackbone": "features"}  # noqa: RUF012
    head_tables = {"features": ""}  # noqa: RUF012

    def tables(self, options):
        return [(self.body, {}), *((self.layer, {"i": i, "next": i + 1}) for i in range(options["num_layers"]))]

    def read_more(self, config, problems):
        *sides, channels = config["image_shape"]
        return {"image_size": _sides(sides), "patch_size": _sides(config["patch_size"]), "channels": channels}

    def written(self, options):
        return {"image_size", "patch_size", "channels", "num_classes", "preprocessing", "drop_path"}

    def write_more(self, model, problems):
        options = model.options
        image, patch = (list(_pair(options[name])) for name in ("image_size", "patch_size"))
        return {"image_shape": [*image, options["channels"]], "patch_size": patch, "attention_dropout": 0.0}


def _sides(size):
    size = _pair(size)
    return size[0] if size[0] == size[1] else list(size)


def _pair(size):
    return (size, size) if isinstance(size, int) else tuple(size)
