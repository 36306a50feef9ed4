"""A training step that goes from the features to the loss: the logits of a large vocabulary never exist as a whole.

Shapes: B batch, T time, C channels, V vocabulary.
"""

import contextlib
import contextvars
import math

import keras

LARGE = 2**22  # logits; below, they are as fast as a whole

_running = contextvars.ContextVar("running", default=None)


def running(model):
    """The step of the model that goes on now, if it goes from the features to the loss; else None."""
    step = _running.get()
    return step if step is not None and step.model is model else None


@contextlib.contextmanager
def step(model, data):
    """Within the block, `model` computes features only, and its loss from them, where that serves."""
    if not _serves(model, data):
        yield
        return
    token = _running.set(Step(model))
    try:
        yield
    finally:
        _running.reset(token)


def _serves(model, data):
    """Whether the head has such a loss, nobody else looks at the logits, and there are many of them."""
    _, targets, _ = keras.utils.unpack_x_y_sample_weight(data)
    if keras.backend.backend() != "tensorflow" or not (model.own_loss and model._own_metrics):
        return False
    if not hasattr(model.head, "loss_of") or model.head.label_smoothing or not hasattr(targets, "shape"):
        return False
    return math.prod(n or 32 for n in targets.shape) * model.head.vocab_size >= LARGE


class Step:
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

    def loss(self, features, targets, sample_weight):
        """The head's loss."""
        loss, self.chosen = self.model.head.loss_of(features, targets, sample_weight)
        return loss
