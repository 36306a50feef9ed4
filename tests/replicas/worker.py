"""A worker process of the tests: trains a family with the others and writes what came out.

Usage: TF_CONFIG=... python worker.py OUT FAMILY STEPS [--plain]
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

from kerastf import training


def plain_failure(strategy, built=False):
    """What Keras says to a fit of its own under several workers, without our mends. "" when it works."""
    import keras
    import tensorflow as tf

    class Model(keras.Sequential):
        def _maybe_symbolic_build(self, iterator=None, data_batch=None):
            batch = (keras.KerasTensor((2, 2)), keras.KerasTensor((2, 1))) if built else data_batch
            super()._maybe_symbolic_build(None if built else iterator, batch)

    with strategy.scope():
        model = Model([keras.layers.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
    data = strategy.distribute_datasets_from_function(
        lambda context: tf.data.Dataset.from_tensors((np.ones((2, 2), "float32"), np.ones((2, 1), "float32"))).repeat()
    )
    try:
        model.fit(data, steps_per_epoch=1, verbose=0, shuffle=False)
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:300]}"
    return ""


def main():
    out, family, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    strategy = training.strategy("auto")
    import cases

    found = {"replicas": strategy.num_replicas_in_sync, "kind": type(strategy).__name__}
    if "--plain" in sys.argv:
        found["plain"] = plain_failure(strategy)
        found["plain but built"] = plain_failure(strategy, built=True)
    model, weights, loss, moved = cases.train(strategy, family, steps=steps)
    found |= {"loss": loss, "moved": float(moved)}
    _, feed = cases.case(family, steps=3)
    found["evaluated"] = model.evaluate(training.distribute(strategy, feed), steps=3, verbose=0, return_dict=True)
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    np.savez(f"{out}/weights_{index}.npz", **weights)
    Path(out, f"found_{index}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
