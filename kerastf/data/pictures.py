"""Images from folders: `folder/class/name.png`. Shapes: N images, H height, W width, D channels."""

import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from kerastf.data.examples import read_examples
from kerastf.data.files import PARTS
from kerastf.data.records import Images, Parts, rename
from kerastf.errors import FileFormatError, InputError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
GREY = np.array([0.299, 0.587, 0.114])  # as PNG and JPEG files are read as grey
CACHE = 2**30  # bytes of images that are held; others are read when their batch is made


def _palette(raw, channels, where):
    """The colours `(n, 3)` that the numbers of a BMP file stand for, None where they are colours themselves."""
    if raw[:2] != b"BM" or len(raw) < 54:
        return None
    begin, header = struct.unpack_from("<II", raw, 10)
    bits, packed = struct.unpack_from("<HI", raw, 28) if header >= 40 else (0, 1)
    if bits > 8:
        return None
    if bits != 8 or packed or channels > 3:
        raise FileFormatError(
            f"Of .bmp files with a palette only those of 8 bits a pixel, not compressed, are read: convert it to PNG. "
            f"Received: {where}"
        )
    entries = raw[14 + header : begin]
    return np.frombuffer(entries, "uint8", len(entries) // 4 * 4).reshape(-1, 4)[:, 2::-1]  # from blue, green, red, 0


def decode(raw, channels, where):
    """The image `(H, W, D)` of a file's bytes, uint8.

    Args:
        raw: The bytes.
        channels: 1 for grey, 3 for colour, 0 for what the file has.
        where: Where it stands, for errors.
    """
    import tensorflow as tf

    palette = _palette(raw, channels, where)
    if palette is not None:  # TensorFlow gives the numbers
        numbers = tf.io.decode_image(raw, 0).numpy()[..., 0]
        if numbers.max(initial=0) >= len(palette):
            raise FileFormatError(f"A pixel has a colour that is not in the palette. Received: {where}")
        image = palette[numbers]
        channels = channels or (1 if (palette == palette[:, :1]).all() else 3)
    else:
        try:
            return tf.io.decode_image(raw, channels, expand_animations=False).numpy()
        except tf.errors.InvalidArgumentError:
            if channels != 1:
                raise
        image = tf.io.decode_image(raw, 3, expand_animations=False).numpy()  # only PNG and most JPEG come as grey
    return image if channels == 3 else np.round(image @ GREY)[..., None].astype("uint8")


def resize(image, size):
    """An image `(H, W, D)` of another size, uint8."""
    import tensorflow as tf

    if tuple(image.shape[:2]) == tuple(size):
        return image
    return np.clip(np.round(tf.image.resize(image, size, antialias=True).numpy()), 0, 255).astype("uint8")


def one_size(images, size=None):
    """Images as one array; they are of one size, or are made so.

    Args:
        images: Arrays `(H, W, D)`.
        size: `(H, W)`, or None where all have one.

    Returns:
        An array `(N, H, W, D)`.
    """
    if size is not None:
        images = [resize(np.asarray(i), size) for i in images]
    shapes = {np.shape(i) for i in images}
    if len(shapes) > 1:
        some = ", ".join(map(str, sorted(shapes)[:3]))
        raise InputError(f"Images of one batch have one size: give image_size=[height, width]. Received: sizes {some}")
    return np.stack(images)


class ImageFiles:
    """Images by number, read from their files when they are asked for, and held as long as there is room.

    Args:
        files: The files.
        size: `(H, W)` that all are made to have, or None where they have one.
        channels: 1 for grey, 3 for colour.
    """

    def __init__(self, files, size=None, channels=3):
        self.files, self.size, self.channels = list(files), size, channels
        self.held: dict[int, np.ndarray] = {}
        first = self.load(0)
        self.shape = (len(self.files), *first.shape)
        self.room = max(1, CACHE // first.size)

    def load(self, number):
        """One image `(H, W, D)`."""
        import tensorflow as tf

        if number in self.held:
            return self.held[number]
        path = self.files[number]
        try:
            image = decode(path.read_bytes(), self.channels, repr(str(path)))
        except tf.errors.InvalidArgumentError:
            raise FileFormatError(f"This is no image that can be read. Received: {str(path)!r}") from None
        image = image if self.size is None else resize(image, self.size)
        if hasattr(self, "shape") and image.shape != self.shape[1:]:
            raise InputError(
                f"Images of one batch have one size: give image_size=[height, width]. Received: {image.shape[:2]} in "
                f"{path.name}, {self.shape[1:3]} in {self.files[0].name}"
            )
        return image

    def __getitem__(self, numbers):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(self.load, [int(n) for n in numbers]))
        for number, image in zip(numbers, found, strict=True):
            if len(self.held) < self.room:
                self.held[int(number)] = image
        return np.stack(found)

    def take(self, numbers):
        """Some of the images as a list of their own."""
        return ImageFiles([self.files[n] for n in numbers], self.size, self.channels)


def read_examples_of(path, o):
    """The images of a TFRecord file, each encoded as PNG or JPEG under a key such as `image`."""
    import tensorflow as tf

    records = rename("images", read_examples(path), o.keys)
    if not records:
        raise InputError(f"{Path(path).name} is empty.")
    images = []
    for number, record in enumerate(records, 1):
        where = f"{Path(path).name}, example {number}"
        try:
            images.append(decode(record["image"], 0, where))
        except FileFormatError:
            raise
        except (tf.errors.InvalidArgumentError, TypeError, ValueError):
            raise FileFormatError(f"{where}: this is no image that can be read.") from None
    return Parts(Images(one_size(images), [r["label"] for r in records]))


def is_folder(path):
    """Whether a path is a folder of images: classes as folders, or parts with classes as folders."""
    path = Path(path)
    if not path.is_dir():
        return False
    inner = [p for p in path.iterdir() if p.is_dir()]
    inner += [q for p in inner for q in p.iterdir() if q.is_dir()]
    return any(f.suffix.lower() in ENDINGS for p in inner for f in p.iterdir())


def _part(folder, classes, o):
    files = {c: sorted(f for f in (folder / c).iterdir() if f.suffix.lower() in ENDINGS) for c in classes
             if (folder / c).is_dir()}  # fmt: skip
    pairs = [(f, c) for c, found in files.items() for f in found]
    if not pairs:
        raise InputError(f"The folder has no image ({', '.join(ENDINGS)}). Received: {str(folder)!r}")
    return Images(ImageFiles([f for f, _ in pairs], o.image_size, o.channels), [c for _, c in pairs])


def read(source, o, task):
    """The parts of a folder of images."""
    root = Path(source)
    parts = {PARTS[p.name.lower()]: p for p in sorted(root.iterdir()) if p.is_dir() and p.name.lower() in PARTS}
    if parts and "train" not in parts:
        raise InputError(f"The folder has parts, and none to train on. Received: {', '.join(sorted(parts))}")
    parts = parts or {"train": root}
    classes = sorted(p.name for p in parts["train"].iterdir() if p.is_dir() and not p.name.startswith("."))
    for name, folder in parts.items():
        other = [p.name for p in folder.iterdir() if p.is_dir() and p.name not in classes]
        if other and name != "train":
            raise InputError(f"{name}: a class that training does not have. Received: {', '.join(sorted(other))}")
    return Parts(**{name: _part(folder, classes, o) for name, folder in parts.items()}, classes=classes)
