"""Trains families on JAX, on one device and spread over four, and prints how far their weights are apart.

Usage: KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=4 python sharded.py MODEL_PARALLEL FAMILY ...
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import cases
import keras

from kerastf import training

STEPS = 10


def train(make, feed):
    model = make()
    for batch in feed.batches:
        model.train_on_batch(*batch)
    return model, cases.weights(model)


def main():
    parts, families = int(sys.argv[1]), sys.argv[2:]
    for family in families:
        make, feed = cases.case(family, steps=STEPS)
        first = make()
        before, whole = cases.weights(first), train(make, feed)[1]
        keras.distribution.set_distribution(training.layout(first, model_parallel=parts))
        model, spread = train(make, feed)
        cut = {
            v.path: [list(v.shape), list(v.value.addressable_shards[0].data.shape)]
            for v in [*model.weights, *model.optimizer.variables]
            if v.value.addressable_shards[0].data.shape != tuple(v.shape)
        }
        keras.distribution.set_distribution(None)
        found = {"distance": cases.distance(whole, spread), "moved": cases.distance(before, whole), "cut": cut}
        found["sizes"] = {w.path: math.prod(w.shape) for w in model.weights}
        print("found", json.dumps({family: found}), flush=True)


if __name__ == "__main__":
    main()
