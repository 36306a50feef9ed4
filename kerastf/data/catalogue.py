"""Records from tensorflow-datasets: `tfds:NAME` or `tfds:NAME/CONFIG`."""

import os
import shutil
import socket
from pathlib import Path

import numpy as np

from kerastf.data.files import PARTS
from kerastf.data.large import Documents
from kerastf.data.pictures import one_size
from kerastf.data.records import Images, Parts, find_keys
from kerastf.errors import InputError
from kerastf.registry import did_you_mean, nearest

HOSTS = ("storage.googleapis.com", "github.com", "huggingface.co")
MORE_PARTS = {"validation_matched": "valid", "test_matched": "test"}


def online():
    """Whether names of the network can be looked up; tensorflow-datasets itself would try for minutes."""
    if any(name.lower() in ("https_proxy", "http_proxy", "all_proxy") for name in os.environ):
        return True
    for host in HOSTS:
        try:
            socket.getaddrinfo(host, 443)
            return True
        except OSError:
            continue
    return False


def _unfinished(builder):
    """The folders of downloads and preparations that are not finished."""
    root = Path(builder.data_path).parent
    fetched = Path(builder._data_dir_root) / "downloads"
    return {*root.glob("incomplete.*"), *root.glob("*.incomplete*"), *fetched.glob("*.tmp.*")}


def open_builder(name, data_dir):
    """The builder of a data set, whose files are there or are fetched."""
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (tfds.core.DatasetNotFoundError, ValueError) as error:
        known = tfds.list_builders(with_community_datasets=False)
        hint = did_you_mean(nearest(name.split("/")[0], known))
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"tensorflow-datasets cannot make `{name}`: {reason}{hint} Received: 'tfds:{name}'") from None
    if (builder.data_path / "dataset_info.json").exists():
        return builder
    where = builder.data_path
    if not online():
        raise InputError(
            f"`{name}` is not in {where}, and there is no network to fetch it. Fetch it elsewhere with "
            f"tfds.load({name!r}, data_dir=...), copy that folder here and give data_dir. "
            f"Received: data_dir={data_dir!r}"
        )
    before = _unfinished(builder)
    try:
        builder.download_and_prepare()
    except Exception as error:  # whatever fails, the reason is told, and nothing half done is left
        for path in _unfinished(builder) - before:
            shutil.rmtree(path, ignore_errors=True)
        raise InputError(f"`{name}` could not be fetched into {where}: {type(error).__name__}: {error}") from error
    return builder


def plain(value):
    """A value of tensorflow-datasets as Python has it: strings, numbers, lists."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return plain(value[()])
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(v) for v in value]
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


class Rows:
    """Examples of one split: by number where the files allow it, and one after the other.

    Args:
        builder: The builder, prepared.
        split: The name of the split.
        mapping: Role to key.
    """

    def __init__(self, builder, split, mapping):
        self.builder, self.split, self.mapping = builder, split, mapping
        try:
            self.source = builder.as_data_source(split)
        except (NotImplementedError, AttributeError):
            self.source = None

    def record(self, example):
        """An example under the names of the task."""
        found = {}
        for role, key in self.mapping.items():
            found[role] = tuple(plain(example[k]) for k in key) if isinstance(key, tuple) else plain(example[key])
        if isinstance(found.get("answers"), dict):  # a sequence of dicts comes as a dict of sequences
            columns = found["answers"]
            found["answers"] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return found

    def __getitem__(self, number):
        return self.record(self.source[number])

    def __iter__(self):
        import tensorflow_datasets as tfds

        if self.source is not None:
            return (self.record(self.source[i]) for i in range(len(self.source)))
        return map(self.record, tfds.as_numpy(self.builder.as_dataset(split=self.split, shuffle_files=False)))

    def __len__(self):
        return len(self.source) if self.source is not None else self.builder.info.splits[self.split].num_examples


def _splits(builder):
    """Which split is which part."""
    found: dict = {}
    for name in builder.info.splits:
        part = {**PARTS, **MORE_PARTS}.get(name)
        if part:
            found.setdefault(part, name)
    if "train" not in found:
        raise InputError(
            f"`{builder.info.full_name}` has no split to train on. Received: splits {', '.join(builder.info.splits)}"
        )
    return found


def _mapping(builder, task, keys):
    """Role to key; the languages of a translation are in the order of the data set's own input and output."""
    features = builder.info.features
    supervised = builder.info.supervised_keys
    if task == "translation" and not keys and supervised and len(supervised) == 2:
        return dict(zip(("source", "target"), supervised, strict=True))
    return find_keys(task, features, keys)


def _classes(features, mapping):
    feature = features[mapping.get("label", mapping.get("tags"))]
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return list(names) if names else getattr(feature, "num_classes", None)


def _hidden(records):
    """Whether the labels of a part are kept secret, as those of GLUE's tests are."""
    return bool(records) and all(r.get("label") == -1 for r in records)


def read(source, o, task):
    """The parts of a data set of tensorflow-datasets."""
    builder = open_builder(str(source).removeprefix("tfds:"), o.data_dir)
    mapping = _mapping(builder, task, o.keys)
    features = builder.info.features
    parts: dict = {}
    for part, split in _splits(builder).items():
        rows = Rows(builder, split, mapping)
        size = getattr(builder.info.splits.get(split), "num_bytes", 0)
        if task == "images":
            found = list(rows)
            parts[part] = Images(one_size([r["image"] for r in found], o.image_size), [r["label"] for r in found])
        elif task in ("language", "masked") and size > o.stream_above:
            parts[part] = Documents(rows) if rows.source is not None else rows
        else:
            found = list(rows)
            parts[part] = None if _hidden(found) else found
    if isinstance(parts["train"], Documents) and "valid" not in parts and o.valid:
        parts["train"], parts["valid"] = parts["train"].hold_out(o.valid)
    classes = _classes(features, mapping) if {"label", "tags"} & set(mapping) else None
    return Parts(**parts, classes=classes)
