"""The Transformer encoder-decoder. Shapes: B batch, S source, T target, C channels, V vocabulary."""

from typing import Any, Literal

import keras
from keras import ops

from kerastf import config, registry, text
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.stack import TransformerLayer
from kerastf.config import create_block
from kerastf.models.encoder_decoder import EncoderDecoder, not_padding
from kerastf.registry import register


@register("model", "transformer")
class Transformer(EncoderDecoder):
    """Translates: an encoder reads the source, a decoder writes the target and looks at the encoder's top.

    Encoder, L times: `x = norm(x + attention(x))`, `x = norm(x + feedforward(x))`. Decoder, L times:
    `y = norm(y + causal_attention(y))`, `y = norm(y + attention(y, x))`, `y = norm(y + feedforward(y))`, then
    `logits = y E^T`. Pre-norm moves each norm in front of its block and adds one at the end of each stack.

    Args:
        vocab_size: How many target tokens V there are; by default the tokenizer's.
        source_vocab_size: How many source tokens; by default the source tokenizer's, or `vocab_size`.
        max_length: How many positions are generated at most; with learned positions, how many there are.
        dim: Width C.
        num_layers: How many layers the encoder has, and the decoder.
        num_heads: How many attention heads.
        mlp_dim: Width of the feed-forward's hidden layer; None for the block's default.
        dropout: Fraction dropped from embeddings, attention weights and the outputs of blocks.
        activation: Activation of the feed-forward.
        epsilon: Of the norms.
        norm_order: `"post"` as in the paper, or `"pre"`, which trains more easily when deep.
        shared_embeddings: Whether source and target share one embedding; they have one vocabulary then.
        scale_embeddings: Whether embeddings are multiplied by `sqrt(C)`, as in the paper.
        initializer_std: Deviation of kernels at the start; None for `1 / sqrt(C)`.
        label_smoothing: Share of the target that the loss spreads over all tokens.
        pad_id: Token that stands for padding in the target; by default the tokenizer's.
        source_pad_id: Likewise in the source; by default the source tokenizer's, or `pad_id`.
        start_id: Token that stands before a target; by default the tokenizer's.
        end_id: Token that ends a target; by default the tokenizer's.
        attention: Slot, per layer: self-attention in encoder and decoder.
        cross_attention: Slot, per layer: the decoder's attention to the encoder.
        norm: Slot, per layer.
        feedforward: Slot, per layer.
        position: Slot.
        embedding: Slot.
        head: Slot.
        tokenizer: The target's tokenizer, or None.
        source_tokenizer: The source's tokenizer; None for the target's.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        inputs: `{"source": (B, S), "target": (B, T)}`, integers.

    Returns:
        What the head returns: logits `(B, T, V)`.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("transformer.small", vocab_size=50)
        >>> tokens = keras.ops.zeros((2, 5), dtype="int32")
        >>> tuple(model({"source": tokens, "target": tokens}).shape)
        (2, 5, 50)

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    slots = {  # noqa: RUF012
        "attention": True, "cross_attention": True, "norm": True, "feedforward": True, "position": False,
        "embedding": False, "head": False,
    }  # fmt: skip
    needs = {  # noqa: RUF012
        "attention": ("causal",), "cross_attention": ("cross",), "norm": ("causal",), "feedforward": ("causal",),
    }  # fmt: skip

    def __init__(
        self, vocab_size: int | None = None, *, source_vocab_size: int | None = None, max_length: int = 256,
        dim: int = 512, num_layers: int = 6, num_heads: int = 8, mlp_dim: int | None = None, dropout: float = 0.1,
        activation: str = "relu", epsilon: float = 1e-5, norm_order: Literal["pre", "post"] = "post",
        shared_embeddings: bool = True, scale_embeddings: bool = True, initializer_std: float | None = None,
        label_smoothing: float = 0.1, pad_id: int | None = None, source_pad_id: int | None = None,
        start_id: int | None = None, end_id: int | None = None, attention: Any = "multi_head",
        cross_attention: Any = "multi_head", norm: Any = "layer", feedforward: Any = "mlp",
        position: Any = "sinusoidal", embedding: Any = "token", head: Any = "language_model",
        tokenizer: text.Tokenizer | dict | str | None = None,
        source_tokenizer: text.Tokenizer | dict | str | None = None,
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        depth = range(options["num_layers"])
        pre = options["norm_order"] == "pre"

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        source_embedding = embedding
        if not options["shared_embeddings"]:
            own = {**blocks["embedding"][0], "vocab_size": options["source_vocab_size"]}
            source_embedding = create_block("embedding", own, name="source_embedding", dtype=dtype)
        add_position = "embeddings" in registry.resolve("position", blocks["position"][0]["name"]).supports
        source_position, position = (
            create_block("position", blocks["position"][0], name=n, dtype=dtype) if add_position else None
            for n in ("source_position", "position")
        )
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")

        def layer(i, name, **extra):
            return TransformerLayer(
                blocks["attention"][i], feedforward=blocks["feedforward"][i], norm=blocks["norm"][i],
                norm_order=options["norm_order"], dtype=dtype, name=f"{name}_{i}", **extra,
            )  # fmt: skip

        encoder = [layer(i, "encoder") for i in depth]
        decoder = [layer(i, "decoder", causal=True, cross_attention=blocks["cross_attention"][i]) for i in depth]
        encoder_norm, decoder_norm = (
            create_block("norm", blocks["norm"][-1], name=n, dtype=dtype) if pre else None
            for n in ("encoder_norm", "decoder_norm")
        )
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        inputs = self.make_inputs()
        source_mask = not_padding(inputs["source"], options["source_pad_id"])  # (B, S)
        mask = not_padding(inputs["target"], options["pad_id"], options["start_id"])  # (B, T)
        scale = options["dim"] ** 0.5 if options["scale_embeddings"] else 1.0
        x = source_embedding(inputs["source"]) * scale  # (B, S, C)
        x = drop(source_position(x) if source_position else x)
        for block in encoder:
            x = block(x, mask=source_mask)  # (B, S, C)
        x = encoder_norm(x) if encoder_norm else x
        y = embedding(inputs["target"]) * scale  # (B, T, C)
        y = drop(position(y) if position else y)
        for block in decoder:
            y = block(y, x, mask=mask, context_mask=source_mask)  # (B, T, C)
        y = decoder_norm(y) if decoder_norm else y
        super().__init__(inputs, head(y, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that decoding and pictures use ===
        self.embedding, self.source_embedding = embedding, source_embedding
        self.position, self.source_position = position, source_position
        self.encoder, self.decoder = encoder, decoder
        self.encoder_norm, self.decoder_norm = encoder_norm, decoder_norm
        self.scale = scale
        self.max_length = options["max_length"] if hasattr(position, "max_length") else None

    @classmethod
    def complete(cls, options):
        options = super().complete(options)
        if options["initializer_std"] is None:
            options["initializer_std"] = options["dim"] ** -0.5
        return options

    @classmethod
    def problems(cls, options):
        found = super().problems(options)
        sizes = options["vocab_size"], options["source_vocab_size"]
        if options["shared_embeddings"] and sizes[0] != sizes[1]:
            found.append(
                "Shared embeddings need one vocabulary: give both sides one tokenizer, or shared_embeddings=False. "
                f"Received: vocab_size={sizes[0]}, source_vocab_size={sizes[1]}"
            )
        return found

    def encode(self, source):
        """The encoder's top `(B, S, C)` and the mask of the source `(B, S)`, or None."""
        mask = self.kept(source, "source_pad_id")
        x = self.source_embedding(source) * self.scale
        x = self.source_position(x) if self.source_position else x
        for layer in self.encoder:
            x = layer(x, mask=mask)  # (B, S, C)
        return (self.encoder_norm(x) if self.encoder_norm else x), mask

    def init_state(self, batch_size, max_length, source):
        """The decoding state before the first token; the source is encoded, and its keys and values made, here."""
        context, mask = self.encode(source)
        return [layer.init_state(batch_size, max_length, context=context, context_mask=mask) for layer in self.decoder]

    def step(self, tokens, state, index):
        """Reads the next target token or several.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them, a scalar or one per row.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        y = self.embedding(tokens) * self.scale  # (B, T, C)
        y = self.position(y, index=index) if self.position else y
        states = []
        for layer, old in zip(self.decoder, state, strict=True):
            y, new = layer.step(y, old, index)  # (B, T, C)
            states.append(new)
        y = y[:, -1:]  # (B, 1, C)
        y = self.decoder_norm(y) if self.decoder_norm else y
        return self.head(y)[:, 0], states  # (B, V)

    def attention_weights(self, source, target):
        """The cross-attention of every decoder layer: a list of `(B, H, T, S)`."""
        source, target = (ops.convert_to_tensor(a, dtype="int32") for a in (source, target))
        context, context_mask = self.encode(source)
        mask = self.kept(target)
        y = self.embedding(target) * self.scale
        y = self.position(y) if self.position else y
        weights = []
        for layer in self.decoder:
            weights.append(layer.cross_weights(y, context, mask=mask, context_mask=context_mask))  # (B, H, T, S)
            y = layer(y, context, mask=mask, context_mask=context_mask)
        return weights
