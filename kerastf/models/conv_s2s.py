"""The convolutional encoder-decoder. Shapes: B batch, S source, T target, D embedding, C channels, V vocabulary."""

from typing import Any

import keras
from keras import ops

from kerastf import config, text
from kerastf.blocks.convolution import ROOT_HALF, ConvAttention, GatedConv, dense
from kerastf.blocks.dropout import Dropout
from kerastf.config import create_block
from kerastf.models.encoder_decoder import EncoderDecoder, not_padding
from kerastf.registry import register


@register("model", "conv_s2s")
class ConvS2S(EncoderDecoder):
    """Translates with gated convolutions; every layer of the decoder looks at the source.

    Encoder: `e = embed(source) + position`, `x = W e`, then L times `x = (x + gated_conv(x)) sqrt(1/2)`, then
    `context = (U x + e) sqrt(1/2)`. Decoder: `g = embed(target) + position`, `y = W' g`, then L times
    `h = causal_gated_conv(y)`, `h = (h + A attention(B h + g, context)) sqrt(1/2)`, `y = (y + h) sqrt(1/2)`, then
    `logits = (U' y) E^T`. Keys and values are both the context; in the paper the keys lack the embedding.

    Args:
        vocab_size: How many target tokens V there are; by default the tokenizer's.
        source_vocab_size: How many source tokens; by default the source tokenizer's, or `vocab_size`.
        max_length: How many positions are generated at most; with learned positions, how many there are.
        dim: Width D of the embeddings, and of attention.
        channels: Width C of the convolutions; None for `2 * dim`.
        num_layers: How many layers the encoder has, and the decoder.
        kernel_size: How many positions one convolution sees.
        shared_maps: Whether the decoder's layers share the two maps around their attention, which saves weights.
        dropout: Fraction dropped from embeddings, from the input of each convolution, and before the head.
        label_smoothing: Share of the target that the loss spreads over all tokens.
        pad_id: Token that stands for padding in the target; by default the tokenizer's.
        source_pad_id: Likewise in the source; by default the source tokenizer's, or `pad_id`.
        start_id: Token that stands before a target; by default the tokenizer's.
        end_id: Token that ends a target; by default the tokenizer's.
        attention: Slot, per layer: the decoder's attention to the encoder. Here `"luong"` scores by a plain
            dot product and `"multi_head"` has one head unless told otherwise, as in the paper.
        position: Slot: one that is added to embeddings, `"learned"` by default.
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
        >>> model = kerastf.create_model("conv_s2s", vocab_size=50, dim=8, num_layers=2)
        >>> tokens = keras.ops.zeros((2, 5), dtype="int32")
        >>> tuple(model({"source": tokens, "target": tokens}).shape)
        (2, 5, 50)

    References:
        - [Gehring et al., 2017](https://arxiv.org/abs/1705.03122)
    """

    slots = {"attention": True, "position": False, "embedding": False, "head": False}  # noqa: RUF012
    needs = {"attention": ("cross",), "position": ("embeddings",)}  # noqa: RUF012

    def __init__(
        self, vocab_size: int | None = None, *, source_vocab_size: int | None = None, max_length: int = 256,
        dim: int = 256, channels: int | None = None, num_layers: int = 6, kernel_size: int = 3,
        shared_maps: bool = False, dropout: float = 0.1, label_smoothing: float = 0.1, pad_id: int | None = None,
        source_pad_id: int | None = None, start_id: int | None = None, end_id: int | None = None,
        attention: Any = "luong", position: Any = "learned", embedding: Any = "token",
        head: Any = "language_model", tokenizer: text.Tokenizer | dict | str | None = None,
        source_tokenizer: text.Tokenizer | dict | str | None = None,
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        dim, channels = options["dim"], options["channels"]
        depth = range(options["num_layers"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        own = {**blocks["embedding"][0], "vocab_size": options["source_vocab_size"]}
        source_embedding = create_block("embedding", own, name="source_embedding", dtype=dtype)
        source_position, position = (
            create_block("position", blocks["position"][0], name=n, dtype=dtype)
            for n in ("source_position", "position")
        )
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        encoder_widen, decoder_widen = (
            dense(channels, (None, None, dim), dtype, n) for n in ("encoder_widen", "decoder_widen")
        )
        encoder_narrow, decoder_narrow = (
            dense(dim, (None, None, channels), dtype, n) for n in ("encoder_narrow", "decoder_narrow")
        )
        encoder, decoder = (
            [GatedConv(options["kernel_size"], dropout=options["dropout"], dtype=dtype, name=f"{n}_{i}") for i in depth]
            for n in ("encoder", "decoder")
        )
        attention = [ConvAttention(blocks["attention"][i], dtype=dtype, name=f"attention_{i}") for i in depth]
        if options["shared_maps"]:
            for layer in attention[1:]:
                layer.share(attention[0])
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        inputs = self.make_inputs()
        source_mask = not_padding(inputs["source"], options["source_pad_id"])  # (B, S)
        mask = not_padding(inputs["target"], options["pad_id"], options["start_id"])  # (B, T)
        e = drop(source_position(source_embedding(inputs["source"])))  # (B, S, D)
        x = encoder_widen(e)  # (B, S, C)
        for conv in encoder:
            x = (x + conv(x, mask=source_mask, causal=False)) * ROOT_HALF  # (B, S, C)
        context = (encoder_narrow(x) + e) * ROOT_HALF  # (B, S, D)
        g = drop(position(embedding(inputs["target"])))  # (B, T, D)
        y = decoder_widen(g)  # (B, T, C)
        for conv, attend in zip(decoder, attention, strict=True):
            h = conv(y, mask=mask)  # (B, T, C)
            h = attend(h, g, context, context_mask=source_mask)
            y = (y + h) * ROOT_HALF
        y = drop(decoder_narrow(y))  # (B, T, D)
        super().__init__(inputs, head(y, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that decoding and pictures use ===
        self.embedding, self.source_embedding = embedding, source_embedding
        self.position, self.source_position = position, source_position
        self.encoder_widen, self.encoder, self.encoder_narrow = encoder_widen, encoder, encoder_narrow
        self.decoder_widen, self.decoder, self.decoder_narrow = decoder_widen, decoder, decoder_narrow
        self.attention = attention
        self.max_length = options["max_length"] if hasattr(position, "max_length") else None

    @classmethod
    def complete(cls, options):
        options = super().complete(options)
        if options["channels"] is None:
            options["channels"] = 2 * options["dim"]
        return options

    @classmethod
    def problems(cls, options):
        found = super().problems(options)
        for name in ("channels", "kernel_size"):
            if options[name] < 1:
                found.append(f"`{name}` must be at least 1. Received: {name}={options[name]}")
        return found

    @classmethod
    def facts(cls, options):
        # The paper's attention: one head, a plain dot product. Dropout is the family's own; attention has none.
        return {**options, "dropout": None, "initializer_std": 0.1, "num_heads": 1, "score": "dot"}

    def encode(self, source):
        """What the decoder attends to `(B, S, D)`, and the mask of the source `(B, S)`, or None."""
        mask = self.kept(source, "source_pad_id")
        e = self.source_position(self.source_embedding(source))  # (B, S, D)
        x = self.encoder_widen(e)  # (B, S, C)
        for conv in self.encoder:
            x = (x + conv(x, mask=mask, causal=False)) * ROOT_HALF
        return (self.encoder_narrow(x) + e) * ROOT_HALF, mask

    def init_state(self, batch_size, max_length, source):
        """The decoding state before the first token; the source is encoded here, once."""
        context, mask = self.encode(source)
        return [
            {"conv": conv.init_state(batch_size), "attention": attend.init_state(batch_size, max_length, context, mask)}
            for conv, attend in zip(self.decoder, self.attention, strict=True)
        ]

    def step(self, tokens, state, index):
        """Reads the next target token or several.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them, a scalar or one per row.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        g = self.position(self.embedding(tokens), index=index)  # (B, T, D)
        y = self.decoder_widen(g)  # (B, T, C)
        states = []
        for conv, attend, old in zip(self.decoder, self.attention, state, strict=True):
            h, window = conv.step(y, old["conv"])  # (B, T, C)
            h, seen = attend.step(h, g, old["attention"], index)
            y = (y + h) * ROOT_HALF
            states.append({"conv": window, "attention": seen})
        return self.head(self.decoder_narrow(y[:, -1:]))[:, 0], states  # (B, V)

    def attention_weights(self, source, target):
        """The attention of every decoder layer: a list of `(B, H, T, S)`."""
        source, target = (ops.convert_to_tensor(a, dtype="int32") for a in (source, target))
        context, context_mask = self.encode(source)
        mask = self.kept(target)
        g = self.position(self.embedding(target))
        y = self.decoder_widen(g)
        weights = []
        for conv, attend in zip(self.decoder, self.attention, strict=True):
            h = conv(y, mask=mask)
            weights.append(attend.attention_weights(h, g, context, context_mask=context_mask))  # (B, H, T, S)
            y = (y + attend(h, g, context, context_mask=context_mask)) * ROOT_HALF
        return weights
