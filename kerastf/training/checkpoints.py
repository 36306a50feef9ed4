"""Checkpoints of a training: everything that the next step depends on, in one file that is whole or not there.

A file is a zip archive of NumPy arrays, one per variable of the model and its optimizer (weights, moments, counters,
seeds), and of a JSON text. The archive's checksums tell a damaged file; no code is ever read from it.
"""

import io
import json
import re
import zipfile
from pathlib import Path

import numpy as np
from keras import ops

from kerastf.checkpoint import atomic
from kerastf.errors import FileFormatError

NAME = re.compile(r"step-(\d+)\.zip")


class NotFinite(ArithmeticError):
    """A variable holds infinity or what is no number."""


def variables_of(model):
    """All that a step of training reads and writes, beyond the data: in an order that does not change."""
    optimizer = model.optimizer
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return [*model.variables, *optimizer.variables]


def saved_steps(folder):
    """The steps that have a checkpoint, the newest first."""
    found = [NAME.fullmatch(p.name) for p in Path(folder).iterdir()] if Path(folder).is_dir() else []
    return sorted((int(m[1]) for m in found if m), reverse=True)


def look(model):
    """Reads what `save` reads, and writes nothing.

    Of several workers one writes checkpoints; metrics are added up over the workers when they are read, so all read.
    """
    for variable in [*variables_of(model), *model.metrics_variables]:
        ops.convert_to_numpy(variable)


def save(folder, step, model, state, *, keep=2):
    """Writes the checkpoint of a step, then removes all but the newest `keep`.

    Args:
        folder: Where checkpoints are.
        step: How many steps are done.
        model: A compiled model.
        state: A JSON-plain dict that `restore` gives back.
        keep: How many checkpoints to keep.

    Raises:
        NotFinite: A variable holds what is no number; nothing is written.
    """
    folder = Path(folder)
    variables = variables_of(model)
    with atomic(_path(folder, step)) as path, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for i, variable in enumerate([*variables, *model.metrics_variables]):
            array = np.asarray(ops.convert_to_numpy(variable))
            if array.dtype.kind not in "biuf":  # NumPy's format has no bfloat16; float32 holds it exactly
                array = array.astype("float32")
            if not np.all(np.isfinite(array)):
                raise NotFinite(variable.path)
            with archive.open(f"{i}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        metrics = len(model.metrics_variables)
        told = {"step": step, "state": state, "variables": [_describe(v) for v in variables], "metrics": metrics}
        archive.writestr("checkpoint.json", json.dumps(told))
    for old in saved_steps(folder)[keep:]:
        _path(folder, old).unlink(missing_ok=True)


def restore(folder, model, tell=print):
    """Gives the model what the newest sound checkpoint holds.

    Args:
        folder: Where checkpoints are.
        model: A compiled model like the one that was saved.
        tell: Called with a sentence for every checkpoint that is damaged.

    Returns:
        The step, the state that was saved and the values of the metrics; `(0, None, [])` where there is no checkpoint.

    Raises:
        FileFormatError: There are checkpoints and every one is damaged, or they belong to another model.
    """
    folder, steps = Path(folder), saved_steps(folder)
    for step in steps:
        try:
            return step, *_read(_path(folder, step), model)
        except FileFormatError:
            raise
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            tell(f"The checkpoint of step {step} is damaged ({error}); going back to the one before.")
    if steps:
        raise FileFormatError(
            f"All {len(steps)} checkpoints are damaged. Move the folder away to start anew. Received: {str(folder)!r}"
        )
    return 0, None, []


def _read(path, model):
    variables = variables_of(model)
    with zipfile.ZipFile(path) as archive:
        if (wrong := archive.testzip()) is not None:  # reads all of it, before any variable is touched
            raise zipfile.BadZipFile(f"{wrong} has another checksum")
        told = json.loads(archive.read("checkpoint.json"))
        wanted = [_describe(v) for v in variables]
        if told["variables"] != wanted:
            raise FileFormatError(
                f"{path.name} belongs to another model or optimizer: {_first_difference(told['variables'], wanted)}."
            )
        for i, variable in enumerate(variables):
            variable.assign(_array(archive, i))
        return told["state"], [_array(archive, len(variables) + i) for i in range(told["metrics"])]


def _array(archive, number):
    return np.lib.format.read_array(io.BytesIO(archive.read(f"{number}.npy")), allow_pickle=False)


def _first_difference(saved, wanted):
    for a, b in zip(saved, wanted, strict=False):
        if a != b:
            return f"it has {a[0]} {tuple(a[1])} where {b[0]} {tuple(b[1])} is needed"
    return f"it has {len(saved)} variables where {len(wanted)} are needed"


def _describe(variable):
    path = re.sub(r"seed_generator(_\d+)?", "seed_generator", variable.path)  # Keras numbers them in each process
    return [path, list(variable.shape)]


def _path(folder, step):
    return folder / f"step-{step:09d}.zip"
