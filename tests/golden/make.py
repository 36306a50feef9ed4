"""Writes a small saved model of every family with its output, as the installed version saves it.

Command: python tests/golden/make.py FAMILY...     (all that have no file yet, where none is named)

A file that is here stays as it is: it stands for what users have saved. Write one when a family is added.
"""

import sys
from pathlib import Path

import keras
import numpy as np

from kerastf import config, registry
from kerastf.testing.subjects import ModelSubject, joined

FOLDER = Path(__file__).parent


def write(family):
    subject = ModelSubject(family, {})
    smaller = {"num_layers": 1, "dim": 8, "num_heads": 2, "mlp_dim": 8, "units": 8, "pooler_dim": 8}
    subject.options |= {k: v for k, v in smaller.items() if k in subject.options}
    keras.utils.set_random_seed(11)
    model = config.build_model(family, **subject.options)
    inputs = subject.inputs()
    model.compile(keras.optimizers.SGD(0.5))
    targets = model.example_targets(inputs, np.random.default_rng(3))
    x = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    if targets is not None:
        model.fit(x, targets, batch_size=3, verbose=0)
    output = keras.ops.convert_to_numpy(joined(subject.raw(model, inputs)))
    model.save(FOLDER / f"{family}.keras")
    np.savez_compressed(FOLDER / f"{family}.npz", output=output, **inputs)


def main():
    families = sys.argv[1:] or [e.id for e in registry.entries("model") if not e.namespace]
    for family in families:
        if not (FOLDER / f"{family}.keras").exists():
            write(family)
            print(family, (FOLDER / f"{family}.keras").stat().st_size, "bytes")


if __name__ == "__main__":
    main()
