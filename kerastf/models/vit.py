"""ViT: an image as a sequence of patches. Shapes: B batch, H height, W width, D input channels, N patches, C width."""

from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from kerastf import config, functional
from kerastf.blocks.dropout import Dropout
from kerastf.blocks.embedding import ExtraTokens
from kerastf.blocks.position import Learned
from kerastf.blocks.stack import TransformerLayer
from kerastf.config import create_block
from kerastf.errors import InputError
from kerastf.models.base import Model
from kerastf.registry import register, resolve


@register("model", "vit")
class ViT(Model):
    """A Vision Transformer: patches, a linear map, positions, a Transformer encoder, a head.

    `x = [class; W patch_1; ...; W patch_N] + position`, then L times `x = x + attention(norm(x))`,
    `x = x + feedforward(norm(x))`, then `logits = head(norm(x))`

    With `embedding="vector"` it reads ready-made vectors `(B, N, D)` instead, such as the frames of a video.

    Args:
        image_size: Side of the images in pixels, or height and width; multiples of the patch's.
        patch_size: Side of a patch in pixels, or height and width.
        channels: How many values D a pixel (or a vector) has.
        max_length: For vectors: how many N there are at most. None where they are the patches of an image of
            `image_size`.
        num_classes: How many classes there are, for a head that asks for it.
        dim: Width C.
        num_layers: How many layers.
        num_heads: How many attention heads.
        mlp_dim: Width of the feed-forward's hidden layer; None for the block's default.
        class_token: Whether a learned token leads the sequence; the classifier then reads it, and otherwise the mean of
            the patches.
        registers: How many learned tokens follow it that no head reads: scratch space for attention.
        dropout: Fraction dropped from embeddings, attention weights and the outputs of blocks.
        drop_path: Stochastic depth: the chance that a row skips a block of the last layer in training. It grows
            linearly with depth, from 0 in the first layer.
        activation: Activation of the feed-forward.
        epsilon: Of the norms.
        norm_order: `"pre"`: norm, block, add; or `"post"`: block, add, norm.
        initializer_std: Deviation of kernels, positions and tokens at the start.
        preprocessing: What is done to each pixel first: a dict of `scale`, `mean` and `std` (numbers, or lists of one
            per channel) for `(pixel * scale - mean) / std`; images then come as they are, integers included. None
            where the images are ready.
        pad_value: For vectors: a vector of nothing but this value is padding, and is not attended to. None where
            nothing is padded.
        attention: Slot, per layer.
        norm: Slot, per layer; the last norm is as the last layer's.
        feedforward: Slot, per layer.
        position: Slot: `"learned"` as in the paper, `"sinusoidal_2d"`, `"relative_2d"`, or any other.
        embedding: Slot: `"patch"` for images, `"vector"` for vectors, or a plugin's.
        head: Slot: `"classifier"`, `"features"`, or any other.
        dtype: Name of a Keras dtype policy; None for the global one.
        name: Name of the model.

    Call arguments:
        images: Tensor of shape `(B, H, W, D)`; or vectors `(B, N, D)`.

    Returns:
        What the head returns: logits `(B, num_classes)` for the classifier.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("vit", image_size=8, patch_size=4, dim=16, num_layers=1, num_heads=2)
        >>> tuple(model(keras.ops.zeros((2, 8, 8, 3))).shape)
        (2, 1000)

    References:
        - [Dosovitskiy et al., 2020](https://arxiv.org/abs/2010.11929)
        - [Touvron et al., 2020](https://arxiv.org/abs/2012.12877) for the sizes `ti16` and `s16`
        - [Darcet et al., 2023](https://arxiv.org/abs/2309.16588) for registers
        - [Huang et al., 2016](https://arxiv.org/abs/1603.09382) for stochastic depth
    """

    reads = ("images", "vectors")
    slots = {  # noqa: RUF012
        # A position goes before the attention that it may be handed to, so that it is complete by then.
        "position": False, "attention": True, "norm": True, "feedforward": True, "embedding": False, "head": False,
    }  # fmt: skip

    def __init__(
        self, image_size: int | list[int] = 224, *, patch_size: int | list[int] = 16, channels: int = 3,
        max_length: int | None = None, num_classes: int | None = 1000, dim: int = 768, num_layers: int = 12,
        num_heads: int = 12, mlp_dim: int | None = None, class_token: bool = True, registers: int = 0,
        dropout: float = 0.0, drop_path: float = 0.0, activation: str = "gelu", epsilon: float = 1e-6,
        norm_order: Literal["pre", "post"] = "pre", initializer_std: float = 0.02, preprocessing: dict | None = None,
        pad_value: float | None = None, attention: Any = "multi_head", norm: Any = "layer", feedforward: Any = "mlp",
        position: Any = "learned", embedding: Any = "patch", head: Any = "classifier", dtype: str | None = None,
        name: str | None = None,
    ):  # fmt: skip
        plan = config.plan(type(self), {k: v for k, v in locals().items() if k in config.options_of(type(self))})
        options, blocks = plan.options, plan.blocks
        dtype = keras.dtype_policies.get(options["dtype"])
        depth, std = options["num_layers"], options["initializer_std"]

        # === Layers ===
        prepare = _preprocessing(options["preprocessing"])
        embedding = create_block("embedding", blocks["embedding"][0], name="embedding", dtype=dtype)
        class_token = registers = None
        if options["class_token"]:
            class_token = ExtraTokens(initializer_std=std, dtype=dtype, name="class_token")
        if options["registers"]:
            registers = ExtraTokens(
                options["registers"], after=int(options["class_token"]), initializer_std=std, dtype=dtype,
                name="registers",
            )  # fmt: skip
        add_position = "embeddings" in resolve("position", blocks["position"][0]["name"]).supports
        position = (
            create_block("position", blocks["position"][0], name="position", dtype=dtype) if add_position else None
        )
        drop = Dropout(options["dropout"], dtype=dtype, name="drop")
        layers = [
            TransformerLayer(
                blocks["attention"][i], feedforward=blocks["feedforward"][i], norm=blocks["norm"][i],
                norm_order=options["norm_order"], drop_path=options["drop_path"] * i / max(depth - 1, 1), dtype=dtype,
                name=f"layer_{i}",
            )
            for i in range(depth)
        ]  # fmt: skip
        last_norm = None
        if options["norm_order"] == "pre":
            last_norm = create_block("norm", blocks["norm"][-1], name="norm", dtype=dtype)
        head = create_block("head", blocks["head"][0], name="head", dtype=dtype)

        def embed(x):
            """Embeddings `(B, T, C)` and the mask of what may be attended to, None for all."""
            mask = None
            if options["pad_value"] is not None:
                mask = ops.any(ops.not_equal(x, options["pad_value"]), axis=-1)  # (B, N)
            x = embedding(prepare(x) if prepare else x)  # (B, N, C)
            x = class_token(x) if class_token else x
            x = drop(position(x) if position else x)
            x = registers(x) if registers else x  # (B, T, C)
            return x, _lead(mask, self_tokens, True)

        # === Graph ===
        self_tokens = int(options["class_token"]) + options["registers"]
        reads = self.input_of(options)
        shape = functional.pair("image_size", options["image_size"]) if reads == "images" else (None,)
        inputs = keras.Input((*shape, options["channels"]), name=reads)  # (B, H, W, D) or (B, N, D)
        x, mask = embed(inputs)  # (B, T, C)
        for layer in layers[:-1]:
            x = layer(x, mask=mask)  # (B, T, C)
        first = None
        if getattr(head, "reads", "all") == "first" and layers[-1].can_narrow():
            first = ops.zeros_like(x[:, :1, 0], dtype="int32")  # (B, 1)
        x = layers[-1](x, mask=mask, positions=first)  # (B, T, C), or (B, 1, C) where the head reads no more
        x = last_norm(x) if last_norm else x
        # A mean is taken over the patches alone.
        patches = None
        if first is None:
            patches = ops.ones_like(x[..., 0], dtype="bool") if mask is None else mask
            patches = _lead(patches[:, self_tokens:], self_tokens, False) if self_tokens else mask  # (B, T)
        super().__init__(
            inputs=inputs, outputs=head(x, mask=patches), plan=plan, head=head, name=options["name"]
        )  # fmt: skip

        # === Parts that pictures and `resized` use ===
        self.embed = embed
        self.embedding = embedding
        self.position = position
        self.blocks = layers
        self.last_norm = last_norm
        self.prefix = self_tokens

    # --- configuration

    @classmethod
    def complete(cls, options):
        return {**options, "dtype": options["dtype"] or keras.config.dtype_policy().name}

    @classmethod
    def input_of(cls, options):
        """The name of the input: `"images"` or `"vectors"`; None where the embedding reads something else."""
        try:
            _, (spec,) = config.expand_slot("embedding", options["embedding"], None)
            supports = resolve("embedding", spec["name"]).supports
        except (ValueError, LookupError, ImportError):
            return "images"  # the slot's own checks speak of it
        return next((name for name in ("images", "vectors") if name in supports), None)

    @classmethod
    def grid_of(cls, options):
        """Rows and columns of patches; None for a sequence of vectors without a grid."""
        if options["max_length"] is not None:
            return None
        sizes = [functional.pair(name, options[name]) for name in ("image_size", "patch_size")]
        return functional.patch_grid(*sizes)

    @classmethod
    def problems(cls, options):
        found = []
        for name in ("channels", "max_length", "dim", "num_layers", "num_heads"):
            if options[name] is not None and options[name] < 1:
                found.append(f"`{name}` must be at least 1. Received: {name}={options[name]}")
        if options["registers"] < 0:
            found.append(f"`registers` must not be negative. Received: registers={options['registers']}")
        for name in ("dropout", "drop_path"):
            if not 0 <= options[name] < 1:
                found.append(f"`{name}` must be in [0, 1). Received: {name}={options[name]}")
        try:
            cls.grid_of(options)
        except ValueError as error:
            found.append(str(error))
        reads = cls.input_of(options)
        if reads is None:
            found.append(
                f"This model reads images or vectors: embedding='patch', 'vector', or a plugin's. "
                f"Received: embedding={options['embedding']!r}"
            )
        for name in ("max_length", "pad_value"):
            if reads == "images" and options[name] is not None:
                found.append(
                    f"`{name}` is for vectors: write embedding='vector', or leave it out. "
                    f"Received: {name}={options[name]}, embedding={options['embedding']!r}"
                )
        if options["max_length"] is not None:
            found += cls._grid_problems(options)
        found += _preprocessing_problems(options["preprocessing"], options["channels"])
        return found + cls.dtype_problems(options)

    @classmethod
    def _grid_problems(cls, options):
        """What the position asks for that vectors without a grid do not have."""
        try:
            _, (spec,) = config.expand_slot("position", options["position"], None)
            known = config.options_of(resolve("position", spec["name"]))
        except (ValueError, LookupError, ImportError):
            return []  # the slot's own checks speak of it
        if "grid" not in known or "grid" in spec:
            return []
        return [
            f"position `{spec['name']}` needs a grid, and `max_length` says that there is none. Choose another "
            f"position, or leave `max_length` out where the vectors are the patches of an image. "
            f"Received: max_length={options['max_length']}"
        ]

    @classmethod
    def facts(cls, options):
        grid = cls.grid_of(options)
        count = options["max_length"] if grid is None else grid[0] * grid[1]
        leading = int(options["class_token"])
        try:
            _, (spec,) = config.expand_slot("position", options["position"], None)
            handed = "embeddings" not in resolve("position", spec["name"]).supports
        except (ValueError, LookupError, ImportError):
            handed = False
        return {
            **options,
            "max_length": count + leading,
            "grid": None if grid is None else list(grid),
            "prefix": leading + (options["registers"] if handed else 0),  # registers come after added positions
            "pooling": "first" if options["class_token"] else "mean",
        }

    @classmethod
    def example_inputs(cls, options, batch_size, length, rng):
        """A small batch for these options, by the name of the input; `length` is how many vectors there are."""
        channels = options.get("channels", 3)
        embedding = options.get("embedding", "patch")
        if cls.input_of({"embedding": embedding}) == "vectors":
            if options.get("max_length") is None:  # as many positions as patches
                grid = cls.grid_of({"max_length": None, "image_size": 224, "patch_size": 16, **options})
                length = min(length, grid[0] * grid[1])
            return {"vectors": rng.normal(size=(batch_size, length, channels)).astype("float32")}
        sides = functional.pair("image_size", options.get("image_size", 224))
        return {"images": rng.normal(size=(batch_size, *sides, channels)).astype("float32")}

    @classmethod
    def typical_shapes(cls, options, batch_size, length=None):
        if length is None and cls.grid_of(options):
            rows, columns = cls.grid_of(options)
            length = rows * columns
        return super().typical_shapes(options, batch_size, length)

    def example_targets(self, inputs, rng):
        x = next(iter(inputs.values()))
        if getattr(self.head, "points", False):  # at patches, never at the tokens before them
            shape = (len(x), self._length(x) - self.prefix, self.options["dim"])
            return self.head.example_targets(shape, rng) + self.prefix
        return self.head.example_targets((len(x), self._length(x), self.options["dim"]), rng)

    # --- data

    def check_data(self, x, y):
        if isinstance(x, np.ndarray):
            self._check_inputs(x)
            if self.own_loss:  # another loss may want other targets
                self.check_targets(y, (len(x), self._length(x), self.options["dim"]))

    def _length(self, x):
        """How many tokens an input becomes."""
        grid = self.grid_of(self.options)
        return self.prefix + (x.shape[1] if self.input_of(self.options) == "vectors" else grid[0] * grid[1])

    def _check_inputs(self, x):
        """Raises `InputError` for an array that is not a batch of what the model reads."""
        wanted = tuple(self.input_shape)
        form = ", ".join(["rows", *("vectors" if n is None else str(n) for n in wanted[1:])])
        if x.ndim != len(wanted) or any(n not in (None, m) for n, m in zip(wanted, x.shape, strict=True)):
            more = ""
            if x.shape == wanted[1:]:
                more = " One image is a batch of one: images[None]."
            elif x.shape[1:] == wanted[1:-1] or (*x.shape[1:-1], wanted[-1]) == wanted[1:]:
                more = f" Give each pixel {wanted[-1]} channels, or build the model with the channels that there are."
            elif x.ndim == len(wanted) == 4 and x.shape[-1] == wanted[-1]:
                more = f" Resize the images, or the model: model.resized({list(x.shape[1:3])})."
            raise InputError(f"The input must have shape ({form}).{more} Received: shape {x.shape}")
        limit = self.options["max_length"]
        if limit is not None and x.shape[1] > limit:
            raise InputError(
                f"The model takes {limit} vectors. Cut the input, or build it with max_length={x.shape[1]}. "
                f"Received: {x.shape[1]} vectors"
            )
        self.check_finite(x)

    # --- sizes and pictures

    def resized(self, image_size, *, method: Literal["bicubic", "bilinear"] = "bicubic"):
        """A new model for another image size: weights are copied, learned positions interpolated.

        Args:
            image_size: Side of the images in pixels, or height and width.
            method: How positions are interpolated.

        Returns:
            The new model; nothing is shared.
        """
        old_grid = self.grid_of(self.options)
        if old_grid is None:
            raise InputError("A model of vectors without a grid has no image size. Build one with another max_length.")
        given = {k: v for k, v in self.options.items() if k != "name"}
        new = type(self)(**{**given, "image_size": config.plain(image_size)})
        new_grid = self.grid_of(new.options)
        own = self.learnt_weights()
        for weight in new.weights:
            old = own[weight.path]
            if tuple(old.shape) == tuple(weight.shape):
                weight.assign(ops.copy(old))  # JAX would share the array, and training gives it away
        if isinstance(self.position, Learned):
            lead = int(self.options["class_token"])
            table = ops.convert_to_tensor(self.position.table)
            moved = functional.resize_grid(table[lead:], old_grid, new_grid, method=method)
            new.position.table.assign(ops.concatenate([table[:lead], moved], axis=0))
        places = [(self.position, new.position)]
        places += [
            (getattr(a.attention, "bias_by_position", None), getattr(b.attention, "bias_by_position", None))
            for a, b in zip(self.blocks, new.blocks, strict=True)
        ]
        for before, after in places:
            if hasattr(after, "resize_from"):
                after.resize_from(before, method)
        new.freeze({*self.frozen()})
        return new

    def attention_weights(self, images):
        """The attention weights of every layer: a list of `(B, heads, T, T)`, T the class token, registers, patches."""
        x, mask = self.embed(ops.convert_to_tensor(images, dtype=self.input.dtype))
        weights = []
        for layer in self.blocks:
            weights.append(layer.attention_weights(x, mask=mask))  # (B, heads, T, T)
            x = layer(x, mask=mask)
        return weights

    def rollout(self, images):
        """How much each patch goes into the answer, by attention rollout.

        Args:
            images: `(B, H, W, D)`.

        Returns:
            NumPy array `(B, rows, columns)`; what the class token takes from each patch, or without one the mean over
            the patches. `plots.rollout` draws it.

        References:
            - [Abnar and Zuidema, 2020](https://arxiv.org/abs/2005.00928)
        """
        total = functional.rollout(self.attention_weights(images))  # (B, T, T)
        row = total[:, 0] if self.options["class_token"] else ops.mean(total[:, self.prefix :], axis=1)  # (B, T)
        grid = self.grid_of(self.options) or (1, -1)
        return ops.convert_to_numpy(row[:, self.prefix :]).reshape(-1, *grid)


def _lead(mask, count, value):
    """A mask `(B, N)` with `count` more positions before it; None stays None."""
    if mask is None or not count:
        return mask
    return ops.pad(ops.cast(mask, "int32"), [[0, 0], [count, 0]], constant_values=int(value)) > 0


def _preprocessing(given):
    """The function that does what the option `preprocessing` says, or None."""
    if given is None:
        return None
    mean, std = (np.asarray(given.get(n, d), dtype="float64") for n, d in (("mean", 0.0), ("std", 1.0)))
    scale, shift = ((given.get("scale", 1.0) / std).astype("float32"), (mean / std).astype("float32"))
    # Not Keras's Rescaling, which wants TensorFlow on every backend. In float32 whatever the policy: 16 bits would lose
    # the lowest bits of a pixel.
    return lambda x: ops.cast(x, "float32") * scale - shift


def _preprocessing_problems(given, channels):
    if given is None:
        return []
    unknown = sorted(set(given) - {"scale", "mean", "std"})
    if unknown:
        return [f"`preprocessing` takes scale, mean and std. Received: {', '.join(unknown)}"]
    found = []
    for name, value in given.items():
        values = value if isinstance(value, list) and name != "scale" else [value]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if not numbers or len(values) not in (1, channels) or (name == "std" and min(values) <= 0):
            what = "a number" if name == "scale" else f"a number or a list of {channels}, one per channel"
            above = ", above 0" if name == "std" else ""
            found.append(f"`preprocessing`: `{name}` must be {what}{above}. Received: {name}={value!r}")
    return found
