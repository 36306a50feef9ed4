"""Ablations: one recipe, a grid of choices, several seeds; matched runs, and a table of what the choices cost and give.

OUT/rows/NAME.toml         the recipe of a row: `kerastf train` with it and `--set training.seed=1` gives that run again
OUT/runs/NAME/seed-1/      the folder of a run
OUT/logs/NAME.seed-1.txt   what the run printed
OUT/ablation.json          the table as data
OUT/ablation.png           the same as a picture
"""

import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerastf.checkpoint import atomic, inspect
from kerastf.counting import cost, in_columns, in_units
from kerastf.errors import ConfigError
from kerastf.training.folder import RunFolder, differences
from kerastf.training.progress import duration
from kerastf.training.recipe import check, gather, larger_is_better


@dataclass
class Row:
    """One combination of choices, and what came of it.

    Attributes:
        name: Its name, from the choices.
        choices: By setting: the value.
        tables: Its recipe.
        results: By seed: the results of the run.
        failures: By seed: the last line of a run that failed.
        parameters: How many weights the model has.
        flops: Arithmetic of a training step, three times that of a forward pass of a batch.
        curves: By seed: the monitored metric over the steps.
    """

    name: str
    choices: dict[str, Any]
    tables: dict[str, Any]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    parameters: int = 0
    flops: int = 0
    curves: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def values(self, metric: str) -> list[float]:
        """What each run reached."""
        return [r[metric] for r in self.results.values() if metric in r]

    def step_seconds(self) -> float | None:
        """The median over the runs of a step's time, compiling and evaluating left out."""
        found = [r["step_seconds"] for r in self.results.values() if r.get("step_seconds")]
        return statistics.median(found) if found else None


@dataclass
class Ablation:
    """What an ablation found. It prints as a table, best row first.

    Attributes:
        metric: What the rows are compared by: the recipe's `training.monitor`.
        seeds: The seeds of the runs.
        rows: One per combination.
    """

    metric: str
    seeds: list[int]
    rows: list[Row]

    def ordered(self) -> list[Row]:
        """The rows, best first; those without a result last."""
        better = -1 if larger_is_better(self.metric) else 1

        def place(row):
            values = row.values(self.metric)
            return (not values, better * statistics.mean(values) if values else 0.0)

        return sorted(self.rows, key=place)

    def __str__(self) -> str:
        lines = [("", "parameters", "FLOPs/step", "ms/step", self.metric, "runs")]
        for row in self.ordered():
            values, step = row.values(self.metric), row.step_seconds()
            spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
            lines.append((
                row.name, f"{row.parameters:,}" if row.parameters else "-", in_units(row.flops) if row.flops else "-",
                f"{1000 * step:.1f}" if step else "-", f"{statistics.mean(values):.4f}{spread}" if values else "-",
                f"{len(row.results)} of {len(self.seeds)}",
            ))  # fmt: skip
        text = [in_columns(lines, "<>>>>>")]
        text += [f"{row.name}, seed {seed}: {why}" for row in self.rows for seed, why in row.failures.items()]
        return "\n".join(text)

    def summary(self) -> dict[str, Any]:
        """The table as plain values for JSON."""
        keys = ("name", "choices", "parameters", "flops", "results", "failures")
        return {
            "metric": self.metric,
            "seeds": self.seeds,
            "rows": [{k: getattr(row, k) for k in keys} for row in self.ordered()],
        }


def ablate(
    source: "str | Path | Mapping[str, Any]", grid: Mapping[str, Iterable[Any]], out: "str | Path", *,
    seeds: int = 3, settings: Iterable[str] = (), jobs: int | None = None, stream: Any = None,
) -> Ablation:  # fmt: skip
    """Trains every combination of some choices with the same data, steps and seeds, and compares them.

    Called again after a kill, it goes on: finished runs are kept, the others continue from their checkpoints. A run
    that fails costs only itself.

    Args:
        source: A recipe, a model's name or a mapping, as for `train`.
        grid: By setting, the values to try: `{"attention": ["multi_head", {"name": "window", "window": 8}]}`. A name
            without a dot is an option of the model; `"optimizer.rate"` and the like reach the rest of the recipe.
        out: The folder.
        seeds: How many runs each combination gets, with `training.seed` 0, 1, ...
        settings: Texts such as `"training.steps=500"`, for all runs.
        jobs: How many runs at a time; by default one for every two processors.
        stream: Where progress is written; by default the standard output.

    Returns:
        The table; print it.

    Raises:
        ConfigError: A combination is wrong; nothing has been trained then.
    """
    stream = stream or sys.stdout
    if seeds < 1 or (jobs is not None and jobs < 1):
        raise ConfigError(f"`seeds` and `jobs` must be at least 1. Received: seeds={seeds}, jobs={jobs}")
    rows = _rows(source, grid, list(settings))
    found = Ablation(rows[0].tables["training"]["monitor"], list(range(seeds)), rows)
    place = Path(out)
    for name in ("rows", "logs", "runs"):
        (place / name).mkdir(parents=True, exist_ok=True)
    for row in rows:
        with atomic(place / "rows" / f"{row.name}.toml") as path:
            path.write_text(check(row.tables, row.name).to_toml(), "utf-8")
    _run_all(found, place, jobs or max(1, (os.cpu_count() or 1) // 2), stream)
    for row in rows:
        _measure(row, place)
    with atomic(place / "ablation.json") as path:
        path.write_text(json.dumps(found.summary(), indent=2) + "\n", "utf-8")
    _draw(found, place / "ablation.png")
    return found


def parse_grid(texts: Iterable[str]) -> dict[str, list[Any]]:
    """A grid from texts such as `attention=multi_head,window`; a list in brackets is TOML, for blocks with options.

    Examples:
        >>> from kerastf.training import parse_grid
        >>> parse_grid(["norm=layer,rms", "optimizer.rate=0.001,0.01", 'attention=[{name = "window", window = 8}]'])
        {'norm': ['layer', 'rms'], 'optimizer.rate': [0.001, 0.01], 'attention': [{'name': 'window', 'window': 8}]}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise ConfigError(f"A choice looks like attention=multi_head,window. Received: {text!r}")
        if key in found:
            raise ConfigError(f"Each setting may have one list of values. Received: {key!r} twice")
        try:
            listed = tomllib.loads(f"x = {value}")["x"] if value.startswith("[") else None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"The list cannot be read: {error}. Received: {text!r}") from None
        found[key] = [*map(_plain, value.split(","))] if listed is None else listed
    return found


def _plain(word: str) -> Any:
    try:
        return tomllib.loads(f"x = {word}")["x"]
    except tomllib.TOMLDecodeError:
        return word.strip()


def _rows(source, grid, settings) -> list[Row]:
    """Every combination as a checked recipe."""
    choices = {key: list(values) for key, values in grid.items()}
    if not choices or not all(choices.values()):
        raise ConfigError(f"A grid has at least one setting, each with values. Received: {dict(grid)!r}")
    rows, problems = [], []
    for combination in itertools.product(*choices.values()):
        chosen = dict(zip(choices, combination, strict=True))
        tables, _ = gather(source, settings)
        for key, value in chosen.items():
            section, _, name = key.rpartition(".") if "." in key else ("model", "", key)
            table = tables.setdefault(section, {})
            table[name] = value
        name = _name(chosen, rows)
        try:
            rows.append(Row(name, chosen, check(tables, name).tables))
        except (ConfigError, LookupError, ImportError) as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError("Nothing was trained. " + "\n".join(problems))
    return rows


def _name(chosen, rows):
    """Choices as the name of a file: `attention=local,norm=rms`; a number follows where two would be the same."""
    short = {k.rpartition(".")[2]: v["name"] if isinstance(v, dict) and "name" in v else v for k, v in chosen.items()}
    plain = re.sub(r"[^\w=,.+-]+", "-", ",".join(f"{k}={v}" for k, v in short.items()))[:120]
    taken = {row.name for row in rows}
    numbered = (f"{plain}-{i}" for i in itertools.count(2))
    return next(name for name in itertools.chain([plain], numbered) if name not in taken)


def _run_all(found, place, jobs, stream):
    """Trains what is not trained yet, some runs at a time; on Ctrl-C the runs save and stop."""
    tasks = [(row, seed) for seed in found.seeds for row in found.rows]
    children: set[subprocess.Popen] = set()
    seeds = "1 seed" if len(found.seeds) == 1 else f"{len(found.seeds)} seeds"
    print(f"{len(found.rows)} combinations, {seeds}, {jobs} at a time, in {place}", file=stream)
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {pool.submit(_run, row, seed, place, children): (row, seed) for row, seed in tasks}
        try:
            while waiting:
                ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    row, seed = waiting.pop(future)
                    done += 1
                    print(f"{done}/{len(tasks)}  {row.name}, seed {seed}: {future.result()}", file=stream, flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(children):
                child.send_signal(signal.SIGINT)
            raise KeyboardInterrupt(f"stopped after {done} of {len(tasks)} runs; the same command goes on") from None


def _run(row, seed, place, children) -> str:
    """One run in a process of its own, unless it is finished; what came of it, in words."""
    folder = RunFolder(place / "runs" / row.name / f"seed-{seed}")
    tables = {**row.tables, "training": {**row.tables["training"], "seed": seed}}
    status, lines = 0, []
    if not folder.results.exists() or differences(folder.recipe().tables, tables):
        status, lines = _train_apart(row.name, seed, place, children)
    if status or not folder.results.exists():
        row.failures[seed] = lines[-1] if lines else f"ended with status {status}"
        return row.failures[seed]
    row.results[seed] = folder.read_json("results.json")
    metric = row.tables["training"]["monitor"]
    row.curves[seed] = [(r["step"], r[metric]) for r in folder.rows() if metric in r]
    reached = row.results[seed].get(metric)
    return f"{metric} {reached:.4f} in {duration(row.results[seed]['seconds'])}" if reached is not None else "finished"


def _train_apart(name, seed, place, children):
    """Trains one run in a process of its own; its exit status and what it printed."""
    command = [
        sys.executable, "-m", "kerastf", "train", str(place / "rows" / f"{name}.toml"),
        "--out", str(place / "runs" / name / f"seed-{seed}"), "--set", f"training.seed={seed}",
    ]  # fmt: skip
    with open(place / "logs" / f"{name}.seed-{seed}.txt", "a+", encoding="utf-8") as log:
        start = log.tell()
        child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        children.add(child)
        status = child.wait()
        children.discard(child)
        log.seek(start)
        return status, [line for line in log.read().splitlines() if line.strip()]


def _measure(row, place):
    """Parameters and arithmetic, from what a finished run saved."""
    if not row.results:
        return
    saved = inspect(RunFolder(place / "runs" / row.name / f"seed-{min(row.results)}").model_path())
    options = {k: v for k, v in saved.options.items() if k not in ("name", "frozen")}
    data = row.tables["data"]
    found = cost(saved.model, batch_size=data["batch_size"], length=data.get("length"), **options)
    row.parameters, row.flops = found.parameters, 3 * found.flops


def _draw(found, path):
    from kerastf import plots

    if any(row.results for row in found.rows):
        rows = {row.name: list(row.curves.values()) for row in found.ordered() if row.curves}
        plots.rival_curves(rows, path=path, title=found.metric, along=("step", found.metric))
