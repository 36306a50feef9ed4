"""Tensors in safetensors files: nothing is looked at before the header has been checked, and then one at a time.

A file is the length of its header (8 bytes), the header (JSON: type, shape and place of each tensor), and the bytes.
"""

import contextlib
import json
import math
import mmap
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerastf.checkpoint import atomic
from kerastf.errors import FileFormatError

LARGEST_JSON = 64 * 2**20  # a header or index of more bytes than this describes no model
LARGEST_SIDE = 2**40
TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "<u1", "BOOL": "?",
}  # fmt: skip
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Place:
    """Where a tensor stands.

    Attributes:
        path: The file.
        type: A key of `TYPES`.
        shape: Its shape.
        start: Its first byte in the file.
        size: How many bytes it has.
    """

    path: Path
    type: str
    shape: tuple[int, ...]
    start: int
    size: int


class Tensors:
    """The tensors of one or more files, by name; of each, memory holds what was looked at.

    A file is mapped, not read: its pages come when somebody looks at them, and writing to an array changes no file. An
    array keeps its file mapped, so a file may be replaced while a model lives that came from it, but not written to.
    Several threads may read at a time.

    Args:
        places: By name, where each stands.
    """

    def __init__(self, places: dict[str, Place]):
        self.places = places
        self.maps: dict[Path, mmap.mmap] = {}
        self.taken: set[str] = set()  # tensors whose memory somebody keeps
        self.lock = threading.RLock()

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def __iter__(self):
        return iter(self.places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.places[name].shape

    def read(self, name: str) -> np.ndarray:
        """One tensor; 16-bit floats as float32, all others in the memory of the file."""
        place = self.places[name]
        pages = self._map(place.path)
        if len(pages) < place.start + place.size:
            raise FileFormatError(f"{place.path.name} is cut off: tensor {name!r} is not whole.")
        flat = np.frombuffer(pages, "u1", place.size, place.start).view(TYPES[place.type])
        if place.type == "BF16":  # the upper half of a float32
            flat = (flat.astype("<u4") << 16).view("<f4")
        elif place.type == "F16":
            flat = flat.astype("<f4")
        return flat.reshape(place.shape)

    def _map(self, path: Path) -> mmap.mmap:
        with self.lock:
            if path not in self.maps:
                self.maps[path] = _mapped(path)
            return self.maps[path]

    def own(self, names: Iterable[str], array: np.ndarray) -> np.ndarray:
        """An array that was made of these tensors, as a backend can keep it: nobody else is given its memory.

        Where that is not the file's, the pages that were read for it are given back.
        """
        array = _aligned(array)
        places = [self.places[n] for n in names]
        in_place = any(np.may_share_memory(array, np.frombuffer(self._map(p.path), "u1")) for p in places)
        with self.lock:
            free = self.taken.isdisjoint(names)
            if in_place and free:
                self.taken.update(names)
            elif free and hasattr(mmap, "MADV_DONTNEED"):
                for place in places:
                    self._give_back(place)
        return array if free or not in_place else _aligned(array.copy())  # two weights may be one tensor there

    def _give_back(self, place: Place) -> None:
        """The memory of a tensor's whole pages; who looks at them again reads the file."""
        first, end = -(-place.start // mmap.PAGESIZE), (place.start + place.size) // mmap.PAGESIZE
        if end > first:
            span = first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE
            self._map(place.path).madvise(mmap.MADV_DONTNEED, *span)


def _mapped(path: Path) -> mmap.mmap:
    """A file in memory, to be read soon."""
    try:
        with path.open("rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError:  # what is empty cannot be mapped
        raise FileFormatError(f"{path} is cut off: nothing is left of it.") from None
    if hasattr(mmap, "MADV_WILLNEED"):
        pages.madvise(mmap.MADV_WILLNEED)
    return pages


def _aligned(array: np.ndarray) -> np.ndarray:
    """The array, copied where TensorFlow would copy it: where its memory does not begin at a multiple of 64."""
    if array.flags.c_contiguous and _address(array) % 64 == 0:
        return array
    room = np.empty(array.nbytes + 64, "u1")
    start = -_address(room) % 64
    room = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(room, array)
    return room


def _address(array: np.ndarray) -> int:
    """Where an array's memory begins."""
    return array.__array_interface__["data"][0]


class Arrays(Tensors):
    """Arrays in memory, as `Tensors` are in files.

    Args:
        arrays: By name.
    """

    def __init__(self, arrays: dict[str, np.ndarray]):
        super().__init__({})
        self.arrays = arrays

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def __iter__(self):
        return iter(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.arrays[name].shape)

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]


def open_folder(folder: "str | Path") -> Tensors:
    """The tensors of a folder: those of `model.safetensors`, or of the files that its index names.

    Raises:
        FileFormatError: There are none, or a file is not what it says.
    """
    folder = Path(folder)
    if (folder / INDEX).is_file():
        return _open_index(folder)
    if (folder / SINGLE).is_file():
        return Tensors(read_header(folder / SINGLE))
    others = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pt"))
    if others:
        raise FileFormatError(
            f"{folder} holds {others[0]}, and such files can run code when they are read. Convert it once where you "
            "trust it: model = AutoModel.from_pretrained(FOLDER); model.save_pretrained(OTHER, safe_serialization=True)"
        )
    raise FileFormatError(f"There is no {SINGLE} and no {INDEX} in {folder}.")


def _open_index(folder: Path) -> Tensors:
    found = read_json(folder / INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(f, str) for f in found.values()):
        raise FileFormatError(f"{INDEX} has no `weight_map` of names to files.")
    places: dict[str, Place] = {}
    for name in sorted(set(found.values())):
        plain = name == os.path.basename(name) and "\\" not in name and ":" not in name and name.isprintable()
        if not plain or not name.endswith(".safetensors"):
            raise FileFormatError(f"{INDEX} names a file that is not one of this folder: {name!r}. It is refused.")
        for tensor, place in read_header(folder / name).items():
            if found.get(tensor) != name:
                raise FileFormatError(f"{name} holds tensor {tensor!r}, which {INDEX} does not place there.")
            places[tensor] = place
    missing = [t for t in found if t not in places]
    if missing:
        raise FileFormatError(f"{found[missing[0]]} lacks tensor {missing[0]!r}, which {INDEX} places there.")
    return Tensors(places)


def read_header(path: "str | Path") -> dict[str, Place]:
    """By name, where the tensors of a file stand; every claim of the header is checked against the file.

    Raises:
        FileFormatError: With the name of the tensor that is wrong.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(LARGEST_JSON, size - 8):
                raise FileFormatError(
                    f"{path.name} is not a safetensors file: its header would have {length:,} bytes, and the file has "
                    f"{size:,}."
                )
            text = file.read(length)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from None
    header = _parse(text, path.name)
    header.pop("__metadata__", None)
    begin = 8 + length
    places = {name: _place(path, name, entry, begin) for name, entry in header.items()}
    at, last = begin, ""
    for name, place in sorted(places.items(), key=lambda item: (item[1].start, item[1].size)):
        if place.start < at:
            raise FileFormatError(f"{path.name}: tensor {name!r} overlaps tensor {last!r}.")
        if place.start > at:
            raise FileFormatError(f"{path.name}: nobody owns the {place.start - at:,} bytes before tensor {name!r}.")
        at, last = place.start + place.size, name
        if at > size:
            raise FileFormatError(
                f"{path.name}: tensor {name!r} would end at byte {at:,}, the file has {size:,}. Copy it again."
            )
    if at != size:
        raise FileFormatError(f"{path.name}: nobody owns the last {size - at:,} bytes.")
    return places


def _place(path: Path, name: str, entry: Any, begin: int) -> Place:
    def wrong(what: str) -> FileFormatError:
        return FileFormatError(f"{path.name}: tensor {name!r} {what}.")

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise wrong("lacks type, shape or place")
    type, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(type, str) or type not in TYPES:
        raise wrong(f"has the type {str(type)[:40]!r}; known are {', '.join(TYPES)}")
    if not _counts(shape) or len(shape) > 8 or any(n > LARGEST_SIDE for n in shape):
        raise wrong(f"has the shape {str(shape)[:60]}")
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has the place {str(offsets)[:60]}")
    size = math.prod(shape) * np.dtype(TYPES[type]).itemsize
    if offsets[1] - offsets[0] != size:
        raise wrong(f"needs {size:,} bytes for its shape {shape}, and its place has {offsets[1] - offsets[0]:,}")
    return Place(path, type, tuple(shape), begin + offsets[0], size)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and n >= 0 for n in values)


def _parse(text: bytes, name: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [k for k, _ in pairs]
            raise ValueError(f"{next(k for k in keys if keys.count(k) > 1)!r} stands there twice")
        return found

    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{name} is not JSON that can be read: {str(error)[:200]}.") from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{name} must hold a JSON object.")
    return found


def read_json(path: "str | Path") -> dict[str, Any]:
    """A JSON object from a file of a stranger."""
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise FileFormatError(f"{path.name} has {size:,} bytes, too many for a configuration. It is refused.")
        return _parse(path.read_bytes(), path.name)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read: {error.strerror}.") from None


def write_json(path: "str | Path", value: Any, indent: int | None = 2) -> None:
    """Writes JSON; the file appears whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", "utf-8")


def write(path: "str | Path", tensors: Iterable[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]) -> None:
    """Writes a safetensors file of float32, one tensor after the other; it appears whole or not at all.

    Args:
        path: The file.
        tensors: Of each its name, its shape, and a function that gives it when its turn comes.
    """
    tensors = sorted(tensors, key=lambda t: t[0])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # what readers elsewhere ask for
    at = 0
    for name, shape, _ in tensors:
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)  # tensors at round addresses can be used where they stand
    with atomic(path) as temporary, contextlib.ExitStack() as stack:
        file = stack.enter_context(temporary.open("wb"))
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape, get in tensors:
            array = np.ascontiguousarray(get(), "<f4")
            if array.shape != tuple(shape):
                raise ValueError(f"`{name}` was announced with shape {shape}. Received: {array.shape}")
            array.tofile(file)
