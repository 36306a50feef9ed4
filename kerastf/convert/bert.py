"""BERT of Hugging Face and its kin as `bert`: BERT and MiniLM, DistilBERT, RoBERTa."""

from dataclasses import replace

from kerastf.convert.base import ACTIVATIONS, ENCODER_FIELDS, Converter, Field, label_settings, labels_of, whole
from kerastf.convert.rules import rows_from
from kerastf.registry import register

BODY = """
embedding/matrix      {body}embeddings.word_embeddings.weight
position/table        {body}embeddings.position_embeddings.weight | positions
embedding_norm/gain   {body}embeddings.LayerNorm.weight
embedding_norm/shift  {body}embeddings.LayerNorm.bias
"""
SEGMENT = "segment/table {body}embeddings.token_type_embeddings.weight"
POOLER = """
?pooler/kernel {body}pooler.dense.weight | turned
?pooler/bias   {body}pooler.dense.bias
"""
SELF = "{body}encoder.layer.{i}.attention.self."
LAYER = f"""
layer_{{i}}/attention/qkv/kernel        {SELF}query.weight {SELF}key.weight {SELF}value.weight | turned
layer_{{i}}/attention/qkv/bias          {SELF}query.bias {SELF}key.bias {SELF}value.bias
layer_{{i}}/attention/output/kernel     {{body}}encoder.layer.{{i}}.attention.output.dense.weight | turned
layer_{{i}}/attention/output/bias       {{body}}encoder.layer.{{i}}.attention.output.dense.bias
layer_{{i}}/attention_norm/gain         {{body}}encoder.layer.{{i}}.attention.output.LayerNorm.weight
layer_{{i}}/attention_norm/shift        {{body}}encoder.layer.{{i}}.attention.output.LayerNorm.bias
layer_{{i}}/feedforward/expand/kernel   {{body}}encoder.layer.{{i}}.intermediate.dense.weight | turned
layer_{{i}}/feedforward/expand/bias     {{body}}encoder.layer.{{i}}.intermediate.dense.bias
layer_{{i}}/feedforward/contract/kernel {{body}}encoder.layer.{{i}}.output.dense.weight | turned
layer_{{i}}/feedforward/contract/bias   {{body}}encoder.layer.{{i}}.output.dense.bias
layer_{{i}}/feedforward_norm/gain       {{body}}encoder.layer.{{i}}.output.LayerNorm.weight
layer_{{i}}/feedforward_norm/shift      {{body}}encoder.layer.{{i}}.output.LayerNorm.bias
"""
MASKED = """
head/{}transform/kernel cls.predictions.transform.dense.weight | turned
head/{}transform/bias   cls.predictions.transform.dense.bias
head/{}norm/gain        cls.predictions.transform.LayerNorm.weight
head/{}norm/shift       cls.predictions.transform.LayerNorm.bias
head/{}shift            cls.predictions.bias
head/{}matrix           cls.predictions.decoder.weight
"""
# Their class 0 says that the second text follows, ours is 1.
NEXT = """
head/next_sentence/kernel cls.seq_relationship.weight | turned_flipped
head/next_sentence/bias   cls.seq_relationship.bias | flipped
"""
CLASSES = """
head/project/kernel classifier.weight | turned
head/project/bias   classifier.bias
"""
SPAN = """
head/project/kernel qa_outputs.weight | turned
head/project/bias   qa_outputs.bias
"""


class Encoder(Converter):
    """What BERT, DistilBERT and RoBERTa share."""

    family = "bert"
    ours = {"norm_order": "post", "position": "learned"}  # noqa: RUF012
    scorers: tuple[str, str] = (
        "classifier.weight",
        "classifier.weight",
    )  # whose rows are the classes: of texts, of tokens
    # The bias of masked tokens, and its second name, which is the one that counts where the matrix is not tied.
    shifts: tuple[str, str] = ("", "")
    ignored = (r"embeddings\.position_ids", r"(cls\.predictions|lm_head)(\.decoder)?\.(weight|bias)")

    def head_of(self, name, config, tensors):
        if name in ("masked_language_model", "pretraining"):
            return {"name": name, "tied": bool(config.get("tie_word_embeddings", True))}
        if name in ("classifier", "tagger"):
            scorer = self.scorers[name == "tagger"]
            labels = labels_of(config)
            given = {"num_classes": tensors.shape(scorer)[0]} if scorer in tensors else {}
            return {"name": name, **given, **({"labels": labels} if labels else {})}
        return name

    def rules(self, options, head, prefix=None):
        found = super().rules(options, head, prefix)
        spec = options.get("head")
        if not isinstance(spec, dict) or spec.get("tied", True):
            return found
        first, second = self.shifts
        counts = [replace(r, theirs=(second,)) if r.theirs == (first,) else r for r in found]
        return counts if prefix is not None else [*counts, *(r for r in found if r.theirs == (first,))]

    def tables(self, options):
        segment = [(SEGMENT, {})] if options["num_segments"] else []
        return [*super().tables(options), *segment]

    def forms(self, options):
        return {"positions": rows_from(0)}

    def write_more(self, model, problems):
        head = model.head
        found = {"tie_word_embeddings": getattr(head, "tied", True)}
        if hasattr(head, "num_classes"):
            found |= label_settings(head.labels, head.num_classes)
        if type(self) is not DistilBert and not model.options["num_segments"]:
            problems.append("num_segments is 0; it would have to be at least 1")
        if getattr(head, "pooling", "pooler") != "pooler":
            problems.append(f"the classifier's pooling is {head.pooling!r}; it would have to be 'pooler'")
        return found


@register("converter", "hf_bert", supports=("hf/bert",))
class Bert(Encoder):
    """Folders of BERT, MiniLM and other models of the type `bert`, with six heads or none.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/bert)
    """

    model_types = ("bert",)
    prefixes = ("bert.", "")
    fields = (
        Field("vocab_size", "vocab_size", 30522),
        Field("max_position_embeddings", "max_length", 512),
        Field("type_vocab_size", "num_segments", 2),
        *ENCODER_FIELDS,
        Field("hidden_dropout_prob", "dropout", 0.1),
        Field("pad_token_id", "pad_id", 0),
    )
    also = {"attention_probs_dropout_prob": "dropout"}  # noqa: RUF012
    needs = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}  # noqa: RUF012
    body = BODY
    layer = LAYER
    shifts = ("cls.predictions.bias", "cls.predictions.decoder.bias")
    pooler = POOLER
    pooler_heads = ("pretraining", "classifier", "features")
    heads = {  # noqa: RUF012
        "BertForPreTraining": "pretraining", "BertForMaskedLM": "masked_language_model",
        "BertForSequenceClassification": "classifier", "BertForTokenClassification": "tagger",
        "BertForQuestionAnswering": "span", "BertModel": "features",
    }  # fmt: skip
    head_tables = {  # noqa: RUF012
        "pretraining": MASKED.replace("{}", "masked_tokens/") + NEXT,
        "masked_language_model": MASKED.replace("{}", ""),
        "classifier": CLASSES, "tagger": CLASSES, "span": SPAN, "features": "",
    }  # fmt: skip


@register("converter", "hf_roberta", supports=("hf/roberta",))
class Roberta(Encoder):
    """Folders of RoBERTa: positions begin behind two rows that are never read, and there is one segment.

    Texts are padded on the right; padding does not move positions here, as it does not there. The two rows are written
    as zeros. Their classifier's first layer is our pooler.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/roberta)
    """

    model_types = ("roberta",)
    prefixes = ("roberta.", "")
    fields = tuple(
        f for f in Bert.fields if f.theirs not in ("max_position_embeddings", "pad_token_id", "type_vocab_size")
    )
    also = Bert.also
    needs = {**Bert.needs, "pad_token_id": 1}  # noqa: RUF012
    body = BODY
    layer = LAYER
    shifts = ("lm_head.bias", "lm_head.decoder.bias")
    pooler = POOLER
    pooler_heads = ("features",)
    scorers = ("classifier.out_proj.weight", "classifier.weight")
    heads = {  # noqa: RUF012
        "RobertaForMaskedLM": "masked_language_model", "RobertaForSequenceClassification": "classifier",
        "RobertaForTokenClassification": "tagger", "RobertaForQuestionAnswering": "span", "RobertaModel": "features",
    }  # fmt: skip
    head_tables = {  # noqa: RUF012
        "masked_language_model": """
head/transform/kernel lm_head.dense.weight | turned
head/transform/bias   lm_head.dense.bias
head/norm/gain        lm_head.layer_norm.weight
head/norm/shift       lm_head.layer_norm.bias
head/shift            lm_head.bias
head/matrix           lm_head.decoder.weight
""",
        "classifier": """
pooler/kernel       classifier.dense.weight | turned
pooler/bias         classifier.dense.bias
head/project/kernel classifier.out_proj.weight | turned
head/project/bias   classifier.out_proj.bias
""",
        "tagger": CLASSES, "span": SPAN, "features": "",
    }  # fmt: skip

    def forms(self, options):
        return {"positions": rows_from(2)}

    def read_more(self, config, problems):
        return {
            "max_length": whole(config, "max_position_embeddings", 514) - 2,
            "num_segments": whole(config, "type_vocab_size", 1), "pad_id": 1,
        }  # fmt: skip

    def written(self, options):
        return {"max_length", "num_segments", "pad_id"}

    def write_more(self, model, problems):
        options = model.options
        if options["pad_id"] != 1:
            problems.append(f"pad_id is {options['pad_id']}; it would have to be 1")
        return {
            **super().write_more(model, problems), "max_position_embeddings": options["max_length"] + 2,
            "type_vocab_size": options["num_segments"],
        }  # fmt: skip


@register("converter", "hf_distilbert", supports=("hf/distilbert",))
class DistilBert(Encoder):
    """Folders of DistilBERT, which has no segments and no pooler: the body, or with the masked language model.

    References:
        - [The model there](https://huggingface.co/docs/transformers/model_doc/distilbert)
    """

    model_types = ("distilbert",)
    prefixes = ("distilbert.", "")
    fields = (
        Field("vocab_size", "vocab_size", 30522),
        Field("max_position_embeddings", "max_length", 512),
        Field("dim", "dim", 768),
        Field("n_layers", "num_layers", 6),
        Field("n_heads", "num_heads", 12),
        Field("hidden_dim", "mlp_dim", 3072),
        Field("activation", "activation", "gelu", ACTIVATIONS),
        Field("dropout", "dropout", 0.1),
        Field("pad_token_id", "pad_id", 0),
    )
    also = {"attention_dropout": "dropout"}  # noqa: RUF012
    needs = {"sinusoidal_pos_embds": False}  # noqa: RUF012
    ours = {**Encoder.ours, "num_segments": 0}  # noqa: RUF012
    body = BODY
    layer = """
layer_{i}/attention/qkv/kernel {at}attention.q_lin.weight {at}attention.k_lin.weight {at}attention.v_lin.weight | turned
layer_{i}/attention/qkv/bias          {at}attention.q_lin.bias {at}attention.k_lin.bias {at}attention.v_lin.bias
layer_{i}/attention/output/kernel     {at}attention.out_lin.weight | turned
layer_{i}/attention/output/bias       {at}attention.out_lin.bias
layer_{i}/attention_norm/gain         {at}sa_layer_norm.weight
layer_{i}/attention_norm/shift        {at}sa_layer_norm.bias
layer_{i}/feedforward/expand/kernel   {at}ffn.lin1.weight | turned
layer_{i}/feedforward/expand/bias     {at}ffn.lin1.bias
layer_{i}/feedforward/contract/kernel {at}ffn.lin2.weight | turned
layer_{i}/feedforward/contract/bias   {at}ffn.lin2.bias
layer_{i}/feedforward_norm/gain       {at}output_layer_norm.weight
layer_{i}/feedforward_norm/shift      {at}output_layer_norm.bias
""".replace("{at}", "{body}transformer.layer.{i}.")
    heads = {"DistilBertForMaskedLM": "masked_language_model", "DistilBertModel": "features"}  # noqa: RUF012
    head_tables = {  # noqa: RUF012
        "masked_language_model": """
head/transform/kernel vocab_transform.weight | turned
head/transform/bias   vocab_transform.bias
head/norm/gain        vocab_layer_norm.weight
head/norm/shift       vocab_layer_norm.bias
head/shift            vocab_projector.bias
head/matrix           vocab_projector.weight
""",
        "features": "",
    }  # fmt: skip

    def read_more(self, config, problems):
        return {"num_segments": 0, "epsilon": 1e-12}
