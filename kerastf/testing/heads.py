"""The check of heads alone: their loss and metrics fit their outputs."""

import keras
import numpy as np

from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.subjects import DIM, LENGTH


@check("loss", ("head",), "its own loss and metrics take its own targets, and training brings the loss down")
def loss(subject):
    head = subject.make()
    inputs = subject.inputs(batch=8)
    targets = head.example_targets((8, LENGTH, DIM), np.random.default_rng(3))
    if head.default_loss() is None:
        if targets is not None or head.default_metrics():
            raise Broken("it has targets or metrics, but default_loss() returns None")
        raise NotAsked("it has no loss of its own")
    symbols = {n: keras.Input(a.shape[1:], dtype=str(a.dtype), name=n) for n, a in inputs.items()}
    model = keras.Model(symbols, head(*symbols.values()))
    model.compile(keras.optimizers.Adam(0.01), loss=head.default_loss(), metrics=head.default_metrics())
    before = model.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)
    model.fit(inputs, targets, epochs=8, batch_size=8, verbose=0)
    after = model.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)
    wrong = [name for name, value in {**before, **after}.items() if not np.isfinite(value)]
    if wrong:
        raise Broken(f"`{wrong[0]}` is not finite on its own targets")
    if after["loss"] >= before["loss"]:
        raise Broken(f"over 8 steps on one batch the loss went from {before['loss']:.4g} to {after['loss']:.4g}")
