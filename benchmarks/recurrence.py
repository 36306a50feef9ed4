"""A cell over time: the loop of the backend beside cuDNN's fused kernel, forward and backward, on a GPU.

    KERAS_BACKEND=jax python benchmarks/recurrence.py

Prints for each cell the largest difference of outputs and gradients, both times in milliseconds, and their ratio.
"""

import time

import keras
import numpy as np
from keras import ops

from kerastf import compat
from kerastf.blocks.recurrent import Recurrent

BATCH, TIME, WIDTH, ROUNDS = 128, 128, 512, 15


def program(layer, x, fused):
    """A function of no arguments that runs forward and backward and returns the sum of the gradients."""
    if keras.backend.backend() == "jax":
        import jax

        def loss(values, x):
            with keras.StatelessScope(zip(layer.variables, values, strict=True)):
                return ops.mean(layer.run(x)[0] ** 2)

        values = [v.value for v in layer.variables]
        run = jax.jit(jax.value_and_grad(loss))
        compat.has_cudnn, kept = (lambda: fused), compat.has_cudnn
        run(values, x)  # traced with or without
        compat.has_cudnn = kept
        return lambda: jax.block_until_ready(run(values, x))
    import torch

    def step():
        compat.has_cudnn, kept = (lambda: fused), compat.has_cudnn
        loss = ops.mean(layer.run(x)[0] ** 2)
        compat.has_cudnn = kept
        gradients = torch.autograd.grad(loss, [v.value for v in layer.variables])
        torch.cuda.synchronize()
        return loss, gradients

    return step


def main():
    if not compat.has_cudnn():
        raise SystemExit("No GPU with cuDNN on this backend.")
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(BATCH, TIME, WIDTH)).astype("float32"))
    for cell in ("lstm", "gru"):
        for reverse in (False, True):
            layer = Recurrent({"name": cell, "units": WIDTH}, reverse=reverse)
            layer(x[:1, :2])
            programs = [program(layer, x, fused) for fused in (False, True)]
            results = [[ops.convert_to_numpy(t) for t in keras.tree.flatten(p())] for p in programs]
            worst = max(np.abs(a - b).max() / (np.abs(a).max() + 1e-9) for a, b in zip(*results, strict=True))
            times = [[], []]
            for _ in range(ROUNDS):
                for one, found in zip(programs, times, strict=True):
                    start = time.perf_counter()
                    one()
                    found.append(1e3 * (time.perf_counter() - start))
            loop, fused = (float(np.median(t)) for t in times)
            print(f"{cell} reverse={reverse}: difference {worst:.1e}, loop {loop:.2f} ms, cuDNN {fused:.2f} ms, "
                  f"ratio {fused / loop:.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
