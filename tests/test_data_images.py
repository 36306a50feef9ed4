"""Images: batches of them, and the files they are read from."""

import gzip
import pickle
import struct

import numpy as np
import pytest
from messages import told

from kerastf import data
from kerastf.errors import FileFormatError, InputError


def test_image_batches():
    images = np.arange(20 * 36).reshape(20, 6, 6, 1) % 251 + 1
    images, labels = np.repeat(images, 3, axis=-1).astype("uint8"), np.arange(20)
    batches = data.ImageBatches(images, labels, batch_size=6, shift=2, flip=True, seed=5)
    seen = []
    for number in range(len(batches)):
        x, y = batches[number]
        again, _ = batches[number]
        np.testing.assert_array_equal(x, again)
        assert x.shape == (6, 6, 6, 3) and x.dtype == np.uint8
        for image, label in zip(x, y, strict=True):
            padded = np.pad(images[label], ((2, 2), (2, 2), (0, 0)))
            crops = [padded[i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
            assert any(np.array_equal(image, c) or np.array_equal(image, c[:, ::-1]) for c in crops)
        seen += y.tolist()
    assert len(set(seen)) == 18
    batches.on_epoch_end()
    assert not np.array_equal(batches[0][1], np.array(seen[:6]))
    plain = data.ImageBatches(images, labels, batch_size=5)
    for number in range(4):
        x, y = plain[number]
        np.testing.assert_array_equal(x, images[y])
    assert told(InputError, lambda: data.ImageBatches(images, labels[:3], batch_size=2)) == (
        "One label per image, and at least one batch of them, are needed. Received: 20 images, 3 labels, batch_size=2"
    )


def test_idx_files(tmp_path):
    rng = np.random.default_rng(0)
    parts = {}
    for part in ("train", "t10k"):
        x, y = rng.integers(0, 256, (4, 5, 6)).astype("uint8"), rng.integers(0, 10, 4).astype("uint8")
        with gzip.open(tmp_path / f"{part}-images-idx3-ubyte.gz", "wb") as file:
            file.write(b"\0\0\x08\x03" + struct.pack(">3I", *x.shape) + x.tobytes())
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 4) + y.tobytes())
        parts[part] = x, y
    for (x, y), (images, labels) in zip(parts.values(), data.read_images("fashion-mnist", tmp_path), strict=True):
        np.testing.assert_array_equal(images[..., 0], x)
        np.testing.assert_array_equal(labels, y)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01" + struct.pack(">I", 5) + b"1234")
    path = tmp_path / "t10k-labels-idx1-ubyte"
    assert told(FileFormatError, lambda: data.read_images("mnist", tmp_path)) == (
        f"The file says (5,) and holds 4 values. Received: {str(path)!r}"
    )
    path.unlink()
    assert told(FileFormatError, lambda: data.read_images("mnist", tmp_path)) == (
        f"There is no t10k-labels-idx1-ubyte or t10k-labels-idx1-ubyte.gz in the folder. Received: folder={str(tmp_path)!r}"
    )
    assert told(InputError, lambda: data.read_images("mnist")) == (
        "`mnist` is read from files: give the folder. Received: folder=None"
    )
    assert told(InputError, lambda: data.read_images("mnits")) == (
        "`name` must be 'digits', 'cifar10', 'tfds:NAME', the path of a .npz file, or one of 'fashion-mnist', 'mnist', "
        "'kmnist'. Received: name='mnits'"
    )


def test_cifar10_files(tmp_path):
    rng = np.random.default_rng(0)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    binary, python = tmp_path / "cifar-10-batches-bin", tmp_path / "py"
    binary.mkdir()
    python.mkdir()
    wanted = []
    for name in names:
        x, y = rng.integers(0, 256, (2, 3072)).astype("uint8"), rng.integers(0, 10, 2).astype("uint8")
        (binary / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], axis=1).tobytes())
        (python / name).write_bytes(pickle.dumps({b"data": x, b"labels": y.tolist()}, protocol=2))
        wanted.append((x, y))
    for folder in (tmp_path, python):
        (images, labels), (test_images, test_labels) = data.read_images("cifar10", folder)
        assert images.shape == (10, 32, 32, 3) and test_images.shape == (2, 32, 32, 3)
        assert labels.tolist() == [int(n) for _, y in wanted[:5] for n in y]
        assert images[0, 4, 7].tolist() == [int(wanted[0][0][0, plane * 1024 + 4 * 32 + 7]) for plane in range(3)]
        assert test_labels.tolist() == wanted[5][1].tolist()


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Bad:
        def __reduce__(self):
            return (print, ("run",))

    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Bad(), protocol=2))
    assert told(FileFormatError, lambda: data.read_images("cifar10", tmp_path)) == (
        "A file of images may hold arrays only. Received: __builtin__.print"
    )


def test_arrays_in_a_file(tmp_path):
    arrays = {
        "x_train": np.zeros((3, 4, 4), "uint8"),
        "y_train": np.zeros((3, 1)),
        "x_test": np.ones((2, 4, 4, 3)),
        "y_test": [1, 2],
    }
    np.savez(tmp_path / "images.npz", **arrays)
    (x, y), (u, v) = data.read_images(str(tmp_path / "images.npz"))
    assert (x.shape, y.shape, u.shape, v.tolist()) == ((3, 4, 4, 1), (3,), (2, 4, 4, 3), [1, 2])


def test_digits():
    pytest.importorskip("sklearn")
    (x, y), (u, v) = data.read_images("digits")
    assert (x.shape, u.shape, x.max()) == ((1438, 8, 8, 1), (359, 8, 8, 1), 16)
    assert np.bincount(np.concatenate([y, v])).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
