"""Labelled images: read from files, batched with flips and shifts. Shapes: B batch, H height, W width, D channels."""

import gzip
import io
import math
import pickle
import struct
from pathlib import Path

import numpy as np

from kerastf.data.batching import Batches, PyBatches
from kerastf.errors import FileFormatError, InputError

IDX_NAMES = ("fashion-mnist", "mnist", "kmnist")


def read_images(name, folder=None):
    """A set of labelled images, by name.

    Args:
        name: `"digits"` (8 x 8, part of scikit-learn), `"fashion-mnist"`, `"mnist"` or `"kmnist"` (four idx files in
            `folder`, plain or `.gz`), `"cifar10"` (its binary or its Python version in `folder`), `"tfds:NAME"` through
            tensorflow-datasets, or the path of a `.npz` file with `x_train`, `y_train`, `x_test`, `y_test`.
        folder: Where the files are, for the names that need it; for `tfds:`, its data folder.

    Returns:
        `(images, labels), (test images, test labels)`: uint8 `(B, H, W, D)`, int32 `(B,)`.

    Raises:
        InputError: There is no such set, or it needs a folder.
        FileFormatError: A file is missing or is not what it should be.
    """
    if name == "digits":
        return _digits()
    if str(name).startswith("tfds:"):
        return _tfds(name.removeprefix("tfds:"), folder)
    if str(name).endswith(".npz"):
        return _npz(name)
    if name not in (*IDX_NAMES, "cifar10"):
        raise InputError(
            "`name` must be 'digits', 'cifar10', 'tfds:NAME', the path of a .npz file, or one of "
            f"{', '.join(map(repr, IDX_NAMES))}. Received: name={name!r}"
        )
    if folder is None:
        raise InputError(f"`{name}` is read from files: give the folder. Received: folder=None")
    if name == "cifar10":
        return _cifar10(Path(folder))
    return tuple(
        (
            read_idx(_find(Path(folder), f"{part}-images-idx3-ubyte"))[..., None],
            read_idx(_find(Path(folder), f"{part}-labels-idx1-ubyte")).astype("int32"),
        )
        for part in ("train", "t10k")
    )


def read_idx(path):
    """An array of bytes in the idx format of MNIST, plain or `.gz`."""
    raw = _bytes(Path(path))
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != 8:
        raise FileFormatError(f"This is not an idx file of bytes. Received: {str(path)!r}")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    values = np.frombuffer(raw, "uint8", offset=4 + 4 * raw[3])
    if values.size != math.prod(shape):
        raise FileFormatError(f"The file says {shape} and holds {values.size} values. Received: {str(path)!r}")
    return values.reshape(shape)


def _bytes(path):
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise FileFormatError(f"The file cannot be read: {error}. Received: {str(path)!r}") from None


def _find(folder, name):
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileFormatError(f"There is no {name} or {name}.gz in the folder. Received: folder={str(folder)!r}")


def _digits():
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("The digits are part of scikit-learn: pip install 'kerastf[images]'") from None
    found = load_digits()
    images, labels = found.images.astype("uint8")[..., None], found.target.astype("int32")
    order = np.random.default_rng(0).permutation(len(images))  # they come by writer and by digit
    cut = len(images) // 5
    return tuple((images[part], labels[part]) for part in (order[cut:], order[:cut]))


def _npz(path):
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = [found[n] for n in ("x_train", "y_train", "x_test", "y_test")]
    except (OSError, KeyError, ValueError) as error:
        raise FileFormatError(f"The file cannot be read: {error}. Received: {str(path)!r}") from None
    arrays = [a[..., None] if a.ndim == 3 else a for a in arrays]
    return (arrays[0], arrays[1].ravel().astype("int32")), (arrays[2], arrays[3].ravel().astype("int32"))


def _tfds(name, folder):
    import tensorflow_datasets

    parts = tensorflow_datasets.load(name, split=["train", "test"], batch_size=-1, data_dir=folder, as_supervised=True)
    return tuple((np.asarray(x), np.asarray(y, dtype="int32")) for x, y in parts)


class _OnlyArrays(pickle.Unpickler):
    """Reads pickles of dicts, lists, bytes and NumPy arrays; refuses everything else, so that no code is run."""

    ALLOWED = frozenset({
        ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"), ("numpy", "ndarray"),
        ("numpy", "dtype"), ("_codecs", "encode"),
    })  # fmt: skip

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise FileFormatError(f"A file of images may hold arrays only. Received: {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _cifar10(folder):
    """CIFAR-10 from `data_batch_1.bin` and so on, or from `data_batch_1` and so on; red, green, blue by planes."""
    for inner in ("cifar-10-batches-bin", "cifar-10-batches-py"):
        folder = folder / inner if (folder / inner).is_dir() else folder
    parts = []
    for names in ([f"data_batch_{i}" for i in range(1, 6)], ["test_batch"]):
        found = [_cifar10_batch(folder, name) for name in names]
        images = np.concatenate([x for x, _ in found]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        parts.append((np.ascontiguousarray(images), np.concatenate([y for _, y in found]).astype("int32")))
    return tuple(parts)


def _cifar10_batch(folder, name):
    if (folder / f"{name}.bin").exists():
        rows = np.frombuffer(_bytes(folder / f"{name}.bin"), "uint8")
        if rows.size % 3073:
            raise FileFormatError(f"Rows of CIFAR-10 have 3073 bytes. Received: {rows.size} bytes in {name}.bin")
        rows = rows.reshape(-1, 3073)
        return rows[:, 1:], rows[:, 0]
    if not (folder / name).exists():
        raise FileFormatError(f"There is no {name} or {name}.bin in the folder. Received: folder={str(folder)!r}")
    try:
        found = _OnlyArrays(io.BytesIO(_bytes(folder / name)), encoding="bytes").load()
        return np.asarray(found[b"data"], dtype="uint8"), np.asarray(found[b"labels"])
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise FileFormatError(f"This is not a batch of CIFAR-10: {error!r}. Received: {name!r}") from None


class Pictures:
    """Images at hand that make batches, shifted and mirrored at random.

    Args:
        images: `(count, H, W, D)`, or what gives as much for a list of numbers.
        labels: `(count,)`.
        shift: By how many pixels an image is moved at most; zeros come in.
        flip: Whether every second image, at random, is mirrored left to right.
    """

    def __init__(self, images, labels, *, shift=0, flip=False):
        self.images, self.labels, self.shift, self.flip = images, np.asarray(labels), shift, flip

    def plain(self, chosen, _=None):
        """A batch of the images of these numbers, as they are."""
        return self.images[chosen], self.labels[chosen]

    def make(self, chosen, rng):
        """A batch of the images of these numbers, moved."""
        images, labels = self.plain(chosen)  # (B, H, W, D)
        down, right = rng.integers(0, 2 * self.shift + 1, (2, len(chosen)))
        if self.shift:
            shape, shift = images.shape, self.shift
            padded = np.pad(images, ((0, 0), (shift, shift), (shift, shift), (0, 0)))
            rows = padded.reshape(*padded.shape[:2], -1)  # (B, H + 2 shift, (W + 2 shift) D)
            # A view of every window of every image: a row of a window is one piece of memory.
            views = np.lib.stride_tricks.sliding_window_view(rows, (shape[1], shape[2] * shape[3]), axis=(1, 2))
            images = views[:, :, :: shape[3]][np.arange(len(chosen)), down, right].reshape(shape)
        if self.flip:
            mirrored = rng.random(len(chosen)) < 0.5
            images = np.where(mirrored[:, None, None, None], images[:, :, ::-1], images)
        return images, labels


class ImageBatches(PyBatches):
    """Shuffled batches of images, shifted and mirrored at random; whole batches at a time, on every backend.

    What a batch holds is a function of the seed, the epoch and its number. Images that do not fill a batch are left for
    another epoch.

    Args:
        images: `(count, H, W, D)`.
        labels: `(count,)`.
        batch_size: How many B in a batch.
        shift: By how many pixels an image is moved at most, up, down and sideways; zeros come in.
        flip: Whether every second image, at random, is mirrored left to right.
        seed: The same seed gives the same batches.
        **kwargs: Passed to `keras.utils.PyDataset` (`workers`, ...).

    Examples:
        >>> from kerastf import data
        >>> batches = data.ImageBatches(np.ones((10, 8, 8, 1), "uint8"), np.arange(10), batch_size=4, shift=1)
        >>> len(batches), batches[0][0].shape
        (2, (4, 8, 8, 1))
    """

    def __init__(self, images, labels, *, batch_size, shift=0, flip=False, seed=0, **kwargs):
        if len(images) != len(labels) or len(images) < batch_size or batch_size < 1:
            raise InputError(
                f"One label per image, and at least one batch of them, are needed. Received: {len(images)} images, "
                f"{len(labels)} labels, batch_size={batch_size}"
            )
        make = Pictures(np.asarray(images), labels, shift=shift, flip=flip).make
        batches = Batches(range(len(images)), make, batch_size=batch_size, drop_remainder=True, seed=seed)
        super().__init__(batches, 0, **kwargs)
