"""The checks of heads alone: their loss and metrics fit their outputs, and they read what they say they do."""

import keras
import numpy as np
from keras import ops

from kerastf.testing.generic import TOLERANCE
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.subjects import DIM, LENGTH, difference


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


@check("reads", ("head",), "features of positions that it declares not to read change nothing, and may be missing")
def reads(subject):
    head = subject.make()
    declared = getattr(head, "reads", "all")
    if declared == "all":
        raise NotAsked("it reads the features of all positions")
    inputs = subject.inputs()
    x, rest = inputs["x"], {}
    few = x[:, :1]
    if declared == "positions":
        asked = np.array([[LENGTH - 1, 1], [2, 2], [0, 3]], dtype="int32")  # (B, M)
        few = np.concatenate([few, np.take_along_axis(x, asked[..., None], axis=1)], axis=1)
        rest = {"whole": {"positions": asked}, "few": {"positions": np.array([[1, 2]] * len(x), dtype="int32")}}
    elif declared != "first":
        raise Broken(f"`reads` must be 'first', 'positions' or 'all'. Received: {declared!r}")

    def call(features, which):
        known = {name: ops.convert_to_tensor(v) for name, v in rest.get(which, {}).items()}
        return subject.call(head, {**inputs, "x": features}, **known)

    gap = difference(call(few, "few"), call(x, "whole"))
    if gap > TOLERANCE:
        raise Broken(f"it declares reads={declared!r}; without the features of other positions it differs by {gap:.2g}")
