"""A worker that saves every few steps, and goes on from the last checkpoint that all workers have.

Usage: TF_CONFIG=... python resuming.py FOLDER STEPS [INDEX STEP: worker INDEX kills itself once, after STEP]
"""

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np

from kerastf import checkpoint, training
from kerastf.supervisor import beat

EVERY = 4


def main():
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    config = json.loads(os.environ["TF_CONFIG"])
    index, count = config["task"]["index"], len(config["cluster"]["worker"])
    victim, moment = (int(a) for a in sys.argv[3:5]) if len(sys.argv) > 3 else (None, None)
    strategy = training.strategy("auto")
    import cases
    import keras

    make, feed = cases.case("gpt", steps=steps, dropout=0.1)
    with strategy.scope():
        model = make()
        model.optimizer.build(model.trainable_variables)
    every = [*model.variables, *model.optimizer.variables]
    saved = [{int(p.stem) for p in (folder / str(i)).glob("[0-9]*.npz")} for i in range(count)]
    start = max(set.intersection(*saved), default=0)
    if start:
        with np.load(folder / str(index) / f"{start}.npz") as arrays:
            for i, variable in enumerate(every):
                variable.assign(arrays[str(i)])
    print(f"starts at step {start}", flush=True)

    class Save(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            beat()
            step = start + batch + 1
            if step % EVERY == 0 or step == steps:
                path = folder / str(index) / f"{step}.npz"
                path.parent.mkdir(parents=True, exist_ok=True)
                with checkpoint.atomic(path) as temporary, open(temporary, "wb") as file:
                    np.savez(file, **{str(i): keras.ops.convert_to_numpy(v) for i, v in enumerate(every)})
            once = folder / "killed"
            if index == victim and step == moment and not once.exists():
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    data = training.distribute(strategy, feed, start=start)
    if start < steps:
        model.fit(data, steps_per_epoch=steps - start, shuffle=False, verbose=0, callbacks=[Save()])
    print("ends", flush=True)


if __name__ == "__main__":
    main()
