"""Recurrent sequence-to-sequence with attention. Shapes: B batch, S source, T target, C channels, U units."""

from typing import Any

import keras
from keras import ops

from kerastf import config, text
from kerastf.blocks.decoder import AttentionDecoder
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.recurrent import Recurrent
from kerastf.config import create_block
from kerastf.models.encoder_decoder import EncoderDecoder, not_padding
from kerastf.registry import register


class Bridge(keras.layers.Layer):
    """The decoder's first states from the encoder's last: one `tanh` layer per state.

    Args:
        sizes: Widths of the decoder's states.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        states: The encoder's last states, as many as the decoder's, each `(B, U')`.

    Returns:
        A list of tensors `(B, U)`.
    """

    def __init__(self, sizes: list[int], **kwargs):
        super().__init__(**kwargs)
        self.sizes = list(sizes)
        self.layers = [
            keras.layers.Dense(n, activation="tanh", dtype=self.dtype_policy, name=f"state_{i}")
            for i, n in enumerate(self.sizes)
        ]

    def build(self, states_shape):
        for layer, shape in zip(self.layers, states_shape, strict=True):
            layer.build(shape)

    def call(self, states):
        return [layer(state) for layer, state in zip(self.layers, states, strict=True)]

    def compute_output_shape(self, states_shape):
        return [(shape[0], n) for shape, n in zip(states_shape, self.sizes, strict=True)]

    def get_config(self):
        return {**super().get_config(), "sizes": self.sizes}


class RecurrentEncoder(keras.layers.Layer):
    """Stacked cells over the source, in one direction or two.

    Args:
        cells: One cell per layer: names, or dicts with name and options.
        bidirectional: Whether each layer reads in both directions; outputs and states are joined.
        dropout: Fraction dropped between layers, in `[0, 1)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, S, C)`.
        mask: Boolean `(B, S)`, True = keep.
        training: Whether dropout is active.

    Returns:
        The top outputs `(B, S, U)` and the list of last states, layer by layer.
    """

    def __init__(self, cells: list, *, bidirectional: bool = True, dropout: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.specs = cells
        self.bidirectional = bidirectional
        self.dropout = dropout
        directions = ((False, ""), (True, "_reverse")) if bidirectional else ((False, ""),)
        self.runs = [
            [
                Recurrent(spec, reverse=reverse, dtype=self.dtype_policy, name=f"layer_{i}{suffix}")
                for reverse, suffix in directions
            ]
            for i, spec in enumerate(cells)
        ]  # fmt: skip
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")

    def build(self, x_shape):
        for layer in self.runs:
            for run in layer:
                run.build(x_shape)
            x_shape = (*x_shape[:-1], sum(run.output_size for run in layer))

    def call(self, x, mask=None, training=None):
        states = []
        for i, layer in enumerate(self.runs):
            h = self.drop(x, training=training) if i else x
            outputs, last = zip(*(run.run(h, mask=mask, training=training) for run in layer), strict=True)
            x = ops.concatenate(outputs, axis=-1)  # (B, S, U)
            states += [ops.concatenate(pair, axis=-1) for pair in zip(*last, strict=True)]  # (B, U) each
        return x, states

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        states = []
        for layer in self.runs:
            width = sum(run.output_size for run in layer)
            sizes = [keras.tree.flatten(run.cell.state_size) for run in layer]
            states += [(x_shape[0], sum(pair)) for pair in zip(*sizes, strict=True)]
        return (*x_shape[:-1], width), states

    def get_config(self):
        return {
            **super().get_config(),
            "cells": self.specs,
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
        }


@register("model", "seq2seq")
class Seq2Seq(EncoderDecoder):
    """A recurrent encoder reads the source; a recurrent decoder writes the target and looks back by attention.

    `h = encoder(x)`; `c_t = attention(s_{t-1}, h)`; `s_t = cell(s_{t-1}, [y_{t-1}; c_t])`;
    `logits_t = W tanh(V [s_t; c_t])`. With `attention="none"`, `c` is the encoder's last vector at every step.

    Args:
        vocab_size: How many target tokens V there are; by default the tokenizer's.
        source_vocab_size: How many source tokens; by default the source tokenizer's, or `vocab_size`.
        max_length: How many positions are generated at most; any length can be trained on.
        dim: Width C of embeddings and of the decoder's output.
        units: Width U of a cell.
        num_layers: How many layers the encoder has, and the decoder.
        bidirectional: Whether the encoder reads in both directions.
        input_feeding: Whether the context is fed to the decoder's cells. Without, attention to all positions is one
            product, and training is faster.
        teacher_forcing: With which probability a step of training reads the true previous token rather than the
            model's own; 1 always, 0 never. Below 1 it can be changed during training: `model.truth.assign(0.5)`, or
            by the callback `kerastf.training.TeacherForcing`.
        dropout: Fraction dropped from embeddings, between layers and from outputs.
        label_smoothing: Share of the target that the loss spreads over all tokens.
        pad_id: Token that stands for padding in the target; by default the tokenizer's.
        source_pad_id: Likewise in the source; by default the source tokenizer's, or `pad_id`.
        start_id: Token that stands before a target; by default the tokenizer's.
        end_id: Token that ends a target; by default the tokenizer's.
        cell: Slot, per layer.
        attention: Slot: `"bahdanau"`, `"luong"`, `"multi_head"`, `"none"`, ...
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
        >>> model = kerastf.create_model("seq2seq", vocab_size=50, dim=16, units=16)
        >>> tokens = keras.ops.zeros((2, 5), dtype="int32")
        >>> tuple(model({"source": tokens, "target": tokens}).shape)
        (2, 5, 50)

    References:
        - [Sutskever et al., 2014](https://arxiv.org/abs/1409.3215)
        - [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473)
    """

    slots = {"cell": True, "attention": False, "embedding": False, "head": False}  # noqa: RUF012
    needs = {"attention": ("cross", "decode")}  # noqa: RUF012

    def __init__(
        self, vocab_size: int | None = None, *, source_vocab_size: int | None = None, max_length: int = 256,
        dim: int = 256, units: int = 256, num_layers: int = 1, bidirectional: bool = True,
        input_feeding: bool = True, teacher_forcing: float = 1.0, dropout: float = 0.1,
        label_smoothing: float = 0.0, pad_id: int | None = None, source_pad_id: int | None = None,
        start_id: int | None = None, end_id: int | None = None, cell: Any = "gru", attention: Any = "bahdanau",
        embedding: Any = "token", head: Any = "language_model",
        tokenizer: text.Tokenizer | dict | str | None = None,
        source_tokenizer: text.Tokenizer | dict | str | None = None,
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        own = {**blocks["embedding"][0], "vocab_size": options["source_vocab_size"]}
        source_embedding = create_block("embedding", own, name="source_embedding", dtype=dtype)
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        encoder = RecurrentEncoder(
            blocks["cell"], bidirectional=options["bidirectional"], dropout=options["dropout"], dtype=dtype,
            name="encoder",
        )  # fmt: skip
        decoder = AttentionDecoder(
            blocks["cell"], blocks["attention"][0], dim=options["dim"], input_feeding=options["input_feeding"],
            dropout=options["dropout"], dtype=dtype, name="decoder",
        )  # fmt: skip
        bridge = Bridge(decoder.state_sizes[:-1], dtype=dtype, name="bridge")
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        inputs = self.make_inputs()
        source_mask = not_padding(inputs["source"], options["source_pad_id"])  # (B, S)
        context, states = encoder(drop(source_embedding(inputs["source"])), mask=source_mask)  # (B, S, E)
        y = drop(embedding(inputs["target"]))  # (B, T, C)
        own_words = SampledDecoder(decoder, embedding, head, options["teacher_forcing"], dtype=dtype, name="sampled")
        y = own_words(y, context, bridge(states), context_mask=source_mask)  # (B, T, C)
        super().__init__(inputs, head(y), plan=plan, head=head, name=options["name"])

        # === Parts that decoding and pictures use ===
        self.embedding, self.source_embedding = embedding, source_embedding
        self.encoder, self.bridge, self.decoder = encoder, bridge, decoder
        self.truth = own_words.truth

    @classmethod
    def problems(cls, options):
        found = super().problems(options)
        if options["units"] < 1:
            found.append(f"`units` must be at least 1. Received: units={options['units']}")
        if not 0 <= options["teacher_forcing"] <= 1:
            found.append(
                f"`teacher_forcing` is a probability in [0, 1]. Received: teacher_forcing={options['teacher_forcing']}"
            )
        attention = options["attention"]
        if isinstance(attention, dict) and attention.get("dropout"):
            found.append(
                "A decoder that asks its attention step by step drops nothing there: leave the attention's `dropout` "
                f"out, and use the model's. Received: dropout={attention['dropout']}"
            )
        return found

    @classmethod
    def facts(cls, options):
        # Heads per attention: one, unless the slot says otherwise. Dropout is the model's own.
        return {**{k: v for k, v in options.items() if k != "dropout"}, "num_heads": 1}

    def encode(self, source):
        """What the encoder made of the source `(B, S, E)`, the decoder's first states, and the mask or None."""
        mask = self.kept(source, "source_pad_id")
        context, states = self.encoder(self.source_embedding(source), mask=mask)
        return context, self.bridge(states), mask

    def init_state(self, batch_size, max_length, source):
        """The decoding state before the first token; the source is read, and the attention's keys are made, here."""
        context, states, mask = self.encode(source)
        return self.decoder.init_state(context, states, mask)

    def step(self, tokens, state, index):
        """Reads the next target token or several.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them. Not needed: the state knows.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        y, state = self.decoder.step(self.embedding(tokens), state, index)  # (B, T, C)
        return self.head(y[:, -1:])[:, 0], state  # (B, V)

    def attention_weights(self, source, target):
        """The alignment: a list of one tensor `(B, H, T, S)`."""
        source, target = (ops.convert_to_tensor(a, dtype="int32") for a in (source, target))
        context, states, mask = self.encode(source)
        return [self.decoder.alignment(self.embedding(target), context, states, mask)]


class SampledDecoder(keras.layers.Layer):
    """Runs a decoder under teacher forcing: in training, each step reads the truth with a given probability.

    It borrows the embedding and the head, so they are held in a closure: Keras would track them twice.

    Args:
        decoder: The `AttentionDecoder`.
        embedding: The target's embedding.
        head: The head.
        probability: Of the truth.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).
    """

    def __init__(self, decoder, embedding, head, probability, **kwargs):
        super().__init__(**kwargs)
        self.decoder = decoder
        self.borrowed = lambda: (embedding, head)
        self.truth = None
        if probability < 1:
            initializer = keras.initializers.Constant(probability)
            self.truth = self.add_weight(shape=(), initializer=initializer, trainable=False, name="truth")
            self.seed = keras.random.SeedGenerator()

    def build(self, x_shape, context_shape=None, states_shape=None, context_mask_shape=None):
        self.decoder.build(x_shape, context_shape)

    def call(self, x, context, states, context_mask=None, training=None):
        embedding, head = self.borrowed()
        if self.truth is None or not training:
            return self.decoder(x, context, states, context_mask=context_mask, training=training)

        def choose(features):
            logits = head(features[:, None])[:, 0]
            return ops.cast(embedding(ops.argmax(logits, axis=-1)[:, None])[:, 0], features.dtype)  # (B, C)

        coins = keras.random.uniform(ops.shape(x)[:2], seed=self.seed) < self.truth  # (B, T)
        # The first step has nothing of its own to read.
        coins = ops.concatenate([ops.ones_like(coins[:, :1]), coins[:, 1:]], axis=1)
        return self.decoder.sample(x, coins, choose, x[:, 0], context, states, context_mask, training)

    def compute_output_shape(self, x_shape, context_shape=None, states_shape=None, context_mask_shape=None):
        return x_shape
