"""ViT and DeiT of Hugging Face as `vit`."""

from kerastf.convert.base import ENCODER_FIELDS, Converter, Field, label_settings, labels_of
from kerastf.convert.rules import LED, Rule, without_row
from kerastf.registry import register

BODY = """
embedding/project/kernel {body}embeddings.patch_embeddings.projection.weight | patches
embedding/project/bias   {body}embeddings.patch_embeddings.projection.bias
class_token/table        {body}embeddings.cls_token | led
position/table           {body}embeddings.position_embeddings | led
norm/gain                {body}layernorm.weight
norm/shift               {body}layernorm.bias
"""
LAYER = """
layer_{i}/attention_norm/gain         {at}layernorm_before.weight
layer_{i}/attention_norm/shift        {at}layernorm_before.bias
layer_{i}/attention/qkv/kernel        {at}{qkv}query.weight {at}{qkv}key.weight {at}{qkv}value.weight | turned
layer_{i}/attention/qkv/bias          {at}{qkv}query.bias {at}{qkv}key.bias {at}{qkv}value.bias
layer_{i}/attention/output/kernel     {at}attention.output.dense.weight | turned
layer_{i}/attention/output/bias       {at}attention.output.dense.bias
layer_{i}/feedforward_norm/gain       {at}layernorm_after.weight
layer_{i}/feedforward_norm/shift      {at}layernorm_after.bias
layer_{i}/feedforward/expand/kernel   {at}intermediate.dense.weight | turned
layer_{i}/feedforward/expand/bias     {at}intermediate.dense.bias
layer_{i}/feedforward/contract/kernel {at}output.dense.weight | turned
layer_{i}/feedforward/contract/bias   {at}output.dense.bias
""".replace("{at}", "{body}encoder.layer.{i}.").replace("{qkv}", "attention.attention.")
CLASSES = """
head/project/kernel classifier.weight | turned
head/project/bias   classifier.bias
"""


@register("converter", "hf_vit", supports=("hf/vit",))
class ViT(Converter):
    """Folders of ViT, with the classifier or none; `preprocessor_config.json` becomes the option `preprocessing`.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/vit)
    """

    family = "vit"
    model_types = ("vit",)
    prefixes = ("vit.", "")
    fields = (
        Field("image_size", "image_size", 224),
        Field("patch_size", "patch_size", 16),
        Field("num_channels", "channels", 3),
        *ENCODER_FIELDS,
        Field("hidden_dropout_prob", "dropout", 0.0),
    )
    also = {"attention_probs_dropout_prob": "dropout"}  # noqa: RUF012
    needs = {"qkv_bias": True}  # noqa: RUF012
    ours = {"norm_order": "pre", "position": "learned", "class_token": True}  # noqa: RUF012
    body = BODY
    layer = LAYER
    heads = {"ViTForImageClassification": "classifier", "ViTModel": "features"}  # noqa: RUF012
    head_tables = {"classifier": CLASSES, "features": ""}  # noqa: RUF012
    ignored = (r"pooler\.dense\.(weight|bias)", r"embeddings\.mask_token")

    def head_of(self, name, config, tensors):
        if name != "classifier":
            return name
        labels = labels_of(config)
        given = {"num_classes": tensors.shape("classifier.weight")[0]} if "classifier.weight" in tensors else {}
        return {"name": name, "pooling": "first", **given, **({"labels": labels} if labels else {})}

    def written(self, options):
        return {"num_classes", "preprocessing", "drop_path"}

    def write_more(self, model, problems):
        head = model.head
        if getattr(head, "pooling", "first") != "first":
            problems.append(f"the classifier's pooling is {head.pooling!r}; it would have to be 'first'")
        return label_settings(head.labels, head.num_classes) if hasattr(head, "num_classes") else {}


@register("converter", "hf_deit", supports=("hf/deit",))
class DeiT(ViT):
    """Folders of DeiT. Its distillation token is a register here, with its position added to it.

    Of the two classifiers of a model that was distilled, the mean is taken there; that does not fit, and the body
    alone does: `head="features"`.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/deit)
    """

    model_types = ("deit",)
    prefixes = ("deit.", "")
    ours = {**ViT.ours, "registers": 1}  # noqa: RUF012
    heads = {"DeiTForImageClassification": "classifier", "DeiTModel": "features"}  # noqa: RUF012
    body = BODY.replace("position_embeddings | led", "position_embeddings | positions")
    ignored = (*ViT.ignored, r"(cls|distillation)_classifier\.(weight|bias)")

    def read_more(self, config, problems):
        return {"registers": 1}

    def forms(self, options):
        return {"positions": without_row(1)}

    def rules(self, options, head, prefix=None):
        found = super().rules(options, head, prefix)
        body = found[0].theirs[0].partition("embeddings.")[0]
        names = [f"{body}embeddings.{n}" for n in ("distillation_token", "position_embeddings")]
        return [*found, Rule((names[0],), "registers/table", LED, with_row=(names[1], 1))]
