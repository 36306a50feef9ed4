"""Discrete VAE. Shapes: B batch, H and W sides of an image, D channels, h and w sides of the grid, K codes, E width."""

from typing import Literal

import keras
import numpy as np
from keras import ops

from kerastf import config, functional, register
from kerastf.blocks.losses import weighted_mean
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf_dalle.gumbel import GumbelCodes
from kerastf_dalle.losses import CodePerplexity, Reconstruction, kl_to_uniform


class Residual(keras.layers.Layer):
    """`y = x + W_1 a(W_3 a(x))`, with a 3 x 3 convolution, then a 1 x 1 one, and `a(x) = max(x, 0.2 x)`.

    Args:
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, h, w, C)`.

    Returns:
        Float tensor of shape `(B, h, w, C)`.

    Examples:
        >>> tuple(Residual()(ops.ones((2, 4, 4, 8))).shape)
        (2, 4, 4, 8)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)

    def build(self, x_shape):
        self.wide = _convolution(x_shape[-1], 3, "wide", self.dtype_policy)
        self.narrow = _convolution(x_shape[-1], 1, "narrow", self.dtype_policy)
        self.wide.build(x_shape)
        self.narrow.build(x_shape)

    def call(self, x):
        return x + self.narrow(_activate(self.wide(_activate(x))))  # (B, h, w, C)

    def compute_output_shape(self, x_shape):
        return x_shape


class Pixels(keras.layers.Layer):
    """What a decoder ends with: `y = sigmoid(conv(a(x)))`, `a` as in `Residual`, values in `[0, 1]`.

    Args:
        channels: How many values D a pixel has.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, H, W, C)`.

    Returns:
        Float32 tensor of shape `(B, H, W, D)`.
    """

    def __init__(self, channels: int, **kwargs):
        super().__init__(**kwargs)
        self.channels = channels

    def build(self, x_shape):
        self.project = _convolution(self.channels, 3, "project", self.dtype_policy)
        self.project.build(x_shape)

    def call(self, x):
        return ops.sigmoid(ops.cast(self.project(_activate(x)), "float32"))  # (B, H, W, D)

    def compute_output_shape(self, x_shape):
        return (*x_shape[:-1], self.channels)

    def get_config(self):
        return {**super().get_config(), "channels": self.channels}


def _activate(x):
    # Not a plain ReLU: most of a picture may be one colour, and units that it switches off would learn nothing more.
    return ops.leaky_relu(x, negative_slope=0.2)


def _convolution(filters, size, name, dtype, strides=1, layer=keras.layers.Conv2D):
    return layer(
        filters, size, strides=strides, padding="same", kernel_initializer="he_normal", dtype=dtype, name=name
    )  # fmt: skip


@register("model", "dvae")
class DVAE(Model):
    """A discrete VAE: an encoder gives logits over K codes at each place of a grid, a decoder draws from the codes.

    `q = softmax(encoder(x))`, `y = gumbel_softmax(log q, temperature)`, `z = y C`, `x' = decoder(z)`;
    `loss = reconstruction(x, x') + kl_weight KL(q || uniform)`. In inference `y` is the one-hot of the likeliest code.
    The targets are the images themselves: `model.fit(images)`.

    Args:
        image_size: Side of the images in pixels, or height and width; multiples of `2 ** num_halvings`.
        channels: How many values D a pixel has, each in `[0, 1]`.
        num_codes: How many codes K there are.
        code_dim: Width E of a code's vector; None for `dim`.
        dim: Channels of the convolutions at the grid; half as many where the sides are twice as long, and so on.
        num_halvings: How often the sides are halved from the image to the grid.
        num_residual: How many residual blocks stand at the grid on either side.
        temperature: Temperature of the Gumbel-softmax at the first step.
        end_temperature: Temperature after `anneal_steps` steps; None where it stays as it is.
        anneal_steps: How many steps of training it takes; the model counts them itself, in `fit` as anywhere.
        anneal: How it falls: `"cosine"`, `"exponential"` or `"linear"`.
        straight_through: Whether the decoder sees one code in training, too, with the gradient of the soft choice.
        kl_weight: Weight of the divergence from an even choice of codes.
        reconstruction: `"squared"`, `"absolute"` or `"cross_entropy"`.
        dtype: Name of a Keras dtype policy; None for the global one. The encoder computes in float32 under every
            policy, because a rounded logit may be another code.
        name: Name of the model.

    Call arguments:
        images: Float tensor of shape `(B, H, W, D)` in `[0, 1]`.

    Returns:
        `{"images": (B, H, W, D) in [0, 1], "logits": (B, h, w, K)}`.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("dalle/dvae.tiny")
        >>> codes = model.encode(np.zeros((2, 32, 32, 3)))
        >>> codes.shape, model.decode(codes).shape
        ((2, 8, 8), (2, 32, 32, 3))

    References:
        - [Ramesh et al., 2021](https://arxiv.org/abs/2102.12092), section 2.1
    """

    reads = ("images",)

    def __init__(
        self, image_size: int | list[int] = 32, *, channels: int = 3, num_codes: int = 512, code_dim: int | None = None,
        dim: int = 64, num_halvings: int = 2, num_residual: int = 2, temperature: float = 1.0,
        end_temperature: float | None = None, anneal_steps: int = 0,
        anneal: Literal["cosine", "exponential", "linear"] = "cosine", straight_through: bool = False,
        kl_weight: float = 0.0, reconstruction: Literal["squared", "absolute", "cross_entropy"] = "squared",
        dtype: str | None = None, name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options = plan.options
        size, dim, dtype = self.sides_of(options), options["dim"], keras.dtype_policies.get(options["dtype"])
        halvings, residual = range(options["num_halvings"]), range(options["num_residual"])

        # === Layers ===
        widths = [max(dim >> i, 8) for i in range(options["num_halvings"] + 1)]  # from the grid up
        down = [_convolution(widths[-2 - i], 4, f"down_{i}", "float32", strides=2) for i in halvings]
        read = [Residual(dtype="float32", name=f"read_{i}") for i in residual]
        norm = keras.layers.LayerNormalization(dtype="float32", name="norm")  # or logits would grow until one code wins
        score = _convolution(options["num_codes"], 1, "score", "float32")
        codes = GumbelCodes(
            options["num_codes"], options["code_dim"] or dim, temperature=options["temperature"],
            end_temperature=options["end_temperature"] or options["temperature"], anneal_steps=options["anneal_steps"],
            anneal=options["anneal"], straight_through=options["straight_through"], dtype=dtype, name="codes",
        )  # fmt: skip
        widen = _convolution(dim, 3, "widen", dtype)
        draw = [Residual(dtype=dtype, name=f"draw_{i}") for i in residual]
        up = [
            _convolution(widths[i + 1], 4, f"up_{i}", dtype, strides=2, layer=keras.layers.Conv2DTranspose)
            for i in halvings
        ]
        pixels = Pixels(options["channels"], dtype=dtype, name="pixels")

        # === Graph ===
        images = keras.Input((*size, options["channels"]), name="images")  # (B, H, W, D)
        x = images * 2.0 - 1.0
        for layer in [*down, *read]:
            x = layer(x if layer in (down[0], *read) else _activate(x))  # (B, h, w, C) in the end
        encoder = keras.Model(images, score(norm(x)), name="encoder")
        vectors = keras.Input((*self.grid_of(options), codes.code_dim), name="vectors", dtype=dtype.compute_dtype)
        x = widen(vectors)  # (B, h, w, C)
        for layer in [*draw, *up]:
            x = layer(x if layer in draw else _activate(x))  # (B, H, W, C) in the end
        decoder = keras.Model(vectors, pixels(x), name="decoder")
        logits = encoder(images)  # (B, h, w, K)
        outputs = {"images": decoder(codes(logits)), "logits": logits}
        super().__init__(inputs=images, outputs=outputs, plan=plan, head=pixels, name=options["name"])

        # === Parts that are used alone, and what training reports ===
        self.encoder, self.codes, self.decoder = encoder, codes, decoder
        self.reported = {
            "reconstruction": keras.metrics.Mean(name="reconstruction"), "kl": keras.metrics.Mean(name="kl"),
            "codes": CodePerplexity(options["num_codes"]),
        }  # fmt: skip

    # --- configuration

    @classmethod
    def complete(cls, options):
        return {**options, "dtype": options["dtype"] or keras.config.dtype_policy().name}

    @classmethod
    def sides_of(cls, options):
        """Height and width of the images."""
        return functional.pair("image_size", options["image_size"])

    @classmethod
    def grid_of(cls, options):
        """Height and width of the grid of codes."""
        return tuple(side // 2 ** options["num_halvings"] for side in cls.sides_of(options))

    @classmethod
    def problems(cls, options):
        found = []
        for name in ("channels", "num_codes", "code_dim", "dim", "num_halvings"):
            if options[name] is not None and options[name] < 1:
                found.append(f"`{name}` must be at least 1. Received: {name}={options[name]}")
        for name in ("num_residual", "anneal_steps", "kl_weight"):
            if options[name] < 0:
                found.append(f"`{name}` must not be negative. Received: {name}={options[name]}")
        for name in ("temperature", "end_temperature"):
            if options[name] is not None and options[name] <= 0:
                found.append(f"`{name}` must be above 0. Received: {name}={options[name]}")
        if options["end_temperature"] is None and options["anneal_steps"]:
            found.append(
                f"`anneal_steps` needs an `end_temperature`. Received: anneal_steps={options['anneal_steps']}, "
                f"end_temperature=None"
            )
        try:
            sides = cls.sides_of(options)
        except ValueError as error:
            return [*found, str(error)]
        factor = 2 ** max(options["num_halvings"], 0)
        if any(side % factor for side in sides):
            found.append(
                f"`image_size` must be a multiple of {factor}, because the sides are halved {options['num_halvings']} "
                f"times. Received: image_size={options['image_size']}"
            )
        return found

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        """A batch of random images; `length` has no meaning here."""
        sides = cls.sides_of({"image_size": 32, **options})
        return {"images": rng.uniform(size=(batch_size, *sides, options.get("channels", 3))).astype("float32")}

    def example_targets(self, inputs, rng):
        """The images themselves."""
        return inputs["images"]

    # --- training

    @property
    def temperature(self):
        """The temperature of the next training step."""
        return float(self.codes.temperature)

    def default_loss(self):
        return Reconstruction(self.options["reconstruction"])

    def default_metrics(self):
        return []  # `compute_metrics` reports them

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Reconstruction plus weighted divergence; without `y` the images are their own targets."""
        target = x if y is None else y
        if not self.own_loss:
            return super().compute_loss(x, dict.fromkeys(y_pred, target), y_pred, sample_weight, training)
        loss = self.default_loss()(target, y_pred["images"], sample_weight)
        if not self.options["kl_weight"]:
            return loss
        divergence = kl_to_uniform(y_pred["logits"])  # (B,)
        return loss + self.options["kl_weight"] * weighted_mean(divergence, ops.ones_like(divergence))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        target = x if y is None else y
        rows = self.default_loss().rows(target, y_pred["images"])
        self.reported["reconstruction"].update_state(rows, sample_weight)
        self.reported["kl"].update_state(kl_to_uniform(y_pred["logits"]), sample_weight)
        self.reported["codes"].update_state(y_pred["logits"])
        return super().compute_metrics(x, dict.fromkeys(y_pred, target), y_pred, sample_weight)

    def check_data(self, x, y):
        for name, array in (("images", x), ("targets", y)):
            if isinstance(array, np.ndarray):
                self._check_images(array, name)

    def _check_images(self, images, what="images"):
        wanted = tuple(self.input_shape[1:])
        if images.ndim != 4 or images.shape[1:] != wanted:
            form = ", ".join(map(str, wanted))
            raise InputError(f"The {what} must have shape (rows, {form}). Received: shape {images.shape}")
        if images.size and not (images.min() >= 0 and images.max() <= 1):
            wrong = images.min() if not images.min() >= 0 else images.max()
            raise InputError(f"Pixels must be in [0, 1]. Divide those of 0 to 255 by 255. Received: {wrong}")

    # --- codes

    def encode(self, images, *, batch_size=256):
        """The likeliest codes of images.

        Args:
            images: Array of shape `(B, H, W, D)` in `[0, 1]`.
            batch_size: How many go in one pass.

        Returns:
            An int32 array of shape `(B, h, w)`.
        """
        images = np.asarray(images, "float32")
        self._check_images(images)
        logits = [
            ops.convert_to_numpy(ops.argmax(self.encoder(images[i : i + batch_size], training=False), axis=-1))
            for i in range(0, len(images), batch_size)
        ]
        return np.concatenate(logits).astype("int32")

    def decode(self, codes, *, batch_size=256):
        """Draws the images of codes.

        Args:
            codes: Integers of shape `(B, h, w)` in `[0, K)`.
            batch_size: How many go in one pass.

        Returns:
            A float32 array of shape `(B, H, W, D)` in `[0, 1]`.
        """
        codes = np.asarray(codes)
        grid, count = self.grid_of(self.options), self.options["num_codes"]
        if codes.ndim != 3 or codes.shape[1:] != grid:
            raise InputError(f"Codes must have shape (rows, {grid[0]}, {grid[1]}). Received: shape {codes.shape}")
        if codes.dtype.kind not in "iu" or (codes.size and not 0 <= codes.min() <= codes.max() < count):
            raise InputError(f"Codes must be integers in [0, {count}). Received: {codes.min()} to {codes.max()}")
        found = [
            ops.convert_to_numpy(self.decoder(self.codes.vectors(codes[i : i + batch_size]), training=False))
            for i in range(0, len(codes), batch_size)
        ]
        return np.concatenate(found)

    def generate(self, *args, **kwargs):
        """A dVAE alone does not write: it draws codes that it is given, by `decode`."""
        raise InputError("A dVAE cannot generate: it draws given codes, model.decode(codes). A `dalle/dalle` does.")

    def with_head(self, head, **options):
        """A dVAE has one task, and no slot for a head."""
        raise InputError(f"A dVAE has no other head. Received: head={head!r}")
