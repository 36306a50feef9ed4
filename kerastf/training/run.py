"""A recipe becomes a run: model, data and optimizer, one `model.fit`, and around it what keeps the run from being lost.

The whole run is one epoch of `fit`; a callback evaluates, saves and stops at multiples of steps. So the state at any
step is a checkpoint to go on from, and a run that was killed ends with the bits of one that was not.
"""

import contextlib
import io
import math
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import keras
import numpy as np

from kerastf import compat, text
from kerastf.checkpoint import load_model
from kerastf.errors import ConfigError
from kerastf.supervisor import beat
from kerastf.training import checkpoints
from kerastf.training.assemble import build, load_data, load_start, precision
from kerastf.training.callbacks import kept, make_callbacks
from kerastf.training.devices import distribute, distribute_once, is_chief, strategy, wait_for_all
from kerastf.training.folder import RunFolder
from kerastf.training.progress import Progress, duration
from kerastf.training.recipe import better, check, gather, make_optimizer


class TrainingStopped(ArithmeticError):
    """The loss became infinite or no number; the message says at which step, and which model is kept."""


def train(source, out=None, *, settings=(), fresh=False, stream=None):
    """Trains what a recipe says, in a folder of its own; called again after a kill, it goes on.

    Args:
        source: A recipe (`.toml`), a model such as `"gpt.nano"`, or a mapping of tables.
        out: The folder of the run; by default `runs/` and the recipe's name.
        settings: Texts such as `"training.steps=500"`, which win over the recipe.
        fresh: Whether to throw away what is in the folder.
        stream: Where progress is written; by default the standard output.

    Returns:
        The results: the metrics of the best model, by name.

    Raises:
        ConfigError: The recipe is wrong, or the folder holds another run.
        TrainingStopped: The loss is no number any more.
    """
    tables, name = gather(source, settings)
    # First of all: to check a recipe makes an optimizer, and with its first variable TensorFlow's devices are settled.
    chosen, chief = _devices(tables), is_chief()
    recipe = check(tables, name)
    folder = RunFolder(out or Path("runs") / recipe.name)
    stream = (stream or sys.stdout) if chief else io.StringIO()
    fresh = fresh and not folder.began_here()
    exact = compat.same_bits(recipe.training["deterministic"])
    with folder.opened(recipe, fresh=fresh) if chief else contextlib.nullcontext(), exact:
        wait_for_all(chosen)  # of several workers one writes, and the others look at the folder after it
        if folder.results.exists() and not fresh:
            results = folder.read_json("results.json")
            print(f"{folder.path} is finished: {_show(results)}. --fresh trains anew.", file=stream)
            return results
        scope = contextlib.nullcontext() if chosen is None else chosen.scope()
        with precision(recipe.training["precision"]), scope:
            keras.utils.set_random_seed(recipe.training["seed"])
            base = load_start(recipe)
            found = load_data(recipe, base)
            model = build(recipe, found, base)
            model.compile(make_optimizer(recipe.tables), jit_compile=recipe.training["jit_compile"])
            # A model may do several steps at a time; the run must be able to stop where it evaluates, saves and ends.
            stops = (recipe.training[k] for k in ("evaluate_every", "save_every", "steps"))
            model.steps_per_execution = math.gcd(model.steps_per_execution, *stops)
            _check_monitor(recipe.training["monitor"], model, found)
            if chief:  # only now, when nothing is wrong with data and model, what an earlier run left may go
                folder.claim(recipe, fresh=fresh)
            wait_for_all(chosen)
            last = checkpoints.restore(folder.checkpoints, model, tell=lambda text: print(text, file=stream))
        return _train(recipe, folder, found, model, last, stream, chosen, chief)


def _devices(tables):
    """The strategy that a recipe asks for; None on backends that have none."""
    training = tables.get("training")
    devices = training.get("devices", "auto") if isinstance(training, Mapping) else "auto"
    if devices == "auto" and keras.backend.backend() != "tensorflow":
        return None
    return strategy(devices)


def _train(recipe, folder, found, model, last, stream, chosen, chief):
    total = recipe.training["steps"]
    step, state, metrics = last
    if chief:
        _write_words(folder, found)
        folder.keep_rows(step)
    progress = Progress(total, found.train.units, found.train.unit, stream=stream)
    name = recipe.model.get("name") or recipe.model["start"]
    progress.say(f"{name}: {model.count_params():,} parameters, {total:,} steps, in {folder.path}")
    if step:
        progress.say(f"Going on from step {step}.")
    runner = Runner(recipe, folder, found, progress, step, state or {}, metrics, chosen, chief)
    if step < total and not runner.state.get("stopped"):
        with runner.signals():
            feed = found.train.dataset(start=step) if chosen is None else distribute(chosen, found.train, start=step)
            model.fit(
                feed, steps_per_epoch=total - step, epochs=1, verbose=0, shuffle=False,
                callbacks=[runner],
            )  # fmt: skip
    if runner.failure:
        raise TrainingStopped(runner.failure)
    if runner.interrupted:
        raise KeyboardInterrupt(f"stopped at step {runner.step}; the same command goes on")
    return _finish(folder, found, model, progress, progress.step_seconds(runner.step)) if chief else {}


def _check_monitor(monitor, model, found):
    """Refuses a metric that will not be measured, before the first step."""
    metrics = model.head.default_metrics()
    if isinstance(metrics, Mapping):  # a head of several outputs
        names = [
            "loss",
            *(f"{o}_{n}" for o, measured in metrics.items() for n in ("loss", *(m.name for m in measured))),
        ]
    else:
        names = ["loss", *(m.name for m in metrics)]
    known = [*names, *(f"val_{n}" for n in names if found.valid is not None)]
    if monitor not in known and monitor != "val_loss":  # which gives way to `loss` without validation
        raise ConfigError(f"[training]: `monitor` must be one of {', '.join(known)}. Received: monitor={monitor!r}")


def _write_words(folder, found):
    tokenizers = found.tokenizer if isinstance(found.tokenizer, tuple | list) else [found.tokenizer]
    configs = [t.get_config() for t in tokenizers if isinstance(t, text.Tokenizer)]
    if configs:
        folder.write_json("tokenizer.json", configs[0] if len(configs) == 1 else configs)
    if found.classes:
        folder.write_json("labels.json", found.classes)


def _finish(folder, found, model, progress, step_seconds):
    model.save(folder.path / "last.keras")
    best = load_model(folder.model_path("best"), compile=False)
    best.compile()
    rows = folder.rows()
    results = {"step": rows[-1]["step"], "best_step": folder.read_json("best.json").get("step")}
    for part, feed in (("val", found.valid), ("test", found.test)):
        if feed is not None:
            measured = best.evaluate(feed.once(), verbose=0, return_dict=True)
            results |= {f"{part}_{k}": float(v) for k, v in measured.items()}
    results["loss"] = rows[-1]["loss"]
    results["step_seconds"] = step_seconds and round(step_seconds, 6)
    results["seconds"] = round(sum(r["seconds"] for r in rows), 1)
    draw(folder)
    folder.write_json("results.json", results)
    progress.say(f"Finished in {duration(results['seconds'])}: {_show(results)}")
    return results


def draw(folder):
    """Draws the curves of a run, where matplotlib is installed."""
    from kerastf import plots

    with contextlib.suppress(ImportError):
        plots.run_curves(folder.rows(), path=folder.path / "curves.png", title=folder.path.name)


def _show(results):
    apart = ("step", "best_step", "step_seconds", "seconds")
    return ", ".join(f"{k} {v:.4g}" for k, v in results.items() if k not in apart)


class Runner(keras.callbacks.Callback):
    """Evaluates, writes down, saves, stops: what happens between the steps of a run."""

    def __init__(self, recipe, folder, found, progress, start, state, metrics, chosen=None, chief=True):
        super().__init__()
        self.recipe, self.folder, self.found, self.progress = recipe, folder, found, progress
        self.chosen, self.chief = chosen, chief
        self.start = self.step = start
        self.state = {"best": None, "waited": 0, "callbacks": {}, "stopped": False, **state}
        self.metrics = metrics
        training = recipe.training
        self.total = training["steps"]
        self.evaluate_every, self.save_every = training["evaluate_every"], training["save_every"]
        self.interrupted, self.failure = False, ""
        self.clock = time.monotonic()
        self.others = []

    @contextlib.contextmanager
    def signals(self):
        """The first Ctrl-C (or TERM) ends the run after the step that is under way; the second at once."""

        def interrupt(number, frame):
            if self.interrupted:
                raise KeyboardInterrupt
            self.interrupted = True

        before = {}
        with contextlib.suppress(ValueError):  # in a thread there are no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, interrupt)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_begin(self, logs=None):
        self.others = make_callbacks(self.recipe.tables.get("callbacks", []))
        for i, callback in enumerate(self.others):
            callback.set_model(self.model)
            callback.set_params({"epochs": -(-self.total // self.evaluate_every), "steps": self.evaluate_every})
            callback.on_train_begin()
            vars(callback).update(self.state["callbacks"].get(str(i), {}))
            callback.on_epoch_begin(self.start // self.evaluate_every)
        self.board = compat.event_writer(self.folder.path / "tensorboard") if self.chief else None

    def on_epoch_begin(self, epoch, logs=None):
        # `fit` has just forgotten what the metrics had summed up when the run was stopped.
        if self.metrics:
            compat.build_metrics(self.model, next(iter(self.found.train.dataset(start=self.start))))
            for variable, value in zip(self.model.metrics_variables, self.metrics, strict=True):
                variable.assign(value)

    def on_train_end(self, logs=None):
        for callback in self.others:
            callback.on_train_end(logs)

    def on_train_batch_end(self, batch, logs=None):
        self.step = self.start + batch + 1
        beat()
        shown = {k: float(v) for k, v in logs.items()}
        if not math.isfinite(shown["loss"]):
            return self._fail(f"The loss is {shown['loss']} at step {self.step}")
        self.progress.step(self.step, shown)
        last = self.step == self.total
        if self.step % self.evaluate_every == 0 or last:
            self._evaluate(shown)
        if self.step % self.save_every == 0 or last or self.interrupted or self.state["stopped"]:
            with self.progress.pause():
                self._save()
        if self.interrupted or self.state["stopped"]:
            self.model.stop_training = True
        return None

    def _evaluate(self, logs):
        compat.settle(self.model)
        row = {"step": self.step, **logs}
        if self.found.valid is not None:
            with self.progress.pause(), compat.averaged_weights(self.model):
                rows, steps = distribute_once(self.chosen, self.found.valid)
                found = self.model.evaluate(rows, steps=steps, verbose=0, return_dict=True)
            row |= {f"val_{k}": float(v) for k, v in found.items()}
        row["rate"] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        now = time.monotonic()
        row["seconds"], self.clock = round(now - self.clock, 3), now
        if self.chief:
            self.folder.add_row(row)
        values = "  ".join(f"{k} {v:.4g}" for k, v in row.items() if k not in ("step", "seconds", "rate"))
        self.progress.say(f"step {self.step:>{len(str(self.total))}}  {values}  {self.progress.pace(self.step)}")
        if self.board is not None:
            self.board(self.step, {k: v for k, v in row.items() if k not in ("step", "seconds")})
        self._judge(row)
        for i, callback in enumerate(self.others):  # to them, what lies between two evaluations is an epoch
            callback.on_epoch_end((self.step - 1) // self.evaluate_every, row)
            self.state["callbacks"][str(i)] = kept(callback)
        if self.model.stop_training:
            self.state["stopped"] = True
        elif not self.state["stopped"] and self.step < self.total:
            for callback in self.others:
                callback.on_epoch_begin(self.step // self.evaluate_every)
        self.model.reset_metrics()

    def _judge(self, row):
        monitor = self.recipe.training["monitor"]
        if self.found.valid is None and monitor == "val_loss":
            monitor = "loss"
        if better(monitor, row[monitor], self.state["best"]):
            self.state |= {"best": row[monitor], "waited": 0}
            if self.chief:
                with self.progress.pause(), compat.averaged_weights(self.model):
                    self.model.save(self.folder.path / "best.keras")
                self.folder.write_json("best.json", {"step": self.step, monitor: row[monitor]})
        else:
            self.state["waited"] += 1
            patience = self.recipe.training["patience"]
            if patience is not None and self.state["waited"] >= patience and not self.state["stopped"]:
                self.progress.say(f"No better {monitor} in {patience} evaluations: the run ends at step {self.step}.")
                self.state["stopped"] = True

    def _save(self):
        compat.settle(self.model)
        if not self.chief:
            checkpoints.look(self.model)
            return
        try:
            checkpoints.save(
                self.folder.checkpoints, self.step, self.model, self.state, keep=self.recipe.training["keep"]
            )
        except checkpoints.NotFinite as error:
            self._fail(f"After step {self.step} the variable {error} holds what is no number")
            return
        if self.interrupted:
            with compat.averaged_weights(self.model):
                self.model.save(self.folder.path / "last.keras")

    def _fail(self, what):
        """Stops, keeps the batch and the last model that was sound."""
        self.model.stop_training = True
        self.failure = f"{what}."
        if not self.chief:
            return
        batch = next(iter(self.found.train.dataset(start=self.step - 1)))
        arrays = [np.asarray(a) for a in keras.tree.flatten(batch)]
        np.savez(self.folder.path / "bad_batch.npz", *arrays)
        compat.settle(self.model)
        good, _, _ = checkpoints.restore(self.folder.checkpoints, self.model, tell=self.progress.say)
        kept = "no model was saved before"
        if good:
            with compat.averaged_weights(self.model):
                self.model.save(self.folder.path / "last.keras")
            kept = f"last.keras holds the model of step {good}, the last sound one"
        self.failure = f"{what}; its batch is in bad_batch.npz; {kept}. A lower rate or clipnorm may help."
