"""How tensors of another library become weights of ours, and back: names, and a form that works both ways."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Form:
    """How one array is written there and here.

    Attributes:
        name: What it is called in messages.
        ours: From theirs to ours; takes the array and the options of the model.
        theirs: From ours to theirs.
    """

    name: str
    ours: Callable[[np.ndarray, Facts], np.ndarray]
    theirs: Callable[[np.ndarray, Facts], np.ndarray]


def _sides(facts: Facts) -> tuple[int, int]:
    size = facts["patch_size"]
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _patches_theirs(kernel: np.ndarray, facts: Facts) -> np.ndarray:
    height, width = _sides(facts)
    return kernel.reshape(height, width, -1, kernel.shape[-1]).transpose(3, 2, 0, 1)


def _images_theirs(kernel: np.ndarray, facts: Facts) -> np.ndarray:
    height, width = _sides(facts)
    return kernel.reshape(height, width, -1, kernel.shape[-1])


def _heads(array: np.ndarray, facts: Facts) -> int:
    return array.shape[-1] // facts["num_heads"]


SAME = Form("same", lambda x, _: x, lambda x, _: x)
TURNED = Form("turned", lambda x, _: x.T, lambda x, _: x.T)  # outputs first there, inputs first here
# The order of classes is the other way round there.
FLIPPED = Form("flipped", lambda x, _: x[..., ::-1], lambda x, _: x[..., ::-1])
TURNED_FLIPPED = Form("turned, flipped", lambda x, _: x.T[:, ::-1], lambda x, _: x[:, ::-1].T)
LED = Form("led", lambda x, _: x.reshape(x.shape[1:]), lambda x, _: x[None])  # one more axis there, of length 1
# A convolution there, channels first or last; flattened patches here.
PATCHES = Form(
    "patches", lambda x, _: x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0]) if x.ndim == 4 else x, _patches_theirs
)
PATCHES_LAST = Form("patches", lambda x, _: x.reshape(-1, x.shape[-1]), _images_theirs)
# Heads have an axis of their own there: behind the inputs, as a bias, or before the outputs.
HEADS_OUT = Form(
    "heads",
    lambda x, _: x.reshape(x.shape[0], -1),
    lambda x, facts: x.reshape(x.shape[0], facts["num_heads"], _heads(x, facts)),
)
HEADS_BIAS = Form("heads", lambda x, _: x.reshape(-1), lambda x, facts: x.reshape(facts["num_heads"], _heads(x, facts)))
HEADS_IN = Form(
    "heads",
    lambda x, _: x.reshape(-1, x.shape[-1]),
    lambda x, facts: x.reshape(facts["num_heads"], x.shape[0] // facts["num_heads"], x.shape[-1]),
)


def rows_from(first: int) -> Form:
    """A table there has `first` more rows than ours, before the others; they are never read."""
    return Form(
        f"rows from {first}",
        lambda x, _: x[first:],
        lambda x, _: np.concatenate([np.zeros((first, *x.shape[1:]), x.dtype), x]),
    )


def without_row(row: int) -> Form:
    """A table there has a row that ours has not; it is written as zeros."""
    return Form(
        f"without row {row}",
        lambda x, _: np.delete(x[0], row, axis=0),
        lambda x, _: np.insert(x, row, 0.0, axis=0)[None],
    )


@dataclass(frozen=True)
class Rule:
    """One weight of ours.

    Attributes:
        theirs: Names of their tensors; several stand side by side in ours, along its last axis.
        ours: Path of our weight.
        form: How each of them is rewritten.
        optional: Whether files without it are whole: our weight then stays as it began.
        with_row: A table of theirs, and a row of it that is added to our weight when it is read.
    """

    theirs: tuple[str, ...]
    ours: str
    form: Form = SAME
    optional: bool = False
    with_row: tuple[str, int] | None = None

    def read(self, tensors: Any, facts: Facts) -> np.ndarray:
        """Our weight from their tensors."""
        parts = [self.form.ours(tensors.read(name), facts) for name in self.theirs]
        found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        return found if self.with_row is None else found + tensors.read(self.with_row[0])[:, self.with_row[1]]

    def to_theirs(self, array: np.ndarray, facts: Facts) -> list[np.ndarray]:
        parts = [array] if len(self.theirs) == 1 else np.split(array, len(self.theirs), axis=-1)
        return [self.form.theirs(p, facts) for p in parts]

    def shapes(self, shape: Iterable[int], facts: Facts) -> list[tuple[int, ...]]:
        """Their shapes for a weight of ours; no array of that size is made."""
        if self.form is SAME and len(self.theirs) == 1:
            return [tuple(shape)]
        return [p.shape for p in self.to_theirs(np.broadcast_to(np.float32(0), tuple(shape)), facts)]


def table(text: str, forms: Mapping[str, Form] | None = None, **values: Any) -> list[Rule]:
    """Rules from lines of text: path of ours, names of theirs, and at the end `| form` where it is not the same.

    Args:
        text: One rule per line. `?` before the path says that it is optional.
        forms: By name, forms of the family's own.
        **values: What stands for names in braces, such as `i=3` for the number of a layer.
    """
    known = {
        "turned": TURNED, "flipped": FLIPPED, "turned_flipped": TURNED_FLIPPED, "led": LED, "patches": PATCHES,
        "patches_last": PATCHES_LAST, "heads_out": HEADS_OUT, "heads_bias": HEADS_BIAS, "heads_in": HEADS_IN,
        **(forms or {}),
    }  # fmt: skip
    rules = []
    for line in filter(str.strip, text.splitlines()):
        names, _, form = line.partition("|")
        ours, *theirs = names.format(**values).split()
        rules.append(Rule(tuple(theirs), ours.lstrip("?"), known[form.strip()] if form else SAME, ours.startswith("?")))
    return rules
