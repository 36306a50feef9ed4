"""A causal language model of gated convolutions. Shapes: B batch, T time, D embedding, C channels, V vocabulary."""

from typing import Any

import keras
from keras import ops

from kerastf import config, text
from kerastf.blocks.convolution import ROOT_HALF, GatedConv, dense
from kerastf.blocks.dropout import Dropout
from kerastf.config import create_block
from kerastf.models.base import Model
from kerastf.registry import register


@register("model", "conv_lm")
class ConvLM(Model):
    """Predicts the next token from the last `num_layers * (kernel_size - 1) + 1` tokens, without attention.

    `x = W embed(tokens)`, then L times `x = (x + gated_conv(x)) sqrt(1/2)`, then `logits = (U x) E^T`

    Args:
        vocab_size: How many tokens V there are; by default the tokenizer's.
        max_length: Length at which `generate` stops, if it is not told otherwise; with learned positions, how many
            there are.
        dim: Width D of the embedding.
        channels: Width C of the convolutions; None for `2 * dim`.
        num_layers: How many layers.
        kernel_size: How many positions one convolution sees.
        dropout: Fraction dropped from embeddings, from the input of each convolution, and before the head.
        pad_id: Token that stands for padding: convolutions read zeros there, and it is not counted in the loss. By
            default the tokenizer's; None where nothing is padded.
        position: Slot: `"none"` by default, since a convolution knows the order.
        embedding: Slot.
        head: Slot: `"language_model"`, `"classifier"`, `"tagger"`, `"features"`, or a plugin's.
        tokenizer: A tokenizer that travels with the model, or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`.

    Returns:
        What the head returns: logits `(B, T, V)` for the language model.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("conv_lm", vocab_size=65, dim=8, num_layers=2)
        >>> tuple(model(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 65)

    References:
        - [Dauphin et al., 2016](https://arxiv.org/abs/1612.08083)
    """

    slots = {"position": False, "embedding": False, "head": False}  # noqa: RUF012
    needs = {"position": ("embeddings",)}  # noqa: RUF012

    def __init__(
        self, vocab_size: int | None = None, *, max_length: int = 256, dim: int = 256, channels: int | None = None,
        num_layers: int = 8, kernel_size: int = 4, dropout: float = 0.1, pad_id: int | None = None,
        position: Any = "none", embedding: Any = "token", head: Any = "language_model",
        tokenizer: text.Tokenizer | dict | str | None = None, dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        dim, channels = options["dim"], options["channels"]

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        position = create_block("position", blocks["position"][0], name="position", dtype=dtype)
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        widen = dense(channels, (None, None, dim), dtype, "widen")
        layers = [
            GatedConv(options["kernel_size"], dropout=options["dropout"], dtype=dtype, name=f"layer_{i}")
            for i in range(options["num_layers"])
        ]
        narrow = dense(dim, (None, None, channels), dtype, "narrow")
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        tokens = keras.Input((None,), dtype="int32", name="tokens")  # (B, T)
        mask = None if options["pad_id"] is None else ops.not_equal(tokens, options["pad_id"])  # (B, T)
        x = widen(drop(position(embedding(tokens))))  # (B, T, C)
        for layer in layers:
            x = (x + layer(x, mask=mask)) * ROOT_HALF  # (B, T, C)
        x = drop(narrow(x))  # (B, T, D)
        super().__init__(inputs=tokens, outputs=head(x, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that decoding uses ===
        self.embedding, self.position = embedding, position
        self.widen, self.blocks, self.narrow = widen, layers, narrow
        self.max_length = options["max_length"] if hasattr(position, "max_length") else None

    @classmethod
    def complete(cls, options):
        options = super().complete(options)
        if options["channels"] is None:
            options["channels"] = 2 * options["dim"]
        return options

    @classmethod
    def problems(cls, options):
        sizes = "vocab_size", "max_length", "dim", "channels", "num_layers", "kernel_size"
        return cls.size_problems(options, *sizes)

    @classmethod
    def facts(cls, options):
        # Dropout is the layers' own: a head that took it as well would drop twice.
        return {**options, "dropout": None, "initializer_std": 0.1, "pooling": "last"}

    def check_data(self, x, y):
        self.check_tokens(x, y, self.options["vocab_size"], self.max_length)

    def init_state(self, batch_size, max_length=None):
        """The decoding state before the first token: the last inputs of each layer. It does not grow."""
        return [layer.init_state(batch_size) for layer in self.blocks]

    def step(self, tokens, state, index):
        """Reads the next token or a whole prompt.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them, a scalar or one per row.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        x = self.widen(self.position(self.embedding(tokens), index=index))  # (B, T, C)
        states = []
        for layer, old in zip(self.blocks, state, strict=True):
            h, new = layer.step(x, old)
            x = (x + h) * ROOT_HALF  # (B, T, C)
            states.append(new)
        return self.head(self.narrow(x[:, -1:]))[:, 0], states  # (B, V)
