"""ELMo: words in context, from two language models that read in opposite directions.

Shapes: B batch, T time, W characters of a word, C channels of a direction, L layers, V vocabulary.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kerastf import config, text
from kerastf.blocks.bilm import sampling
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.mix import ScalarMix
from kerastf.blocks.recurrent import Recurrent
from kerastf.config import create_block
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf.registry import register, resolve


@register("model", "elmo")
class ELMo(Model):
    """Two language models with one embedding and one softmax: trained to predict words, used for their features.

    `x = embed(tokens)`; forwards `h_t = cell(x_t, h_{t-1})`, backwards `h_t = cell(x_t, h_{t+1})`, L times each, with
    `h + x` for `h` from the second layer on. The language model scores the next word by the last forward layer and the
    previous one by the last backward layer. Any other head is given a mix of all layers,
    `gamma sum_l softmax(s)_l [forward_l; backward_l]`, in which layer 0 is the embedding, twice.

    A sentence stands between a begin and an end, which are positions like others: `kerastf.text.WordCharacterTokenizer`
    puts them there, and `embed` takes them off.

    Args:
        vocab_size: How many words V there are to predict; by default the tokenizer's. Not needed where words are read
            as characters and the head is no language model.
        dim: Width C of the embedding and of each direction's output.
        units: Width of each cell's memory.
        num_layers: How many layers L.
        residual: Whether a layer's input is added to its output, from the second layer on.
        cell_clip: Bound of a cell's memory, for cells that have one; None for none.
        projection_clip: Bound of a cell's output, likewise.
        dropout: Fraction dropped from the input of each layer, and from the language model's features.
        mix_norm: Whether the layers are normalised before they are mixed.
        initializer_std: Deviation of a `token` embedding and of the head's kernel at the start.
        pad_id: Word that stands for padding. By default the tokenizer's; None where nothing is padded. Among
            characters, a word of nothing but 0 is padding.
        cell: Slot, per layer; as wide as `dim`.
        embedding: Slot: `"character_cnn"`, which reads characters, or `"token"`.
        head: Slot: `"bidirectional_language_model"`, `"tagger"`, `"classifier"`, `"features"`, or a plugin's.
        tokenizer: A tokenizer that travels with the model, or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        tokens: Integer tensor: characters `(B, T, W)`, or words `(B, T)`, as the embedding reads them.

    Returns:
        What the head returns: logits `(B, T, 2, V)` for the language model.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("elmo", vocab_size=65, dim=8, units=16, embedding="token")
        >>> tuple(model(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 2, 65)
        >>> tagger = model.with_head("tagger", num_classes=3)
        >>> tuple(tagger(keras.ops.zeros((2, 5), dtype="int32")).shape)
        (2, 5, 3)

    References:
        - [Peters et al., 2018](https://arxiv.org/abs/1802.05365)
    """

    slots = {"cell": True, "embedding": False, "head": False}  # noqa: RUF012
    reads = ("tokens", "characters")
    gives = ("two_directions",)

    def __init__(
        self, vocab_size: int | None = None, *, dim: int = 512, units: int = 4096, num_layers: int = 2,
        residual: bool = True, cell_clip: float | None = 3.0, projection_clip: float | None = 3.0,
        dropout: float = 0.1, mix_norm: bool = False, initializer_std: float = 0.05, pad_id: int | None = None,
        cell: Any = "projected_lstm", embedding: Any = "character_cnn", head: Any = "bidirectional_language_model",
        tokenizer: text.Tokenizer | dict | str | None = None, dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        depth = range(options["num_layers"])

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        directions = [
            [Recurrent(blocks["cell"][i], reverse=reverse, dtype=dtype, name=f"{side}_{i}") for i in depth]
            for side, reverse in (("forwards", False), ("backwards", True))
        ]
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)
        predicts = "two_directions" in head.supports
        mix = None if predicts else ScalarMix(norm=options["mix_norm"], dtype=dtype, name="mix")

        # === Graph ===
        tokens = keras.Input((None, *getattr(embedding, "token_shape", ())), dtype="int32", name="tokens")
        mask = self.kept(tokens, options["pad_id"])  # (B, T)
        x = embedding(tokens)  # (B, T, C)
        sides = []
        for layers in directions:
            h, outputs = x, [x]
            for i, layer in enumerate(layers):
                h = drop(h)
                y = layer(h, mask=mask)  # (B, T, C)
                h = h + y if options["residual"] and i else y
                outputs.append(h)
            sides.append(outputs)
        if predicts:
            x = drop(ops.concatenate([outputs[-1] for outputs in sides], axis=-1))  # (B, T, 2C)
        else:
            x = mix(self.side_by_side(sides))  # (B, T, 2C)
        super().__init__(inputs=tokens, outputs=head(x, mask=mask), plan=plan, head=head, name=options["name"])

        # === Parts that `read` uses ===
        self.embedding = embedding
        self.directions = directions
        self.mix = mix

    @staticmethod
    def kept(tokens, pad_id):
        """Which positions are no padding: boolean `(B, T)`, or None where none can be."""
        if len(tokens.shape) == 3:
            return ops.any(ops.not_equal(tokens, 0), axis=-1)
        return None if pad_id is None else ops.not_equal(tokens, pad_id)

    @staticmethod
    def side_by_side(sides):
        """All layers of both directions: two lists of `(B, T, C)` to `(B, L + 1, T, 2C)`."""
        return ops.concatenate([ops.stack(outputs, axis=1) for outputs in sides], axis=-1)

    # --- configuration

    @classmethod
    def problems(cls, options):
        found = cls.size_problems(options, "vocab_size", "dim", "units", "num_layers")
        try:
            _, (embedding,) = config.expand_slot("embedding", options["embedding"], None)
            _, (head,) = config.expand_slot("head", options["head"], None)
            _, cells = config.expand_slot("cell", options["cell"], max(options["num_layers"], 1))
            predicts = resolve("head", head["name"]).supports
            characters = "characters" in resolve("embedding", embedding["name"]).supports
            known = cls.facts(options)
            widths = [getattr(config.block_from("cell", c, known), "output_size", options["dim"]) for c in cells]
        except (ValueError, LookupError, ImportError):
            return found  # the slots' own checks speak of it
        if options["vocab_size"] is None and characters and "two_directions" not in predicts:
            found = found[1:]
        if "decode" in predicts:
            found.append(
                f"The features have seen the word that `{head['name']}` is to predict. Write "
                f"head='bidirectional_language_model'. Received: head={options['head']!r}"
            )
        if head.get("tied") and "two_directions" not in predicts:
            found.append(
                "A tied head needs features as wide as the embedding; the mix of both directions is twice as wide. "
                f"Write tied=False. Received: head={options['head']!r}"
            )
        if set(widths) != {options["dim"]}:
            found.append(
                f"Each cell must be as wide as the embedding, dim={options['dim']}. Received: outputs "
                f"{', '.join(map(str, widths))} wide"
            )
        return found

    @classmethod
    def facts(cls, options):
        # Dropout is the model's own: a cell or head that took it as well would drop twice.
        shared = {k: v for k, v in options.items() if k != "dropout"}
        try:
            _, (embedding,) = config.expand_slot("embedding", options["embedding"], None)
            _, (head,) = config.expand_slot("head", options["head"], None)
            # Each direction is as wide as the embedding; what other heads read, the mix of both, is twice as wide.
            tied = "tied" in resolve("embedding", embedding["name"]).supports
            tied = tied and "two_directions" in resolve("head", head["name"]).supports
        except (ValueError, LookupError, ImportError):
            tied = False
        return {**shared, "projection": options["dim"], "tied": tied, "pooling": "mean"}

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        spec = options.get("embedding", config.options_of(cls)["embedding"].default)
        if "characters" not in resolve("embedding", config.block_spec("embedding", spec)["name"]).supports:
            return super().example_inputs(options, batch_size, length, rng)
        block = config.block_from("embedding", spec, {"dim": 1, **options})
        shape = (batch_size, length, *block.token_shape)
        return {"tokens": rng.integers(1, block.num_ids, shape).astype("int32")}

    def task_weights(self):
        return [*self.head.weights, *(self.mix.weights if self.mix else [])]

    def freeze(self, frozen=True):
        """Makes the language models keep their weights in training, so that the task learns its mix and head only.

        Args:
            frozen: False to let them learn again.

        Returns:
            The model. Compile it after this.
        """
        for layer in (self.embedding, *self.directions[0], *self.directions[1]):
            layer.trainable = not frozen
        return self

    # --- training

    def compile(self, optimizer="adamw", loss=None, *, metrics=None, **kwargs):
        self._samples = loss is None and metrics is None  # another loss or metric is given all the logits
        super().compile(optimizer, loss, metrics=metrics, **kwargs)

    def train_step(self, *args, **kwargs):
        if not (self._samples and getattr(self.head, "num_samples", None)):
            return super().train_step(*args, **kwargs)
        with sampling():
            return super().train_step(*args, **kwargs)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y, y_pred = self._sampled(y, y_pred)
        return super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y, y_pred = self._sampled(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def _sampled(self, y, y_pred):
        """Features that a sampled training step was given in place of logits become logits of the samples."""
        if getattr(self.head, "num_samples", None) and len(y_pred.shape) == 3:
            return self.head.sample(y, y_pred)
        return y, y_pred

    def check_data(self, x, y):
        if not isinstance(x, np.ndarray):
            return
        rank = len(self.input_shape)
        if rank == 2:
            what, size = "Tokens", self.options["vocab_size"]
        else:
            what, size = "Characters", self.embedding.num_ids
        if x.ndim != rank or (rank == 3 and x.shape[2] != self.input_shape[2]):
            wanted = "(rows, length)" if rank == 2 else f"(rows, length, {self.input_shape[2]})"
            raise InputError(f"The input must be {what.lower()} of shape {wanted}. Received: shape {x.shape}")
        if x.size and not (x.min() >= 0 and x.max() < size):
            wrong = x.min() if x.min() < 0 else x.max()
            raise InputError(f"{what} must be in [0, {size}). Received: {wrong}")
        self.check_targets(y, (*x.shape[:2], self.options["dim"]))

    # --- features

    def read(self, tokens, states=None):
        """All layers, from given states on.

        Args:
            tokens: Integers `(B, T, W)` or `(B, T)`, as the model takes them.
            states: What the last call returned, to go on from there as the original's program does from batch to batch;
                None to start afresh, as `call` does.

        Returns:
            A float tensor `(B, L + 1, T, 2C)`, and the states after the last word, in each direction.
        """
        tokens = ops.convert_to_tensor(tokens, dtype="int32")
        mask = self.kept(tokens, self.options["pad_id"])
        x = self.embedding(tokens)  # (B, T, C)
        sides, after = [], []
        for side, layers in enumerate(self.directions):
            h, outputs, new = x, [x], []
            for i, layer in enumerate(layers):
                y, state = layer.run(h, None if states is None else states[side][i], mask=mask)
                h = h + y if self.options["residual"] and i else y
                outputs.append(h)
                new.append(state)
            sides.append(outputs)
            after.append(new)
        return self.side_by_side(sides), after

    def embed(self, sentences):
        """All layers for sentences, without the positions of their begin and end.

        Args:
            sentences: A list of texts or of lists of words, for a model with a tokenizer; or ready tokens as an array,
                of which every position is returned.

        Returns:
            A NumPy array `(B, L + 1, T, 2C)`, zeros where a sentence has ended. Layer 0 is the embedding, twice.

        Examples:
            >>> import kerastf
            >>> tokenizer = kerastf.text.WordCharacterTokenizer(["a", "rose", "is"])
            >>> small = {"name": "character_cnn", "filters": [[1, 4], [2, 4]]}
            >>> model = kerastf.create_model("elmo", tokenizer=tokenizer, dim=6, units=12, embedding=small)
            >>> model.embed(["a rose", "is a rose"]).shape
            (2, 3, 3, 12)
        """
        tokens, lengths = self.tokens_of(sentences)
        layers, _ = self.read(tokens)
        layers = ops.convert_to_numpy(ops.cast(layers, "float32"))
        if lengths is None:
            mask = self.kept(ops.convert_to_tensor(tokens), self.options["pad_id"])
            return layers if mask is None else layers * ops.convert_to_numpy(mask)[:, None, :, None]
        layers = layers[:, :, 1:-1]
        return layers * (np.arange(layers.shape[2]) < np.array(lengths)[:, None])[:, None, :, None]

    def tokens_of(self, sentences):
        """Sentences as the model reads them, begin and end included, and their numbers of words; arrays as they are."""
        if isinstance(sentences, str):
            raise InputError(f"Sentences are a list, even where there is one. Received: {sentences!r}")
        if not isinstance(sentences, list | tuple) or not any(
            isinstance(s, str) or (isinstance(s, list | tuple) and any(isinstance(w, str) for w in s))
            for s in sentences
        ):
            tokens = np.asarray(sentences)
            if tokens.size == 0:
                raise InputError(f"There is nothing to embed. Received: sentences={sentences!r}")
            self.check_data(tokens, None)
            return tokens, None
        if not isinstance(self.tokenizer, text.WordCharacterTokenizer):
            raise InputError(
                "Sentences need a tokenizer of the kind `word_characters`. Build the model with "
                f"tokenizer=kerastf.text.WordCharacterTokenizer(words). Received: tokenizer={self.tokenizer!r}"
            )
        rank = len(self.input_shape)
        encode = self.tokenizer.encode_characters if rank == 3 else self.tokenizer.encode_words
        return encode(sentences), [len(self.tokenizer.cut(s)) for s in sentences]
