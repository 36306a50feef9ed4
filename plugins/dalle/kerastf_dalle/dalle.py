"""DALL-E. Shapes: B batch, T time, S caption, V text tokens, K codes, h and w of their grid, H and W of an image."""

from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from kerastf import config, decoding, functional, register, text
from kerastf.errors import ConfigError, InputError
from kerastf.models.base import Model
from kerastf_dalle.dvae import DVAE
from kerastf_dalle.losses import PartLoss, PartsCrossEntropy


class CodeWriter:
    """A model as decoding sees it, with no choice but codes of images.

    Args:
        model: The `DALLE` model.
    """

    def __init__(self, model):
        self.model = model
        self.max_length = model.max_length

    @property
    def variables(self):
        return self.model.variables

    @property
    def weights(self):
        return self.model.weights

    def init_state(self, batch_size, max_length):
        return self.model.init_state(batch_size, max_length)

    def step(self, tokens, state, index):
        logits, state = self.model.step(tokens, state, index)  # (B, V + K)
        logits = ops.cast(logits, "float32")
        codes = ops.arange(logits.shape[-1]) >= self.model.options["vocab_size"]
        return ops.where(codes, logits, functional.NEGATIVE), state


@register("model", "dalle")
class DALLE(Model):
    """A causal Transformer that reads a caption and writes the codes of an image, which a dVAE draws.

    One sequence: S text tokens, filled up with padding, then the `h w` codes of the image, row by row, counted from V
    on. A GPT predicts each from those before it, and the two parts have their weights:
    `loss = text_weight mean(-log p(token)) + image_weight mean(-log p(code))`. The dVAE's weights are
    frozen, and travel in the model's file.

    Args:
        vocab_size: How many text tokens V there are; by default the tokenizer's.
        text_length: How many positions S a caption has. Shorter ones are filled up with `pad_id`.
        dvae: The dVAE: a `dalle/dvae` model, whose weights are copied, or a dict of its options.
        dim: Width C.
        num_layers: How many layers.
        num_heads: How many attention heads.
        mlp_dim: Width of the feed-forward's hidden layer; None for the block's default.
        dropout: Fraction dropped from embeddings, attention weights and the outputs of blocks.
        activation: Activation of the feed-forward.
        epsilon: Of the norms.
        norm_order: `"pre"`: norm, block, add; or `"post"`: block, add, norm.
        initializer_std: Deviation of kernels at the start.
        text_weight: Weight of the caption's part of the loss.
        image_weight: Weight of the image's part.
        pad_id: Token that fills up captions; by default the tokenizer's. It is read as any other, and not counted in
            the loss. None where all captions have S tokens.
        attention: Slot, per layer.
        norm: Slot, per layer; the last norm is as the last layer's.
        feedforward: Slot, per layer.
        position: Slot: `"learned"`, `"dalle/learned_2d"` for rows and columns, `"sinusoidal_2d"`, `"rotary"`, or any
            other.
        embedding: Slot.
        tokenizer: A tokenizer that travels with the model, or None.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        tokens: Integer tensor of shape `(B, T)`: captions, then codes. `sequences` makes them.

    Returns:
        Logits `(B, T, V + K)` of the next token or code.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("dalle/dalle.tiny", vocab_size=20, pad_id=0)
        >>> model.generate([[3, 4, 5], [6, 7]]).shape
        (2, 32, 32, 3)

    References:
        - [Ramesh et al., 2021](https://arxiv.org/abs/2102.12092)
    """

    slots = {  # noqa: RUF012
        # A position goes before the attention that it may be handed to, so that it is complete by then.
        "position": False, "attention": True, "norm": True, "feedforward": True, "embedding": False,
    }  # fmt: skip
    needs = {"attention": ("causal",), "norm": ("causal",), "feedforward": ("causal",), "embedding": ("tied",)}  # noqa: RUF012
    gives = ("causal_only",)
    writes = "images"

    def __init__(
        self, vocab_size: int | None = None, *, text_length: int = 32, dvae: dict | keras.Model | None = None,
        dim: int = 256, num_layers: int = 6, num_heads: int = 8, mlp_dim: int | None = None, dropout: float = 0.1,
        activation: str = "gelu_tanh", epsilon: float = 1e-5, norm_order: Literal["pre", "post"] = "pre",
        initializer_std: float = 0.02, text_weight: float = 1 / 8, image_weight: float = 7 / 8,
        pad_id: int | None = None, attention: Any = "multi_head", norm: Any = "layer", feedforward: Any = "mlp",
        position: Any = "learned", embedding: Any = "token", tokenizer: text.Tokenizer | dict | str | None = None,
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        given = {k: v for k, v in locals().items() if k in config.options_of(type(self))}
        plan = config.plan(type(self), given)
        options, blocks = plan.options, plan.blocks
        facts = self.facts(options)

        # === Layers ===
        shared = ("dim", "num_layers", "num_heads", "mlp_dim", "dropout", "activation", "epsilon", "norm_order",
                  "initializer_std", "dtype")  # fmt: skip
        slots = {name: blocks[name] if per_layer else blocks[name][0] for name, per_layer in self.slots.items()}
        transformer = config.build_model(
            "gpt", vocab_size=facts["vocab_size"], max_length=facts["max_length"], name="transformer", **slots,
            **{name: options[name] for name in shared},
        )  # fmt: skip

        # === Graph ===
        tokens = keras.Input((None,), dtype="int32", name="tokens")  # (B, T)
        super().__init__(
            inputs=tokens, outputs=transformer(tokens), plan=plan, head=transformer.head, name=options["name"]
        )  # fmt: skip

        # === Parts that drawing uses ===
        self.transformer = transformer
        self.max_length = facts["max_length"]
        self.dvae = DVAE(**options["dvae"])
        if isinstance(given["dvae"], keras.Model):
            self.dvae.set_weights(given["dvae"].get_weights())
        self.dvae.trainable = False
        self.fixed |= {w.path for w in self.dvae.weights}
        self._writer = CodeWriter(self)

    # --- configuration

    @classmethod
    def complete(cls, options):
        dvae = options["dvae"]
        if isinstance(dvae, keras.Model) and not isinstance(dvae, DVAE):
            raise ConfigError(f"`dvae` must be a `dalle/dvae` model or a dict. Received: a {type(dvae).__name__}")
        dvae = dvae.options if isinstance(dvae, DVAE) else dvae or {}
        return {**super().complete(options), "dvae": config.plan(DVAE, dvae).options}

    @classmethod
    def problems(cls, options):
        found = cls.size_problems(options, "vocab_size", "text_length", "dim", "num_layers", "num_heads")
        for name in ("text_weight", "image_weight"):
            if options[name] < 0:
                found.append(f"`{name}` must not be negative. Received: {name}={options[name]}")
        return found

    @classmethod
    def facts(cls, options):
        rows, columns = DVAE.grid_of(options["dvae"])
        return {
            **options,
            "vocab_size": options["vocab_size"] + options["dvae"]["num_codes"],
            "max_length": options["text_length"] + rows * columns,
            "output_std": options["initializer_std"] / (2 * options["num_layers"]) ** 0.5,
            "grid": [rows, columns],
            "prefix": options["text_length"],
        }

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        """Random captions, followed by random codes from position `text_length` on."""
        size, text_length = options["vocab_size"], options.get("text_length", 32)
        codes = config.plan(DVAE, options.get("dvae") or {}).options["num_codes"]
        tokens = rng.integers(3, size, (batch_size, length))
        tokens[:, text_length:] = rng.integers(size, size + codes, tokens[:, text_length:].shape)
        return {"tokens": tokens.astype("int32")}

    @classmethod
    def typical_shapes(cls, options, batch_size, length=None):
        if length is None:
            length = cls.facts({**options, "dvae": config.plan(DVAE, options["dvae"]).options})["max_length"] - 1
        return {"tokens": (batch_size, length)}

    def example_targets(self, inputs, rng):
        """The next token at each position; random after the last."""
        tokens = inputs["tokens"]
        after = self.example_inputs(self.options, len(tokens), tokens.shape[1] + 1, rng)["tokens"][:, -1:]
        return np.concatenate([tokens[:, 1:], after], axis=1)

    # --- training

    def default_loss(self):
        """The weighted cross-entropies of caption and image."""
        return PartsCrossEntropy(
            **self._sizes(), text_weight=self.options["text_weight"], image_weight=self.options["image_weight"]
        )

    def default_metrics(self):
        return [PartLoss(0, **self._sizes()), PartLoss(1, **self._sizes())]

    def _sizes(self):
        return {name: self.options[name] for name in ("text_length", "vocab_size", "pad_id")}

    def check_data(self, x, y):
        if y is None:  # nothing is trained, so any tokens will do
            self.check_tokens(x, None, self.options["vocab_size"] + self.options["dvae"]["num_codes"], self.max_length)
            return
        for tokens, first in ((x, 0), (y, 1)):
            if isinstance(tokens, np.ndarray) and (first == 0 or self.own_loss):
                self._check_sequences(tokens, first)

    def _check_sequences(self, tokens, first):
        """Raises `InputError` where text and codes do not stand at their places; `first` is the first position."""
        what = "targets" if first else "input"
        if tokens.ndim != 2:
            raise InputError(f"The {what} must be tokens of shape (rows, length). Received: shape {tokens.shape}")
        if first + tokens.shape[1] > self.max_length:
            raise InputError(
                f"The model has {self.max_length} positions: {self.options['text_length']} for the caption, the others "
                f"for codes. `model.sequences` makes such rows. Received: {first + tokens.shape[1]} positions"
            )
        low = self.options["vocab_size"]
        top = low + self.options["dvae"]["num_codes"]
        cut = self.options["text_length"] - first
        for part, start, end, name in ((tokens[:, :cut], 0, low, "Captions"), (tokens[:, cut:], low, top, "Codes")):
            wrong = part[(part < start) | (part >= end)]
            if wrong.size:
                raise InputError(f"{name} must be in [{start}, {end}) in the {what}. Received: {wrong.flat[0]}")

    def sequences(self, captions, images):
        """What `fit` takes: for each caption and its image, the sequence, and the sequence one step later.

        Args:
            captions: Strings (the model needs a tokenizer then), or lists of tokens.
            images: Array `(B, H, W, D)` in `[0, 1]`; or its codes `(B, h, w)`, integers.

        Returns:
            Two int32 arrays of shape `(B, S + h w - 1)`.
        """
        rows = self._captions(captions)[0]
        images = np.asarray(images)
        codes = images if images.ndim == 3 and images.dtype.kind in "iu" else self.dvae.encode(images)
        if len(rows) != len(codes):
            raise InputError(f"Each image has a caption. Received: {len(rows)} captions, {len(codes)} images")
        tokens = np.concatenate([rows, codes.reshape(len(codes), -1) + self.options["vocab_size"]], axis=1)
        return tokens[:, :-1].astype("int32"), tokens[:, 1:].astype("int32")

    def _captions(self, captions):
        """Captions as an array `(B, S)`, and the form they came in."""
        rows, form = self.token_rows(captions, self.tokenizer, self.options["vocab_size"])
        length, longest = self.options["text_length"], max(map(len, rows))
        if longest > length:
            raise InputError(f"A caption has {length} positions. Received: a caption of {longest} tokens")
        return text.pad(rows, self.options["pad_id"], length), form

    # --- drawing

    def init_state(self, batch_size, max_length):
        """The decoding state before the first token: one per layer."""
        return self.transformer.init_state(batch_size, max_length)

    def step(self, tokens, state, index):
        """Reads the next token or several; returns the logits `(B, V + K)` of the one after, and the next state."""
        return self.transformer.step(tokens, state, index)

    def generate_codes(self, captions, *, sampler="greedy", seed=None):
        """Writes the codes of images.

        Args:
            captions: As for `generate`.
            sampler: As for `generate`.
            seed: As for `generate`.

        Returns:
            An int32 array of shape `(B, h, w)`.
        """
        self.require_decoding()
        rows, _ = self._captions(captions)
        tokens, _ = decoding.generate(
            self._writer, rows.tolist(), max_length=self.max_length, sampler=sampler, seed=seed
        )  # fmt: skip
        codes = tokens[:, self.options["text_length"] :] - self.options["vocab_size"]
        return codes.reshape(-1, *DVAE.grid_of(self.options["dvae"]))  # (B, h, w)

    def generate(self, captions, *, sampler="greedy", seed=None):
        """Draws images from captions.

        Args:
            captions: A string or a list of strings (the model needs a tokenizer then), or tokens: one list, a list of
                lists, or an array.
            sampler: `"greedy"`, `"random"`, `"top_k"`, `"top_p"`, a plugin's, or a dict with name and options.
            seed: The same seed gives the same images.

        Returns:
            A float32 array in `[0, 1]`: `(H, W, D)` for one caption, else `(B, H, W, D)`.

        Raises:
            InputError: The model cannot decode, or a caption does not fit it.
        """
        images = self.dvae.decode(self.generate_codes(captions, sampler=sampler, seed=seed))
        _, form = self._captions(captions)
        return images[0] if form in ("text", "row") else images

    def attention_weights(self, tokens):
        """The attention weights of every layer: a list of `(B, H, T, T)`."""
        return self.transformer.attention_weights(tokens)

    def with_head(self, head, **options):
        """A model that draws has one task, and no slot for a head."""
        raise InputError(f"DALL-E has no other head. Received: head={head!r}")
