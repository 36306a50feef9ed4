"""BERT: an encoder that sees both sides of every token. Shapes: B batch, T time, M masked, C channels, V vocabulary."""

import functools
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from kerastf import config, functional, text
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.embedding import Segment
from kerastf.blocks.masked import Asked
from kerastf.blocks.stack import TransformerLayer
from kerastf.config import create_block
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf.registry import register

MASK = "[MASK]"  # how a text says that a token is hidden


@register("model", "bert")
class BERT(Model):
    """An encoder of Transformer layers, pre-trained on masked tokens and next sentences.

    `x = norm(embed(tokens) + segment + position)`, then L times `x = norm(x + attention(x))`,
    `x = norm(x + feedforward(x))`. The pooler makes one vector of the first position: `pooled = tanh(W x_0 + b)`.

    Args:
        vocab_size: How many tokens V there are; by default the tokenizer's.
        max_length: How many positions there are at most.
        num_segments: How many segments there are; 0 for a model without segments.
        dim: Width C.
        num_layers: How many layers.
        num_heads: How many attention heads.
        mlp_dim: Width of the feed-forward's hidden layer; None for the block's default.
        dropout: Fraction dropped from embeddings, attention weights and the outputs of blocks.
        activation: Activation of the feed-forward, and of the head where it has one.
        epsilon: Of the norms.
        norm_order: `"post"`: block, add, norm, as in BERT; or `"pre"`: norm, block, add, and one more norm at the end.
        initializer_std: Deviation of kernels at the start.
        pad_id: Token that stands for padding: it is not attended to. By default the tokenizer's, and 0 where there is
            no tokenizer, as in BERT's own vocabulary.
        attention: Slot, per layer.
        norm: Slot, per layer; the norm of the embeddings is as the first layer's.
        feedforward: Slot, per layer.
        position: Slot.
        embedding: Slot.
        head: Slot: `"pretraining"`, `"masked_language_model"`, `"classifier"`, `"tagger"`, `"span"`, `"features"`, or a
            plugin's. The classifier reads the pooler.
        tokenizer: A tokenizer that travels with the model, or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        inputs: Tokens `(B, T)`, or a dict: `tokens`; `segments` `(B, T)`, all 0 where they are missing; and, for heads
            that score masked tokens, `masked_positions` `(B, M)`, all positions where they are missing.

    Returns:
        What the head returns.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("bert", vocab_size=65, dim=16, num_layers=2, num_heads=2, head="features")
        >>> tuple(model(keras.ops.ones((2, 5), dtype="int32")).shape)
        (2, 5, 16)

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805)
        - [Turc et al., 2019](https://arxiv.org/abs/1908.08962) for the sizes below `base`
    """

    slots = {  # noqa: RUF012
        "attention": True, "norm": True, "feedforward": True, "position": False, "embedding": False, "head": False,
    }  # fmt: skip

    def __init__(
        self, vocab_size: int | None = None, *, max_length: int = 512, num_segments: int = 2, dim: int = 768,
        num_layers: int = 12, num_heads: int = 12, mlp_dim: int | None = None, dropout: float = 0.1,
        activation: str = "gelu", epsilon: float = 1e-12, norm_order: Literal["pre", "post"] = "post",
        initializer_std: float = 0.02, pad_id: int | None = None, attention: Any = "multi_head", norm: Any = "layer",
        feedforward: Any = "mlp", position: Any = "learned", embedding: Any = "token", head: Any = "pretraining",
        tokenizer: text.Tokenizer | dict | str | None = None, dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        std = options["initializer_std"]

        # === Layers ===
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        segment = None
        if options["num_segments"]:
            segment = Segment(options["num_segments"], initializer_std=std, dtype=dtype, name="segment")
        add_position = "embeddings" in config.registry.resolve("position", blocks["position"][0]["name"]).supports
        position = (
            create_block("position", blocks["position"][0], name="position", dtype=dtype) if add_position else None
        )
        embedding_norm = create_block("norm", blocks["norm"][0], name="embedding_norm", dtype=dtype)
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        layers = [
            TransformerLayer(
                blocks["attention"][i], feedforward=blocks["feedforward"][i], norm=blocks["norm"][i],
                norm_order=options["norm_order"], causal=False, dtype=dtype, name=f"layer_{i}",
            )
            for i in range(options["num_layers"])
        ]  # fmt: skip
        last_norm = None
        if options["norm_order"] == "pre":
            last_norm = create_block("norm", blocks["norm"][-1], name="norm", dtype=dtype)
        pooler = keras.layers.Dense(
            options["dim"], activation="tanh", kernel_initializer=keras.initializers.RandomNormal(stddev=std),
            dtype=dtype, name="pooler",
        )  # fmt: skip
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)
        if getattr(head, "tied", False):
            head.tie(embedding)

        # === Graph ===
        inputs = {"tokens": keras.Input((None,), dtype="int32", name="tokens")}  # (B, T)
        if segment:
            inputs["segments"] = keras.Input((None,), dtype="int32", name="segments", optional=True)  # (B, T)
        mask = None if options["pad_id"] is None else ops.not_equal(inputs["tokens"], options["pad_id"])  # (B, T)
        x = embedding(inputs["tokens"])  # (B, T, C)
        x = segment(x, segments=inputs["segments"]) if segment else x
        x = drop(embedding_norm(position(x) if position else x))
        for layer in layers[:-1]:
            x = layer(x, mask=mask)  # (B, T, C)

        def features(positions=None):
            """Those of all positions `(B, T, C)` or of some `(B, M, C)`, and what the pooler makes of the first."""
            y = layers[-1](x, mask=mask, positions=positions)
            y = last_norm(y) if last_norm else y
            return {"features": y, "pooled": pooler(y[:, 0])}  # (B, C)

        body = functools.cache(lambda read=dict(inputs): keras.Model(read, features(), name="body"))
        reads = getattr(head, "reads", "all") if layers[-1].can_narrow() else "all"
        known, asked = {}, None
        if "positions" in head.supports:
            known["positions"] = inputs["masked_positions"] = keras.Input(
                (None,), dtype="int32", name="masked_positions", optional=True
            )  # (B, M)
            if reads == "positions":
                asked, known["positions"] = Asked(dtype=dtype, name="asked")(
                    inputs["tokens"], positions=known["positions"]
                )
        if reads == "first":
            asked = ops.zeros_like(inputs["tokens"][:, :1])  # (B, 1)
        known |= features(asked)
        outputs = head(
            known.pop("features"), mask=mask if asked is None else None,
            **{n: t for n, t in known.items() if n in head.supports},
        )  # fmt: skip
        super().__init__(inputs=inputs, outputs=outputs, plan=plan, head=head, name=options["name"])

        # === Parts ===
        self.embedding = embedding
        self.segment = segment
        self.position = position
        self.embedding_norm = embedding_norm
        self.blocks = layers
        self.last_norm = last_norm
        self.pooler = pooler
        self._whole = body  # a function: Keras would track and save every layer a second time
        self.inputs_known = tuple(inputs)
        self.max_length = options["max_length"]
        if not self._reads_pooler():
            pooler.trainable = False  # it travels on to the next head, and no optimizer waits for its gradient
            self.fixed = frozenset(w.path for w in pooler.weights)

    @classmethod
    def complete(cls, options):
        options = super().complete(options)
        if options["pad_id"] is None and options["tokenizer"] is None:
            options["pad_id"] = 0
        return options

    @classmethod
    def problems(cls, options):
        found = cls.size_problems(options, "vocab_size", "max_length", "dim", "num_layers", "num_heads")
        if options["num_segments"] < 0:
            found.append(f"`num_segments` must be at least 0. Received: num_segments={options['num_segments']}")
        return found

    @classmethod
    def facts(cls, options):
        return {**options, "pooling": "pooler"}

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        inputs = super().example_inputs(options, batch_size, length, rng)
        count = options.get("num_segments", 2)
        if count:
            inputs["segments"] = rng.integers(0, count, (batch_size, length)).astype("int32")
        _, (head,) = config.expand_slot("head", options.get("head", "pretraining"), None)
        if "positions" in config.registry.resolve("head", head["name"]).supports:
            shape = (batch_size, -(-length // 3))
            inputs["masked_positions"] = rng.integers(0, length, shape).astype("int32")
        return inputs

    @classmethod
    def typical_shapes(cls, options, batch_size, length=None):
        shapes = super().typical_shapes(options, batch_size, length)
        if "masked_positions" in shapes:  # 15 of 100, as in the paper
            shapes["masked_positions"] = (batch_size, -(-shapes["tokens"][1] * 15 // 100))
        return shapes

    def example_targets(self, inputs, rng):
        rows = inputs.get("masked_positions", inputs["tokens"])
        return self.head.example_targets((*rows.shape, self.options["dim"]), rng)

    def _reads_pooler(self):
        return "pooled" in self.head.supports and getattr(self.head, "pooling", "pooler") == "pooler"

    @property
    def body(self):
        """The model without its head, on the same weights: inputs to `features` `(B, T, C)` and `pooled` `(B, C)`."""
        return self._whole()

    def forget_traces(self):
        super().forget_traces()
        self.body.predict_function = None

    # --- inputs

    def __call__(self, inputs, *args, **kwargs):
        self.check_data(inputs, None)
        return super().__call__(self._named(inputs), *args, **kwargs)

    def _named(self, inputs):
        """The inputs as a dict with every name; None for what the user left out."""
        given = inputs if isinstance(inputs, dict) else {"tokens": inputs}
        wrong = [n for n in given if n not in self.inputs_known]
        if wrong or "tokens" not in given:
            raise InputError(
                f"The inputs of this model are tokens, or a dict of {', '.join(self.inputs_known)}. "
                f"Received: {', '.join(map(str, given)) or 'nothing'}"
            )
        return {n: given.get(n) for n in self.inputs_known}

    def compute_output_shape(self, input_shape):
        shapes = self._named(input_shape)
        features = (*shapes["tokens"], self.options["dim"])
        known = {"pooled": (features[0], features[-1]), "positions": shapes.get("masked_positions")}
        return self.head.compute_output_shape(
            features, **{f"{n}_shape": s for n, s in known.items() if n in self.head.supports}
        )

    def check_data(self, x, y):
        if not isinstance(x, np.ndarray) and not (isinstance(x, dict) and isinstance(x.get("tokens"), np.ndarray)):
            return
        x = self._named(x)
        tokens, segments, positions = x["tokens"], x.get("segments"), x.get("masked_positions")
        self.check_tokens(tokens, None, self.options["vocab_size"], getattr(self.position, "max_length", None))
        if isinstance(segments, np.ndarray):
            if segments.shape != tokens.shape:
                raise InputError(
                    f"Segments have the shape of the tokens, {tokens.shape}. Received: shape {segments.shape}"
                )
            count = self.options["num_segments"]
            _require_range("Segments", segments, count, f", as num_segments={count} says")
        if isinstance(positions, np.ndarray):
            if positions.ndim != 2 or len(positions) != len(tokens):
                raise InputError(
                    f"Masked positions have the shape (rows, masked), with {len(tokens)} rows for these tokens. "
                    f"Received: shape {positions.shape}"
                )
            _require_range("Masked positions", positions, tokens.shape[1], ", the length of the tokens")
        self.check_targets(y, (*tokens.shape, self.options["dim"]), positions)

    # --- what a trained model is used for

    def attention_weights(self, tokens, segments=None):
        """The attention weights of every layer: a list of `(B, H, T, T)`."""
        tokens = ops.convert_to_tensor(tokens, dtype="int32")
        mask = None if self.options["pad_id"] is None else ops.not_equal(tokens, self.options["pad_id"])
        x = self.embedding(tokens)
        if self.segment:
            x = self.segment(x, segments=None if segments is None else ops.convert_to_tensor(segments, dtype="int32"))
        x = self.embedding_norm(self.position(x) if self.position else x)
        weights = []
        for layer in self.blocks:
            weights.append(layer.attention_weights(x, mask=mask))  # (B, H, T, T)
            x = layer(x, mask=mask)
        return weights

    def fill_mask(self, prompt, k=5, *, mask_id=None):
        """The most likely tokens for each hidden one.

        Args:
            prompt: A text with one or more `[MASK]` (the model needs a tokenizer then), or a list of tokens.
            k: How many to return for each.
            mask_id: Number of the mask among tokens; by default the tokenizer's.

        Returns:
            For each mask, in order, a list of `(token, probability)`, likeliest first; the token as text where there
            is a tokenizer.

        Raises:
            InputError: There is no mask, the text is too long, or the head does not score masked tokens.
        """
        if "positions" not in self.head.supports:
            raise InputError(
                f"The head `{self.head.registry_entry.id}` does not score masked tokens. Those that do: "
                "masked_language_model, pretraining."
            )
        mask_id = self.tokenizer.mask_id if mask_id is None and self.tokenizer else mask_id
        if mask_id is None:
            raise InputError("The model does not know its mask: give mask_id, or a tokenizer with a mask.")
        if isinstance(prompt, str):
            row = self._framed(prompt, mask_id)
        else:
            row = self.token_rows(prompt, self.tokenizer, self.options["vocab_size"])[0][0]
        where = [i for i, n in enumerate(row) if n == mask_id]
        if not where:
            raise InputError(f"There is no mask to fill. Write {MASK} in the text. Received: prompt={prompt!r}")
        if len(row) > self.max_length:
            raise InputError(
                f"The model has {self.max_length} positions. Shorten the text. Received: {len(row)} tokens"
            )
        found = self({"tokens": ops.array([row], "int32"), "masked_positions": ops.array([where], "int32")})
        logits = found["masked_tokens"] if isinstance(found, dict) else found  # (1, M, V)
        chances = ops.convert_to_numpy(ops.softmax(ops.cast(logits[0], "float32")))
        label = self.tokenizer.label if self.tokenizer else int
        best = np.argsort(-chances, axis=-1, kind="stable")[:, :k]
        return [[(label(int(n)), float(p[n])) for n in line] for line, p in zip(best, chances, strict=True)]

    def _framed(self, string, mask_id=None, limit=None):
        """Tokens of a text between the class token and the separator; `[MASK]` is the mask where one is asked for."""
        tokenizer = self.tokenizer
        if tokenizer is None or tokenizer.class_id is None or tokenizer.separator_id is None:
            raise InputError(
                "Text needs a tokenizer with the special tokens class and separator: build the model with "
                f"tokenizer=... Received: {string!r}"
            )
        parts = string.split(MASK) if mask_id is not None else [string]
        row = tokenizer.encode(parts[0])
        for part in parts[1:]:
            row += [mask_id, *tokenizer.encode(part)]
        return [tokenizer.class_id, *(row if limit is None else row[: limit - 2]), tokenizer.separator_id]

    def embed(self, texts, *, pooling="mean", normalize=True, max_length=None, batch_size=32):
        """One vector for each text.

        Args:
            texts: A string, or a list of strings. What does not fit into the model's positions is cut.
            pooling: `"mean"` of the features of all tokens, those of the `"first"`, or the `"pooler"`'s output.
            normalize: Whether vectors are scaled to length 1, so that a dot product is a cosine.
            max_length: How many tokens of a text are read, class token and separator included; by default all
                positions of the model.
            batch_size: How many texts are run at once.

        Returns:
            A float32 array of shape `(C,)` for a string, `(B, C)` for a list.

        Raises:
            InputError: The model has no tokenizer, or the pooling is unknown.
        """
        if pooling not in ("mean", "first", "pooler"):
            raise InputError(f"`pooling` must be 'mean', 'first' or 'pooler'. Received: pooling={pooling!r}")
        limit = self.max_length if max_length is None else min(max_length, self.max_length)
        if limit < 3:
            raise InputError(f"`max_length` must be at least 3. Received: max_length={max_length}")
        rows = [self._framed(t, limit=limit) for t in ([texts] if isinstance(texts, str) else texts)]
        vectors = np.zeros((len(rows), self.options["dim"]), "float32")
        order = np.argsort([-len(r) for r in rows], kind="stable")  # texts of like length, so that little is padded
        for start in range(0, len(rows), batch_size):
            batch = order[start : start + batch_size]
            vectors[batch] = self._pooled([rows[i] for i in batch], pooling)
        if normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        return vectors[0] if isinstance(texts, str) else vectors

    def _pooled(self, rows, pooling):
        tokens = text.pad(rows, self.options["pad_id"])  # (B, T)
        found = self.body.predict_on_batch(
            {"tokens": tokens, **({"segments": np.zeros_like(tokens)} if self.segment else {})}
        )
        if pooling == "pooler":
            return found["pooled"]
        features = np.asarray(found["features"], "float32")
        if pooling == "first":
            return features[:, 0]
        kept = None if self.options["pad_id"] is None else ops.array(tokens != self.options["pad_id"])
        return ops.convert_to_numpy(functional.mean_kept(ops.array(features), kept))


def _require_range(what, values, count, why):
    if values.size and not (values.min() >= 0 and values.max() < count):
        wrong = values.min() if values.min() < 0 else values.max()
        raise InputError(f"{what} must be in [0, {count}){why}. Received: {wrong}")
