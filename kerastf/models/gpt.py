"""GPT: a causal language model of stacked Transformer layers. Shapes: B batch, T time, C channels, V vocabulary."""

from typing import Any, Literal

import keras
from keras import ops

from kerastf import config, text
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.stack import TransformerLayer
from kerastf.config import create_block
from kerastf.models.base import Model
from kerastf.registry import register


@register("model", "gpt")
class GPT(Model):
    """A decoder-only Transformer that predicts the next token.

    `x = embed(tokens) + position`, then L times `x = x + attention(norm(x))`, `x = x + feedforward(norm(x))`, then
    `logits = norm(x) E^T`

    Args:
        vocab_size: How many tokens V there are; by default the tokenizer's.
        max_length: How many positions there are at most.
        dim: Width C.
        num_layers: How many layers.
        num_heads: How many attention heads.
        mlp_dim: Width of the feed-forward's hidden layer; None for the block's default.
        dropout: Fraction dropped from embeddings, attention weights and the outputs of blocks.
        activation: Activation of the feed-forward.
        epsilon: Of the norms.
        norm_order: `"pre"`: norm, block, add; or `"post"`: block, add, norm.
        initializer_std: Deviation of kernels at the start; kernels that write into the residual stream have it
            divided by `sqrt(2 * num_layers)`.
        pad_id: Token that stands for padding: it is not attended to, and not counted in the loss. By default the
            tokenizer's; None where nothing is padded.
        attention: Slot, per layer.
        norm: Slot, per layer; the last norm is as the last layer's.
        feedforward: Slot, per layer.
        position: Slot.
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
        >>> model = kerastf.create_model("gpt.nano", vocab_size=65, max_length=32)
        >>> tuple(model(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 65)

    References:
        - [Radford et al., 2019](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf)
    """

    slots = {  # noqa: RUF012
        "attention": True, "norm": True, "feedforward": True, "position": False, "embedding": False, "head": False,
    }  # fmt: skip
    needs = {"attention": ("causal",), "norm": ("causal",), "feedforward": ("causal",)}  # noqa: RUF012
    gives = ("causal_only",)

    def __init__(
        self, vocab_size: int | None = None, *, max_length: int = 1024, dim: int = 768, num_layers: int = 12,
        num_heads: int = 12, mlp_dim: int | None = None, dropout: float = 0.1, activation: str = "gelu_tanh",
        epsilon: float = 1e-5, norm_order: Literal["pre", "post"] = "pre", initializer_std: float = 0.02,
        pad_id: int | None = None, attention: Any = "multi_head", norm: Any = "layer", feedforward: Any = "mlp",
        position: Any = "learned", embedding: Any = "token", head: Any = "language_model",
        tokenizer: text.Tokenizer | dict | str | None = None, dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        add_position = "embeddings" in config.registry.resolve("position", blocks["position"][0]["name"]).supports
        position = (
            create_block("position", blocks["position"][0], name="position", dtype=dtype) if add_position else None
        )
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        layers = [
            TransformerLayer(
                blocks["attention"][i], feedforward=blocks["feedforward"][i], norm=blocks["norm"][i],
                norm_order=options["norm_order"], causal=True, dtype=dtype, name=f"layer_{i}",
            )
            for i in range(options["num_layers"])
        ]  # fmt: skip
        last_norm = None
        if options["norm_order"] == "pre":
            last_norm = create_block("norm", blocks["norm"][-1], name="norm", dtype=dtype)
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        tokens = keras.Input((None,), dtype="int32", name="tokens")  # (B, T)
        mask = None if options["pad_id"] is None else ops.not_equal(tokens, options["pad_id"])  # (B, T)
        x = embedding(tokens)  # (B, T, C)
        x = drop(position(x) if position else x)
        for layer in layers:
            x = layer(x, mask=mask)  # (B, T, C)
        x = last_norm(x) if last_norm else x
        super().__init__(inputs=tokens, outputs=head(x, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that decoding and pictures use ===
        self.embedding = embedding
        self.position = position
        self.blocks = layers
        self.last_norm = last_norm
        self.max_length = options["max_length"]

    @classmethod
    def problems(cls, options):
        return cls.size_problems(options, "vocab_size", "max_length", "dim", "num_layers", "num_heads")

    @classmethod
    def facts(cls, options):
        depth = options["num_layers"]
        return {
            **options,
            "output_std": options["initializer_std"] / (2 * depth) ** 0.5,
            "pooling": "last",
        }

    def check_data(self, x, y):
        limit = self.max_length if hasattr(self.position, "max_length") else None
        self.check_tokens(x, y, self.options["vocab_size"], limit)

    def init_state(self, batch_size, max_length):
        """The decoding state before the first token: one per layer."""
        return [layer.init_state(batch_size, max_length) for layer in self.blocks]

    def step(self, tokens, state, index):
        """Reads the next token or a whole prompt.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them, a scalar or one per row.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        x = self.embedding(tokens)  # (B, T, C)
        x = self.position(x, index=index) if self.position else x
        states = []
        for layer, old in zip(self.blocks, state, strict=True):
            x, new = layer.step(x, old, index)  # (B, T, C)
            states.append(new)
        x = x[:, -1:]  # (B, 1, C)
        x = self.last_norm(x) if self.last_norm else x
        return self.head(x)[:, 0], states  # (B, V)

    def attention_weights(self, tokens):
        """The attention weights of every layer: a list of `(B, H, T, T)`."""
        tokens = ops.convert_to_tensor(tokens, dtype="int32")
        mask = None if self.options["pad_id"] is None else ops.not_equal(tokens, self.options["pad_id"])
        x = self.embedding(tokens)
        x = self.position(x) if self.position else x
        weights = []
        for layer in self.blocks:
            weights.append(layer.attention_weights(x, mask=mask))  # (B, H, T, T)
            x = layer(x, mask=mask)
        return weights
