"""Recurrent networks: stacked cells over time, in one direction or two.

Shapes: B batch, T time, C channels, U units, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from kerastf import config, text
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.recurrent import RecurrentLayer
from kerastf.config import create_block
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf.registry import register, resolve


@register("model", "rnn")
class RNN(Model):
    """A recurrent network that predicts the next token, tags every token, or classifies the sequence.

    `x = embed(tokens)`, then L times `h_t = cell(x_t, h_{t-1})`, `x = norm(h)`, then `logits = W x + b`

    Dropout stands where nothing is recurrent: after the embedding and after each layer.

    Args:
        vocab_size: How many tokens V there are; by default the tokenizer's.
        max_length: Length at which `generate` stops, if it is not told otherwise. The model itself takes any length.
        dim: Width C of the embedding.
        units: Width U of each cell's state.
        num_layers: How many layers.
        bidirectional: Whether each layer also reads backwards; features are then `2 U` wide, and there is no
            language model.
        residual: Whether a layer's input is added to its output where both are equally wide.
        dropout: Fraction dropped from the embedding and from each layer's output.
        initializer_std: Deviation of the embedding and of the head's kernel at the start.
        pad_id: Token that stands for padding: it leaves the state as it is, and is not counted in the loss. By
            default the tokenizer's; None where nothing is padded.
        cell: Slot, per layer: `"simple"`, `"lstm"`, `"gru"`, or a plugin's.
        norm: Slot, per layer, on the layer's output; `"none"` by default.
        embedding: Slot.
        head: Slot: `"language_model"`, `"classifier"`, `"tagger"`, `"features"`, or a plugin's. The language model
            has a matrix of its own; `tied` works where features and embedding are equally wide. The classifier
            takes the last real position, or the mean where there are two directions.
        tokenizer: A tokenizer that travels with the model, or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`.

    Returns:
        What the head returns: logits `(B, T, V)` for the language model.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("rnn", vocab_size=65, dim=8, units=8, cell="gru")
        >>> tuple(model(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 65)

    References:
        - [Elman, 1990](https://doi.org/10.1207/s15516709cog1402_1)
        - [Zaremba et al., 2014](https://arxiv.org/abs/1409.2329) for the dropout and the `ptb` presets
        - [Schuster and Paliwal, 1997](https://doi.org/10.1109/78.650093) for two directions
    """

    slots = {"cell": True, "norm": True, "embedding": False, "head": False}  # noqa: RUF012
    needs = {"norm": ("causal",)}  # noqa: RUF012

    def __init__(
        self, vocab_size: int | None = None, *, max_length: int = 256, dim: int = 256, units: int = 256,
        num_layers: int = 2, bidirectional: bool = False, residual: bool = False, dropout: float = 0.0,
        initializer_std: float = 0.05, pad_id: int | None = None, cell: Any = "lstm", norm: Any = "none",
        embedding: Any = "token", head: Any = "language_model",
        tokenizer: text.Tokenizer | dict | str | None = None, dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        layers = [
            RecurrentLayer(
                blocks["cell"][i], norm=blocks["norm"][i], bidirectional=options["bidirectional"],
                residual=options["residual"], dropout=options["dropout"], dtype=dtype, name=f"layer_{i}",
            )
            for i in range(options["num_layers"])
        ]  # fmt: skip
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        tokens = keras.Input((None,), dtype="int32", name="tokens")  # (B, T)
        mask = None if options["pad_id"] is None else ops.not_equal(tokens, options["pad_id"])  # (B, T)
        x = drop(embedding(tokens))  # (B, T, C)
        for layer in layers:
            x = layer(x, mask=mask)  # (B, T, U)
        super().__init__(inputs=tokens, outputs=head(x, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that decoding uses ===
        self.embedding = embedding
        self.blocks = layers

    @classmethod
    def problems(cls, options):
        found = cls.size_problems(options, "vocab_size", "max_length", "dim", "units", "num_layers")
        return found or cls.head_problems(options)

    @classmethod
    def head_problems(cls, options):
        """What the head cannot do with these features."""
        try:
            _, (spec,) = config.expand_slot("head", options["head"], None)
            _, cells = config.expand_slot("cell", options["cell"], options["num_layers"])
            head = resolve("head", spec["name"])
            last = config.block_from("cell", cells[-1], {"units": options["units"]})
        except (ValueError, LookupError, ImportError):
            return []  # the slots' own checks speak of it
        if options["bidirectional"] and "decode" in head.supports:
            return [
                f"A bidirectional model has seen the token that `{spec['name']}` is to predict. Write "
                f"bidirectional=False, or another head, such as head='tagger'. Received: bidirectional=True, "
                f"head={options['head']!r}"
            ]
        width = getattr(last, "output_size", options["units"])
        if spec.get("tied") and width != options["dim"]:
            return [
                f"A tied head needs features as wide as the embedding. Write dim={width}, or tied=False. "
                f"Received: tied=True, dim={options['dim']}, and features {width} wide"
            ]
        return []

    @classmethod
    def facts(cls, options):
        # Dropout is the layers' own: a cell or head that took it as well would drop twice.
        shared = {k: v for k, v in options.items() if k != "dropout"}
        return {**shared, "tied": False, "pooling": "mean" if options["bidirectional"] else "last"}

    def check_data(self, x, y):
        self.check_tokens(x, y, self.options["vocab_size"])

    def init_state(self, batch_size, max_length=None):
        """The states before the first token: a list for each layer. They do not grow with `max_length`."""
        return [layer.init_state(batch_size, max_length) for layer in self.blocks]

    def step(self, tokens, state, index=None):
        """Reads the next token or a whole prompt.

        Args:
            tokens: Integers `(B, T)`, the next T positions.
            state: What `init_state` or the last `step` returned.
            index: Position of the first of them. Not used: the state knows.

        Returns:
            The logits `(B, V)` of the token after the last, and the next state.
        """
        x, _, state = self._read(tokens, state)
        return self.head(x[:, -1:])[:, 0], state  # (B, V)

    def stream(self, tokens, state=None):
        """Reads a piece of a sequence that may be endless; the state carries what came before.

        Args:
            tokens: Integers `(B, T)`, the next piece.
            state: What the last call returned; None at the start.

        Returns:
            What the model would return for these positions of the whole sequence, and the next state. A classifier
            answers for all that came so far.

        Raises:
            InputError: The model needs the whole sequence: it reads backwards, or averages over positions.
        """
        if self.options["bidirectional"]:
            raise InputError("A bidirectional model needs the whole sequence. Received: bidirectional=True")
        if getattr(self.head, "pooling", "last") != "last":
            raise InputError(
                f"A head that pools over positions needs the whole sequence; pooling='last' does not. "
                f"Received: pooling={self.head.pooling!r}"
            )
        tokens = ops.convert_to_tensor(tokens, dtype="int32")
        state = self.init_state(tokens.shape[0]) if state is None else state
        x, mask, state = self._read(tokens, state)
        return self.head(x, mask=mask), state

    def _read(self, tokens, state):
        """Features `(B, T, U)`, mask and states after T more tokens."""
        pad = self.options["pad_id"]
        mask = None if pad is None else ops.not_equal(tokens, pad)  # (B, T)
        x = self.embedding(tokens)  # (B, T, C)
        states = []
        for layer, old in zip(self.blocks, state, strict=True):
            x, new = layer.step(x, old, mask=mask)  # (B, T, U)
            states.append(new)
        return x, mask, states
