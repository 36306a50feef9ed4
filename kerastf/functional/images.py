"""Images as grids of patches."""

from keras import ops


def pair(name, value):
    """A size that is given as one number or as (height, width), as the latter.

    Raises:
        ValueError: It is neither, or not positive.
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or any(n < 1 for n in both):
        raise ValueError(f"`{name}` must be a positive number, or height and width. Received: {name}={value}")
    return both


def patch_grid(image_size, patch_size):
    """How many patches stand above and beside each other; None along a side that is not known.

    Args:
        image_size: Height and width of the image.
        patch_size: Height and width of a patch.

    Raises:
        ValueError: The image is not a whole number of patches.
    """
    for side, patch in zip(image_size, patch_size, strict=True):
        if side is not None and side % patch:
            size, part = (" x ".join(map(str, pair)) for pair in (image_size, patch_size))
            raise ValueError(
                f"The image must be a whole number of patches high and wide. Crop or resize it, or choose another "
                f"patch size. Received: an image of {size} and patches of {part}"
            )
    return tuple(None if s is None else s // p for s, p in zip(image_size, patch_size, strict=True))


def patches(images, patch_size):
    """The patches of images, row by row, each flattened row by row: `(B, H, W, D)` to `(B, N, P Q D)`.

    Args:
        images: `(B, H, W, D)`, H and W multiples of the patch's sides.
        patch_size: Height P and width Q of a patch.

    Examples:
        >>> from keras import ops
        >>> from kerastf.functional import patches
        >>> ops.convert_to_numpy(patches(ops.reshape(ops.arange(16), (1, 4, 4, 1)), (2, 2)))[0].tolist()
        [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """
    high, wide = patch_size
    batch, height, width, channels = ops.shape(images)
    rows, columns = height // high, width // wide
    x = ops.reshape(images, (batch, rows, high, columns, wide, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))  # (B, H/P, W/Q, P, Q, D)
    return ops.reshape(x, (batch, rows * columns, high * wide * channels))  # (B, N, P Q D)


def resize_grid(table, old, new, *, method="bicubic"):
    """Interpolates vectors that stand on a grid to another grid over the same area.

    Args:
        table: `(h w, C)`, row by row.
        old: Height h and width w of the grid.
        new: Height and width of the grid wanted.
        method: `"bicubic"` or `"bilinear"`.

    Returns:
        `(h' w', C)`; a copy of the table where the grids are equal.
    """
    if tuple(old) == tuple(new):
        return ops.copy(table)
    grid = ops.reshape(ops.cast(table, "float32"), (1, *old, -1))
    grid = ops.image.resize(grid, tuple(new), interpolation=method, data_format="channels_last")
    return ops.cast(ops.reshape(grid, (new[0] * new[1], -1)), table.dtype)
