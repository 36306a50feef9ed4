"""A text file larger than memory: does a training on it keep its memory flat, and does it ever wait for data?

Makes a file of generated text, trains a small GPT on it, prints the resident memory as the steps go by, and compares a
step with a step on one batch that is always the same. Fails where memory grows by more than 200 MB.

Command:  python benchmarks/streaming.py --gigabytes 5
Minutes:  5 on two cores, one of them to write the file
"""

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import keras

import kerastf
from kerastf import data

LENGTH, BATCH = 128, 16


def write(path, size):
    """A file of so many bytes: blocks of generated text in random order."""
    rng, blocks = random.Random(0), [data.corpus(2**20, seed=n).encode() for n in range(8)]
    with open(path, "wb") as file:
        while file.tell() < size:
            file.write(rng.choice(blocks))


def resident():
    """Megabytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Watch(keras.callbacks.Callback):
    """Notes the memory every so many steps."""

    def __init__(self, every):
        super().__init__()
        self.every, self.found, self.times = every, [], []

    def on_train_batch_end(self, batch, logs=None):
        self.times.append(time.perf_counter())
        if batch % self.every == 0:
            self.found.append((batch, resident()))
            print(f"  step {batch:4}  {self.found[-1][1]:7.0f} MB", flush=True)


def milliseconds(times):
    """A step's time, the first twenty not counted."""
    return 1000 * (times[-1] - times[20]) / (len(times) - 21)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0, help="how large the file is")
    parser.add_argument("--steps", type=int, default=200, help="how many steps to train")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        start = time.perf_counter()
        write(path, options.gigabytes * 2**30)
        print(f"wrote {path.stat().st_size / 2**30:.2f} GB in {time.perf_counter() - start:.0f} s")
        start = time.perf_counter()
        found = data.load(path, task="language", tokenizer="characters", length=LENGTH, batch_size=BATCH)
        print(f"load: {time.perf_counter() - start:.2f} s, {found.options['vocab_size']} tokens")
        start = time.perf_counter()
        for _ in found.train.dataset(start=10**6).take(1):
            print(f"batch of step 1,000,000: after {time.perf_counter() - start:.2f} s")
        start = time.perf_counter()
        for _ in found.train.dataset().take(400):
            pass
        print(f"feed alone: {400 / (time.perf_counter() - start):.0f} batches of {BATCH} x {LENGTH} per second")
        model = kerastf.create_model("gpt.nano", tokenizer=found.tokenizer, max_length=LENGTH)
        model.compile("adamw")
        watch, same = Watch(every=20), Watch(every=10**9)
        options_of_fit = {"epochs": 1, "steps_per_epoch": options.steps, "verbose": 0, "shuffle": False}
        history = model.fit(found.train.dataset(), callbacks=[watch], **options_of_fit).history
        model.fit(found.train.dataset().take(1).cache().repeat(), callbacks=[same], **options_of_fit)
        grown = watch.found[-1][1] - watch.found[1][1]
        fed, held = milliseconds(watch.times), milliseconds(same.times)
        print(f"loss {history['loss'][0]:.2f}; memory grew by {grown:.0f} MB from step 20 to step {watch.found[-1][0]}")
        print(f"a step: {fed:.1f} ms from the file, {held:.1f} ms on a batch that is at hand: {fed / held:.2f} times")
        return int(abs(grown) > 200)


if __name__ == "__main__":
    sys.exit(main())
