"""Training with `fit`, for every contestant that is a Keras model."""

import keras

from peers import data


class Training:
    """Runs `fit` of a compiled model.

    Args:
        model: The model.
        case: The case.
        pair: Turns the arrays of the case into what the model takes and what it is to predict.
        fit: Runs an epoch; None for the model's own `fit`.
    """

    def __init__(self, model, case, pair, fit=None):
        self.model, self.case, self.pair, self.fit = model, case, pair, fit or model.fit
        self.feeds = {}

    def build_optimizer(self):
        """Makes the optimizer's variables, which otherwise the first step does."""
        self.model.optimizer.build(self.model.trainable_variables)

    def run(self, steps):
        """So many steps: one epoch of `fit`, as a user runs it."""
        if steps not in self.feeds:
            self.feeds[steps] = _feed(self.pair(data.arrays(self.case, steps)), self.case["batch"])
        self.fit(**self.feeds[steps], verbose=0)


def _feed(pair, batch):
    """What `fit` is given: a data set on TensorFlow, arrays elsewhere."""
    if keras.backend.backend() != "tensorflow":
        return {"x": pair[0], "y": pair[1], "batch_size": batch, "shuffle": False}
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # with the autotuner on, the end of a short epoch waits for its next tick
    return {"x": tf.data.Dataset.from_tensor_slices(pair).batch(batch, drop_remainder=True).with_options(options)}


class Writing:
    """Runs generation: `write()` makes all new tokens and gives them back as an array."""

    def __init__(self, write):
        self.write = write

    def run(self, steps):
        """So many calls."""
        for _ in range(steps):
            self.write()
