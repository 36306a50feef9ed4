"""A training step that goes from the features to the loss: the logits of a large vocabulary never exist as a whole.

Shapes: B batch, T time, C channels, V vocabulary.
"""

import contextlib
import contextvars
import math

import keras

from kerastf import compat

# Logits; below, they are as fast as a whole.
LARGE = 2**18 if keras.backend.backend() == "tensorflow" else 2**22
BATCH = 32  # rows where a batch may have any number
TOUCHED = ("call", "compute_loss", "compute_metrics")  # what a step from features goes through in place of Keras's

_running = contextvars.ContextVar("running", default=None)


class FromFeatures(keras.Model):
    """The part of a model that may go from the features to the loss, without the head's logits.

    `compile` sets `sees_logits`: whether a loss or metric that is not the head's own looks at them.
    """

    sees_logits = True

    def train_step(self, *args, **kwargs):
        with _step(self, args[-1]):
            return super().train_step(*args, **kwargs)

    def test_step(self, *args, **kwargs):
        with _step(self, args[-1]):
            return super().test_step(*args, **kwargs)

    def call(self, inputs, training=None, mask=None):
        step = _step_of(self)
        return step.features(inputs, training) if step else super().call(inputs, training=training, mask=mask)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        step = _step_of(self)
        if not step:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        added = (self._aggregate_additional_loss(loss) for loss in self.losses)
        return sum(added, start=step.loss(y_pred, y, sample_weight, training))

    def compute_loss_and_updates(self, *args, **kwargs):  # JAX's name for all that a step differentiates
        loss, (unscaled, y_pred, *rest) = super().compute_loss_and_updates(*args, **kwargs)
        step = _step_of(self)
        return loss, (unscaled, step.given_to_metrics() if step else y_pred, *rest)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        step = _step_of(self)
        chosen = step.given_to_metrics() if step else None
        return super().compute_metrics(x, y, y_pred if chosen is None else chosen, sample_weight)


def _step_of(model):
    """The step of the model that goes on now, if it goes from the features to the loss; else None."""
    step = _running.get()
    return step if step is not None and step.model is model else None


def _step(model, data):
    """Within the block, `model` computes features only, and its loss from them, where that serves."""
    return compat.switched(_running, _Step(model)) if _serves(model, data) else contextlib.nullcontext()


def _serves(model, data):
    """Whether the head has such a loss, nobody else looks at the logits, and there are many of them."""
    _, targets, _ = keras.utils.unpack_x_y_sample_weight(data)
    if keras.distribution.distribution() is not None:
        return False  # rows lie on several devices, and pieces of rows would be computed by one at a time
    if keras.backend.backend() == "torch" or model.sees_logits or not hasattr(targets, "shape"):
        return False
    if any(getattr(type(model), name) is not getattr(FromFeatures, name) for name in TOUCHED):
        return False  # a class of somebody's own looks at the logits
    if not _is_own(type(model.head)) or model.head.label_smoothing or model.head.compute_dtype == "float16":
        return False  # gradients of float16 are found scaled, and here they are scaled when they are found
    return math.prod(n or BATCH for n in targets.shape) * model.head.vocab_size >= LARGE


def _is_own(head):
    """Whether `loss_of` comes from the class that says what the head gives, and what its loss and metrics are."""

    def owner(name):
        return next((cls for cls in head.__mro__ if name in vars(cls)), None)

    found = owner("loss_of")
    return found is not None and all(owner(n) is found for n in ("call", "default_loss", "default_metrics"))


class _Step:
    """One step of a model: its features, its loss, and the tokens that it found likeliest, in this order."""

    def __init__(self, model):
        self.model = model
        self.chosen = None

    def features(self, inputs, training):
        """What the model would give its head: `(B, T, C)`."""
        body = vars(self.model).get("_body")
        if body is None:
            read = self.model.head.input  # features, and a mask where there is one
            body = keras.Model(self.model.input, read[0] if isinstance(read, list | tuple) else read)
            vars(self.model)["_body"] = body  # Keras would track it as a layer
        return body(inputs, training=training)

    def loss(self, features, targets, sample_weight, training):
        """The head's loss."""
        loss, self.chosen = self.model.head.loss_of(features, targets, sample_weight, training=training)
        return loss

    def given_to_metrics(self):
        """The likeliest tokens, once: JAX must not see them again outside of what it differentiates."""
        chosen, self.chosen = self.chosen, None
        return chosen
