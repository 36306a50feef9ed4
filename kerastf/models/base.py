"""What every model family shares: configuration, default loss, new heads, saving."""

import concurrent.futures
import contextlib
import functools
import os
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kerastf import ahead, checkpoint, compat, config, fitting, garbage, kernels, registry, replicas, text, tracing
from kerastf.errors import ConfigError, FileFormatError, InputError
from kerastf.models import saved
from kerastf.models.from_features import FromFeatures
from kerastf.models.generation import Generation

fitting.reuse_memory()

WHOLE = 2**31  # rows of a batch that is all there is


class Model(FromFeatures, Generation):
    """A model of the registry. A family's constructor plans, builds its graph, then calls this one's.

    Class attributes of a family:
        slots: By name: whether the slot takes one block per layer (True) or one in all (False).
        needs: By slot: what its blocks must support.
        reads: What its input may be: `"tokens"`, `"characters"` where words may come as rows of characters, `"images"`,
            `"vectors"`. An embedding that reads something else is refused.
        gives: `"two_directions"` where features are those of a forward and a backward reader side by side. A head that
            wants them is refused elsewhere. `"causal_only"` where attention is only ever asked for the past. An
            attention that declares it, because it can do nothing else, is refused elsewhere.
        writes: What `generate` gives: `"tokens"`, or `"images"` of a family that draws them.

    What a family's methods may use, beside those of `keras.Model`: `options`, `head`, `tokenizer`; `own_loss`, whether
    the loss is the model's own; `fixed`, paths of the weights that never train; `token_rows` and `require_decoding`.
    """

    slots: ClassVar[dict[str, bool]] = {}
    needs: ClassVar[dict[str, tuple[str, ...]]] = {}
    reads: ClassVar[tuple[str, ...]] = ("tokens",)
    gives: ClassVar[tuple[str, ...]] = ()
    writes: ClassVar[str] = "tokens"

    @classmethod
    def complete(cls, options: dict[str, Any]) -> dict[str, Any]:
        """Fills options that follow from others: the tokenizer's sizes, the global dtype."""
        tokenizer = text.from_config(options["tokenizer"])
        if tokenizer is not None:
            options["tokenizer"] = tokenizer.get_config()
            for name in ("vocab_size", "pad_id"):
                if options[name] is None:
                    options[name] = getattr(tokenizer, name)
        options["dtype"] = options["dtype"] or keras.config.dtype_policy().name
        return options

    @classmethod
    def problems(cls, options: dict[str, Any]) -> list[str]:
        """What is wrong with the options beyond their types, one sentence each."""
        return cls.size_problems(options, "vocab_size", "dim")

    @classmethod
    def size_problems(cls, options: dict[str, Any], *sizes: str) -> list[str]:
        """What can be wrong in every family: sizes, dropout, tokens, dtype."""
        found = []
        if options["vocab_size"] is None:
            found.append(
                "`vocab_size` is needed: how many tokens there are, or give a tokenizer. Received: vocab_size=None"
            )
        for name in sizes:
            if options[name] is not None and options[name] < 1:
                found.append(f"`{name}` must be at least 1. Received: {name}={options[name]}")
        if not 0 <= options["dropout"] < 1:
            found.append(f"`dropout` must be in [0, 1). Received: dropout={options['dropout']}")
        tokenizer, size, pad = text.from_config(options["tokenizer"]), options["vocab_size"], options["pad_id"]
        if tokenizer and size is not None and tokenizer.vocab_size > size:
            found.append(
                f"`vocab_size` must hold the tokenizer's {tokenizer.vocab_size} tokens. Received: vocab_size={size}"
            )
        if pad is not None and size is not None and not 0 <= pad < size:
            found.append(f"`pad_id` must be a token in [0, {size}). Received: pad_id={pad}")
        return found + cls.dtype_problems(options)

    @staticmethod
    def dtype_problems(options: dict[str, Any]) -> list[str]:
        """What is wrong with the dtype, if anything."""
        try:
            keras.dtype_policies.get(options["dtype"])
        except (ValueError, TypeError):
            return [
                "`dtype` must be the name of a Keras dtype policy, such as 'float32' or 'mixed_bfloat16'. "
                f"Received: dtype={options['dtype']!r}"
            ]
        return []

    @classmethod
    def facts(cls, options: dict[str, Any]) -> dict[str, Any]:
        """What blocks may take for parameters of the same names."""
        return options

    @classmethod
    def example_inputs(cls, options: dict[str, Any], batch_size: int, length: int, rng) -> dict[str, np.ndarray]:
        """A small batch of random inputs by name, for the contract and for trying things out.

        Args:
            options: The model's options.
            batch_size: How many rows.
            length: How long each is, where the family has sequences.
            rng: A `numpy.random.Generator`.
        """
        return {"tokens": rng.integers(3, options["vocab_size"], (batch_size, length)).astype("int32")}

    @classmethod
    def typical_shapes(
        cls, options: dict[str, Any], batch_size: int, length: int | None = None
    ) -> dict[str, tuple[int, ...]]:  # fmt: skip
        """By name, the shapes of a batch that the model is made for: what costs are counted of.

        Args:
            options: The model's options.
            batch_size: How many rows.
            length: How long each is; None for `max_length`, and 128 in a family that has none.
        """
        length = options.get("max_length", 128) if length is None else length
        inputs = cls.example_inputs(options, batch_size, length, np.random.default_rng(0))
        return {name: array.shape for name, array in inputs.items()}

    def example_targets(self, inputs: dict[str, np.ndarray], rng):
        """Random targets for inputs that `example_inputs` gave: what `fit` takes beside them."""
        return self.head.example_targets((*list(inputs.values())[-1].shape[:2], self.options["dim"]), rng)

    def __init__(self, inputs, outputs, *, plan: config.Plan, head, name=None):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.options = plan.options
        self.head = head
        self.tokenizer = text.from_config(plan.options.get("tokenizer"))
        self.dtype_policy = keras.dtype_policies.get(plan.options["dtype"])
        self.own_loss = self.own_metrics = True
        self._adapted = False  # whether there are LoRA weights
        self.fixed = frozenset(w.path for w in self.weights if not w.trainable)  # those that never train

    # --- training

    def default_loss(self):
        """The loss of `compile` where none is given: the head's, unless the family has its own."""
        return self.head.default_loss()

    def default_metrics(self):
        """The metrics that go with it."""
        return self.head.default_metrics()

    def compile(self, optimizer="adamw", loss=None, *, metrics=None, **kwargs):
        """Keras's `compile`; without a `loss`, the head's own loss and metrics. Vectors are exempt from weight decay.

        Args:
            optimizer: A Keras optimizer or its name.
            loss: A Keras loss; None for the head's.
            metrics: Keras metrics; None for the head's, where the loss is the head's too.
            **kwargs: As for `keras.Model.compile`.
        """
        self.own_loss, self.own_metrics = loss is None, loss is None and metrics is None
        own = all(getattr(type(self), n) is getattr(Model, n) for n in ("default_loss", "default_metrics"))
        asked = any(kwargs.get(n) is not None for n in ("weighted_metrics", "loss_weights"))
        self.sees_logits = not (own and self.own_metrics) or asked
        if loss is None:
            loss = self.default_loss()
            if loss is None:
                raise ConfigError(
                    f"The head `{self.head.registry_entry.id}` has no loss of its own. Give one: compile(loss=...)"
                )
            metrics = self.default_metrics() if metrics is None else metrics
        optimizer = keras.optimizers.get(optimizer)
        if not compat.innermost(optimizer).built:
            vectors = [v for v in self.trainable_variables if len(v.shape) < 2]
            compat.keep_from_decay(optimizer, vectors)
        super().compile(optimizer, loss=loss, metrics=[] if metrics is None else metrics, **kwargs)

    def __setattr__(self, name, value):
        if name == "_jax_state":  # all weights at each step, among which Keras would look for layers
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @functools.wraps(keras.Model.fit)
    def fit(self, x=None, y=None, batch_size=None, *args, **kwargs):
        self.check_data(x, y)
        self._assert_compile_called("fit")
        if not fitting.in_one_graph(self):
            compat.build_optimizer(self)
        with self._training(x, batch_size), fitting.prompt_epochs():
            return super().fit(x, y, batch_size, *args, **kwargs)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, x, y=None, *args, **kwargs):
        self.check_data(x, y)
        self._assert_compile_called("train_on_batch")
        compat.build_optimizer(self)
        with self._training(x, WHOLE):
            return super().train_on_batch(x, y, *args, **kwargs)

    @contextlib.contextmanager
    def _training(self, x, batch_size):
        """Within the block, steps of training are traced and run; `fit` and `train_on_batch` share what is traced."""
        try:
            with (
                replicas.mended(self), compat.as_compiled(self), tracing.fusing(),
                fitting.one_pass_adam(self.optimizer), ahead.expecting(x, batch_size),
            ):  # fmt: skip
                yield
        except Exception:
            # A step that was traced halfway would refuse good data, too.
            self.train_function = self.test_function = None
            raise

    def _make_function(self, step_function, *args, **kwargs):
        nested = super()._make_function(step_function, *args, **kwargs)
        return fitting.one_graph(self, step_function, nested)

    def train_step(self, *args, **kwargs):
        with garbage.later():  # TensorFlow and JAX come here to trace a step
            return super().train_step(*args, **kwargs)

    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, x=None, y=None, *args, **kwargs):
        self.check_data(x, y)
        with replicas.mended(self), fitting.prompt_epochs(), compat.as_compiled(self):
            return super().evaluate(x, y, *args, **kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, x, y=None, *args, **kwargs):
        self.check_data(x, y)
        with replicas.mended(self), compat.as_compiled(self):
            return super().test_on_batch(x, y, *args, **kwargs)

    @functools.wraps(keras.Model.predict)
    def predict(self, x, *args, **kwargs):
        self.check_data(x, None)
        with fitting.prompt_epochs(), compat.as_compiled(self):
            return super().predict(x, *args, **kwargs)

    @functools.wraps(keras.Model.export)
    def export(self, *args, **kwargs):
        with kernels.portable():
            return super().export(*args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        if iterator is not None and self._distribute_strategy is not None:
            data_batch = replicas.specs(iterator)
        super()._maybe_symbolic_build(iterator if data_batch is None else None, data_batch)

    def check_data(self, x, y):
        """Raises `InputError` for arrays that the model cannot be trained on; data sets are checked as they come."""

    def check_finite(self, x):
        """Raises `InputError` for an array of floats with one that is not a number, or infinite."""
        if x.dtype.kind != "f" or not len(x):
            return
        parts = np.array_split(x, min(len(x), os.cpu_count() or 1))
        with concurrent.futures.ThreadPoolExecutor(len(parts)) as pool:  # one pass where nothing is wrong
            totals = list(pool.map(_total, parts))
        for part, total in zip(parts, totals, strict=True):
            for extreme in () if np.isfinite(total) else (part.min(), part.max()):
                if not np.isfinite(extreme):
                    raise InputError(f"The input must be finite numbers. Received: {extreme}")

    def check_tokens(self, x, y, vocab_size, max_length=None):
        """What a family of one token input asks of arrays: their shapes, and tokens that exist."""
        if not isinstance(x, np.ndarray):
            return
        if x.ndim != 2:
            raise InputError(f"The input must be tokens of shape (rows, length). Received: shape {x.shape}")
        if x.size and not (x.min() >= 0 and x.max() < vocab_size):
            wrong = x.min() if x.min() < 0 else x.max()
            raise InputError(f"Tokens must be in [0, {vocab_size}), as vocab_size={vocab_size} says. Received: {wrong}")
        if max_length is not None and x.shape[1] > max_length:
            raise InputError(
                f"The model has {max_length} positions. Cut the input, or build it with max_length={x.shape[1]}. "
                f"Received: {x.shape[1]} positions"
            )
        self.check_targets(y, (*x.shape, self.options["dim"]))

    def check_targets(self, y, features_shape, positions=None):
        """What the head asks of targets that are arrays: their names, their shapes, and labels that exist."""
        id = self.head.registry_entry.id
        known = {} if positions is None else {"positions_shape": positions.shape}
        if not hasattr(self.head, "target_spec"):
            return
        wanted = self.head.target_spec(features_shape, **known)
        if y is not None and isinstance(wanted, dict) and not (isinstance(y, dict) and set(y) == set(wanted)):
            found = ", ".join(map(str, y)) if isinstance(y, dict) else f"a {type(y).__name__}"
            raise InputError(f"The head `{id}` wants a dict of targets: {', '.join(wanted)}. Received: {found}")
        for name, (shape, count, ignore) in (wanted if isinstance(wanted, dict) else {None: wanted}).items():
            labels = y[name] if name and y is not None else y
            if not isinstance(labels, np.ndarray):
                continue
            if labels.shape[: len(shape)] != tuple(shape):
                raise InputError(
                    f"The head `{id}` wants targets of shape {tuple(shape)} for this input"
                    f"{f' as `{name}`' if name else ''}. Received: shape {labels.shape}"
                )
            wrong = labels[(labels < 0) | (labels >= count)]
            wrong = wrong if ignore is None else wrong[wrong != ignore]
            if self.own_loss and wrong.size:
                raise InputError(
                    f"Targets of the head `{id}` must be in [0, {count})"
                    f"{'' if ignore is None else f', or {ignore} where they do not count'}. Received: {wrong.flat[0]}"
                )

    def enable_lora(self, rank, *, alpha=None, only=None):
        """Low-rank adaptation by Keras's own `enable_lora`: from now on `W + alpha / rank * A B` stands for each `W`.

        Only the small `A` and `B` and the head are trained; all other weights of the body are frozen. Compile the
        model afterwards. A file holds the sum, so a saved and loaded model is an ordinary one with the same output;
        so is that of `with_head`.

        Args:
            rank: Rank of `A B`.
            alpha: Scale of `A B`; by default the rank.
            only: Parts of the paths of the layers that are adapted, such as `["attention"]`; None for every dense layer
                of the body. The embedding is not adapted.

        Returns:
            The paths of the layers that are adapted.

        Raises:
            InputError: The rank is not positive, no layer is named so, or it was done before.
        """
        if not isinstance(rank, int) or rank < 1:
            raise InputError(f"`rank` must be an integer of at least 1. Received: rank={rank!r}")
        if self._adapted:
            raise InputError("The model has LoRA weights already. Save and load it, and they are merged.")
        head = {id(part) for part in (self.head, *compat.parts_of(self.head))}
        chosen = [
            part for part in compat.parts_of(self)
            if isinstance(part, keras.layers.Dense | keras.layers.EinsumDense | keras.layers.Embedding)
            and id(part) not in head and part.trainable and (only is None or any(o in part.path for o in only))
        ]  # fmt: skip
        if not chosen:
            raise InputError(f"No dense layer of the body can be adapted. Received: only={only!r}")
        own = {id(w) for w in self.head.weights}
        for weight in self.weights:
            if id(weight) not in own:
                weight.trainable = False
        for part in chosen:
            part.enable_lora(rank, lora_alpha=alpha)
        self._adapted = True
        self.compiled = False  # an optimizer made before would know none of the new weights
        self.forget_traces()
        return sorted(part.path for part in chosen)

    def forget_traces(self):
        """Drops what was traced with other weights than the model has now."""
        self.train_function = self.test_function = self.predict_function = None

    def get_compile_config(self):
        if self._adapted:
            return None  # the file holds merged weights, which its optimizer never knew
        found = super().get_compile_config()
        if found and self.own_loss:
            found = {**found, "loss": None, **({"metrics": None} if self.own_metrics else {})}
        return found

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    # --- configuration

    def get_config(self):
        frozen = {"frozen": self.frozen()} if self.frozen() else {}
        return {**self.options, "name": self.name, "provenance": self.provenance, **frozen}

    def frozen(self):
        """The paths of the weights that somebody has frozen, other than by LoRA."""
        return [w.path for w in self.weights if not (w.trainable or self._adapted or w.path in self.fixed)]

    def freeze(self, paths):
        """Freezes the weights of these paths."""
        for weight in self.weights:
            weight.trainable = weight.trainable and weight.path not in paths

    @property
    def provenance(self) -> dict[str, dict[str, str]]:
        """By id: distribution and version of the family and of every block in a slot."""
        return saved.provenance(self)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        if wrong := checkpoint.unsound(config):
            raise FileFormatError(f"A saved `{cls.registry_entry.id}`: {wrong}")
        frozen = {*(config.pop("frozen", None) or ())}
        provenance = config.pop("provenance", None) or {}
        with registry.claims(provenance):
            model = cls(**saved.of_today(cls, config, provenance))
        model.freeze(frozen)
        return model

    def task_weights(self):
        """The weights that belong to the task, and are not copied when the head is exchanged."""
        return self.head.weights

    def with_head(self, head, **options):
        """A new model with another head; the body's weights are copied, nothing is shared.

        Args:
            head: Name of the head.
            **options: Its options, such as `num_classes=2`.
        """
        given = {k: v for k, v in self.options.items() if k != "name"}
        new = type(self)(**{**given, "head": {"name": head, **options}})
        body = self.learnt_weights()
        own = {id(w) for w in new.task_weights()}
        for weight in new.weights:
            if id(weight) not in own:
                weight.assign(ops.copy(body[weight.path]))  # JAX would share the array, and training gives it away
        return new

    def learnt_weights(self) -> dict[str, Any]:
        """By path: every weight that a model without LoRA would have, with what LoRA learnt added to it."""
        found = {w.path: w for w in self.weights if "/lora_" not in w.path}
        for part in compat.parts_of(self):
            if getattr(part, "lora_enabled", False) and hasattr(part, "kernel"):
                found[f"{part.path}/kernel"] = part.kernel
        return found

    def save(self, filepath, overwrite=True, **kwargs):
        """Keras's `save`; the file appears whole or not at all."""
        if not str(filepath).endswith(".keras"):
            raise InputError(f"A model is saved to a .keras file. Received: filepath={str(filepath)!r}")
        if self.compiled and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)  # or loading would find fewer variables than it needs
        with checkpoint.atomic(filepath) as temporary:
            if not overwrite and checkpoint.Path(filepath).exists():
                raise InputError(f"The file exists, and overwrite=False. Received: filepath={str(filepath)!r}")
            super().save(temporary, overwrite=True, **kwargs)


def _total(x):
    """The sum of an array, which is finite only if every number is."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.sum()
