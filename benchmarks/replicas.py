"""Tokens per second with 1, 2 and 4 replicas, per replica and in all. Run: python benchmarks/replicas.py [DEVICES ...]

Without arguments: one CPU device, then two and four logical ones. These share the machine's cores, so that the whole
cannot become faster than the cores allow; what the figures show is what the exchange of gradients costs. On a machine
with GPUs: python benchmarks/replicas.py gpu:1 gpu:2 gpu:4
"""

import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

ROWS, LENGTH, STEPS = 8, 64, 30  # rows per replica: the work of a replica is the same however many there are


def measure(devices):
    """Trains a small GPT and prints its speed after the first step, which is compiled."""
    from kerastf import training

    strategy = training.strategy(devices)
    import keras
    import numpy as np
    import tensorflow as tf

    import kerastf

    count = strategy.num_replicas_in_sync
    tokens = np.random.default_rng(0).integers(0, 256, (ROWS * count, LENGTH + 1)).astype("int32")

    def batches(start=0, shard=(0, 1)):
        index, parts = shard
        rows = np.array_split(tokens, parts)[index]
        return tf.data.Dataset.from_tensors((rows[:, :-1], rows[:, 1:])).repeat()

    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = kerastf.create_model("gpt", vocab_size=256, max_length=LENGTH, dim=128, num_layers=4, num_heads=4)
        model.compile("adamw")
    data = training.distribute(strategy, batches)
    model.fit(data, steps_per_epoch=3, verbose=0, shuffle=False)
    start = time.perf_counter()
    model.fit(data, steps_per_epoch=STEPS, verbose=0, shuffle=False)
    seconds = time.perf_counter() - start
    whole = ROWS * count * LENGTH * STEPS / seconds
    print(f"{devices:<8} {count} replicas {whole:10.0f} tokens/s {whole / count:10.0f} per replica", flush=True)


def main():
    if sys.argv[1:2] == ["--measure"]:
        return measure(sys.argv[2])
    for devices in sys.argv[1:] or ("cpu", "cpu:2", "cpu:4"):
        subprocess.run([sys.executable, __file__, "--measure", devices], check=True)


if __name__ == "__main__":
    main()
