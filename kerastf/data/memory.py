"""Records from what is in memory: lists of dicts, lists of texts or pairs, arrays."""

import numpy as np

from kerastf import text
from kerastf.data.records import ROLES, Images, Parts, rename
from kerastf.errors import InputError


def _images(source):
    """Parts from `(x, y)`, or from `(x, y), (test x, test y)` as Keras's own data sets give them."""
    nested = all(isinstance(s, list | tuple) and len(s) == 2 for s in source)
    nested = nested and np.ndim(source[1][0]) > 1  # otherwise two images and their labels
    found = []
    for images, labels in source if nested else [source]:
        images, labels = np.asarray(images), np.asarray(labels)
        images = images[..., None] if images.ndim == 3 else images
        if images.ndim != 4 or len(images) != len(labels):
            raise InputError(
                f"Images are an array (count, H, W, D) or (count, H, W), with one label each. Received: images of "
                f"shape {images.shape}, {len(labels)} labels"
            )
        if labels.size != len(labels):
            raise InputError(
                "An image has one label; of one-hot rows give `labels.argmax(axis=-1)`. "
                f"Received: labels of shape {labels.shape}"
            )
        found.append(Images(images, labels.ravel().tolist()))
    return Parts(found[0], test=found[1] if nested else None)


def read(source, o, task):
    """The parts of what is given: dicts with keys, columns in the order of the task's roles, or texts alone."""
    if isinstance(source, dict) and set(source) <= {"train", "valid", "test"} and "train" in source:
        parts = {name: read(part, o, task).train for name, part in source.items()}
        return Parts(**parts)
    roles = ROLES[task]
    if task == "images":
        if not isinstance(source, list | tuple) or len(source) != 2:
            raise InputError(f"Images in memory are a pair (images, labels). Received: {text.short(source)}")
        return _images(source)
    if isinstance(source, tuple) and len(source) == len(roles) and len(roles) > 1:
        columns = [list(c) for c in source]
        if len({len(c) for c in columns}) > 1:
            told = ", ".join(f"{len(c)} {r}" for c, r in zip(columns, roles, strict=True))
            raise InputError(f"Columns have as many rows as each other. Received: {told}")
        records = [dict(zip(roles, row, strict=True)) for row in zip(*columns, strict=True)]
    else:
        records = list(source)
    if not records:
        raise InputError("There is nothing to make batches of. Received: 0 records")
    if isinstance(records[0], str) and roles == ("text",):
        records = [{"text": r} for r in records]
    elif isinstance(records[0], list | tuple) and len(records[0]) == len(roles):
        records = [dict(zip(roles, r, strict=True)) for r in records]
    if not isinstance(records[0], dict):
        raise InputError(
            f"Records are dicts with the keys {', '.join(roles)}, or rows of as many. "
            f"Received: {text.short(records[0])}"
        )
    return Parts(rename(task, ((r, f"record {n}") for n, r in enumerate(records)), o.keys))
