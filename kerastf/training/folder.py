"""The folder of a run: what was asked, where it ran, what was measured, and what came of it.

recipe.toml        the recipe as resolved; reading it again gives the same run
environment.json   versions of Python, of the packages and of the plugins
metrics.jsonl      a line per evaluation
tensorboard/       the same for TensorBoard
curves.png         the same as a picture
tokenizer.json     where there is one; labels.json where there are classes
best.keras         the best model by `training.monitor`
last.keras         the last one
checkpoints/       what the run goes on from
results.json       written at the end: the run is finished
"""

import contextlib
import json
import platform
import tomllib
from importlib import metadata
from pathlib import Path

from kerastf import plugins
from kerastf.checkpoint import atomic
from kerastf.errors import ConfigError, FileFormatError
from kerastf.schema import short
from kerastf.supervisor import group
from kerastf.training.recipe import Recipe, check

PACKAGES = ("kerastf", "keras", "tensorflow", "keras-nlp", "keras-hub", "tensorflow-datasets", "jax", "torch", "numpy")
# Settings that may change between two parts of one run: they do not change what is learnt.
FREE = {("training", "keep"), ("training", "devices")}
# All that a run writes: nothing else in its folder is ever removed. The two that mark it as a run's go last.
OWN = (
    "results.json", "metrics.jsonl", "best.keras", "best.json", "last.keras", "bad_batch.npz", "curves.png",
    "tokenizer.json", "labels.json", "checkpoints/step-*.zip", "tensorboard/events.out.tfevents.*", "recipe.toml",
    "environment.json",
)  # fmt: skip


class RunFolder:
    """Files of one run."""

    def __init__(self, path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"
        self.results = self.path / "results.json"

    @contextlib.contextmanager
    def opened(self, recipe, *, fresh=False):
        """Makes the folder, or finds the same run in it; nobody else may write to it meanwhile.

        Nothing that is there is touched before `claim`.

        Raises:
            ConfigError: The folder holds another run, one that is being trained just now, or what is no run's.
            OSError: The folder cannot be written to.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"A run needs a folder. Received: {str(self.path)!r}, a file")
        self._refuse_others_files()
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / "lock", "w") as lock:
            if not _locked(lock):
                raise ConfigError(f"Another process is training in this folder. Received: {str(self.path)!r}")
            if not fresh and self.has_begun():
                self._refuse_another(recipe)
            yield self

    def claim(self, recipe, *, fresh=False):
        """Makes the folder this run's; `fresh`, or where a run never began, what an earlier one wrote is removed."""
        if fresh or not self.has_begun():
            for pattern in OWN:
                for path in self.path.glob(pattern):
                    path.unlink()
        supervised = {"supervisor": group()} if group() else {}
        self._write("environment.json", json.dumps({**environment(), **supervised}, indent=2) + "\n")
        self._write("recipe.toml", recipe.to_toml())
        self.checkpoints.mkdir(exist_ok=True)

    def is_run(self):
        """Whether the folder is a run's: a recipe alone may be the user's."""
        return (self.path / "recipe.toml").is_file() and self._is_marked()

    def has_begun(self):
        """Whether there is a run, and anything has come of it that another would overwrite."""
        results = ("results.json", "metrics.jsonl", "best.keras", "last.keras")
        written = [p for n in results if (p := self.path / n).is_file() and p.stat().st_size]
        return self.is_run() and bool(written or any(self.checkpoints.glob("step-*.zip")))

    def began_here(self):
        """Whether this process's supervisor has started the run: a worker that it starts again goes on with that."""
        return group() is not None and self._mark().get("supervisor") == group()

    def _is_marked(self):
        return {"python", "backend", "packages"} <= set(self._mark())

    def _mark(self):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads((self.path / "environment.json").read_text("utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def _refuse_others_files(self):
        there = {p.name for p in self.path.iterdir()} if self.path.is_dir() else set()
        there -= {"lock", "environment.json"} if self._is_marked() else {"lock"}
        # A process that was killed while it wrote one of them leaves a part of it under a name of its own.
        there = {name for name in there if not name.startswith((".environment.", ".recipe."))}
        if not there or self.is_run():
            return
        if "recipe.toml" in there:
            raise ConfigError(
                "The folder holds a recipe.toml that no run has written, and a run would write its own there. Give "
                f"another --out. Received: {str(self.path)!r}"
            )
        raise ConfigError(f"The folder is not empty and holds no run. Received: {str(self.path)!r}")

    def _refuse_another(self, recipe):
        found = differences(self.recipe().tables, recipe.tables)
        if found:
            raise ConfigError(
                "The folder holds another run: " + "; ".join(found) + ". Give another --out, or --fresh to replace "
                f"it. Received: {str(self.path)!r}"
            )

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        path = self.path / "recipe.toml"
        try:
            return check(tomllib.loads(path.read_text("utf-8")), self.path.name)
        except OSError:
            raise FileFormatError(f"This is not the folder of a run. Received: {str(self.path)!r}") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
        except ValueError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None

    def model_path(self, which="best") -> Path:
        """The best model, or the last where there is no best."""
        for name in (which, "best", "last"):
            if (self.path / f"{name}.keras").exists():
                return self.path / f"{name}.keras"
        raise FileFormatError(f"The run has no model yet. Received: {str(self.path)!r}")

    def rows(self):
        """The lines of the metrics, as dicts. A line that a killed process left half, or no process, is left out."""
        found = []
        for line in self.metrics.read_text("utf-8").splitlines() if self.metrics.exists() else []:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    found.append(row)
        return found

    def keep_rows(self, step):
        """Takes off lines of steps after the one that a run goes on from: they will be written again."""
        lines = [json.dumps(row) + "\n" for row in self.rows() if row["step"] <= step]
        self._write("metrics.jsonl", "".join(lines))

    def add_row(self, row):
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def write_json(self, name, value):
        self._write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name, kind=dict):
        """What a file of the run holds; an empty dict, or list, where there is none."""
        path = self.path / name
        if not path.exists():
            return kind()
        try:
            found = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise FileFormatError(f"{path} is damaged: {error}") from None
        if not isinstance(found, kind):
            raise FileFormatError(f"{path} is damaged: it holds {short(found)}")
        return found

    def _write(self, name, text):
        with atomic(self.path / name) as path:
            path.write_text(text, "utf-8")


def _locked(file):
    """Takes a lock that is given back when the process ends, however it ends; False if it is taken."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def differences(there, here):
    """What two recipes disagree on, in words."""
    found = []
    for section in sorted({*there, *here}):
        a, b = there.get(section, {}), here.get(section, {})
        if isinstance(a, list) or isinstance(b, list):
            if a != b:
                found.append(f"{section}: {short(a)} there, {short(b)} here")
            continue
        for key in sorted({*a, *b}):
            if a.get(key) != b.get(key) and (section, key) not in FREE:
                found.append(f"{section}.{key}: {short(a.get(key))} there, {short(b.get(key))} here")
    return found


def environment():
    """Versions of what a run depends on."""
    import keras

    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "backend": keras.backend.backend(),
        "packages": found,
        "plugins": {p.namespace: f"{p.distribution} {p.version}" for p in plugins.discover().values() if p.namespace},
    }
