"""Positions, caches and features along a sequence.

Shapes: B batch, T positions, S places of a cache, C channels, H heads, D width of a head.
Masks are boolean, True = keep.
"""

import math

from keras import ops


def sinusoids(where, dim, *, layout="interleaved", base=10000.0):
    """The sinusoidal code of positions: `sin(p / base^(2i/C))` and `cos` of the same.

    Args:
        where: Positions of any shape.
        dim: Width C of the code; even.
        layout: `"interleaved"` (sin, cos, sin, cos, ...) or `"concatenated"` (all sines, then all cosines).
        base: The longest wavelength is `2 pi base`.

    Returns:
        Float32, the shape of `where` and then C.
    """
    half = dim // 2
    rates = ops.exp(ops.arange(half, dtype="float32") * (-2.0 * math.log(base) / dim))  # (C/2,)
    angles = ops.expand_dims(ops.cast(where, "float32"), -1) * rates  # (..., C/2)
    if layout == "interleaved":
        pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # (..., C/2, 2)
        return ops.reshape(pairs, (*ops.shape(angles)[:-1], dim))  # (..., C)
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)  # (..., C)


def rotate(x, where, *, base=10000.0):
    """Turns each pair `(x_i, x_{i + D/2})` of a head by an angle that grows with its position.

    Args:
        x: `(B, T, H, D)`, D even.
        where: Positions `(T,)` or `(B, T)`.
        base: As in `sinusoids`.

    Returns:
        `(B, T, H, D)`.
    """
    code = ops.cast(sinusoids(where, x.shape[-1], layout="concatenated", base=base), x.dtype)  # ([B,] T, D)
    sin, cos = ops.split(ops.expand_dims(code, -2), 2, axis=-1)  # ([B,] T, 1, D/2) each
    left, right = ops.split(x, 2, axis=-1)  # (B, T, H, D/2) each
    return ops.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)  # (B, T, H, D)


def slopes(num_heads):
    """ALiBi's slope of each head: a geometric series from `2^(-8/H)`; odd counts interleave the next power's."""
    power = 2 ** math.floor(math.log2(num_heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    rest = [2 ** (-4 * (2 * i + 1) / power) for i in range(num_heads - power)]
    return first + rest


def write(cache, new, index):
    """Writes `new` `(B, T, ...)` into `cache` `(B, S, ...)` at position `index`, a scalar or one per row."""
    new = ops.cast(new, cache.dtype)
    if isinstance(index, int) or len(index.shape) == 0:
        start = (0, index, *([0] * (len(cache.shape) - 2)))
        return ops.slice_update(cache, start, new)
    slots = ops.arange(cache.shape[1], dtype="int32")[None]  # (1, S)
    return place(cache, new, slots - ops.cast(index, "int32")[:, None])


def place(cache, new, source):
    """Takes row `source` of `new` where that exists, and what `cache` holds elsewhere.

    Args:
        cache: `(B, S, ...)`.
        new: `(B, T, ...)`.
        source: Integers `(B or 1, S)`; outside of `[0, T)` the cache stays.
    """
    rest = [1] * (len(cache.shape) - 2)
    length = new.shape[1]
    inside = ops.logical_and(source >= 0, source < length)
    source = ops.broadcast_to(ops.clip(source, 0, length - 1), ops.shape(cache)[:2])  # (B, S)
    taken = ops.take_along_axis(new, ops.reshape(source, (*ops.shape(source), *rest)), axis=1)
    inside = ops.reshape(inside, (*ops.shape(inside), *rest))
    return ops.where(inside, ops.cast(taken, cache.dtype), cache)


def last_kept(x, mask=None):
    """Features of the last kept position of each row: `(B, T, C)` and mask `(B, T)` to `(B, C)`."""
    if mask is None:
        return x[:, -1]
    count = ops.shape(mask)[1]
    numbers = ops.where(mask, ops.arange(count, dtype="int32")[None], -1)
    index = ops.maximum(ops.max(numbers, axis=1), 0)  # (B,)
    return ops.squeeze(ops.take_along_axis(x, index[:, None, None], axis=1), axis=1)


def mean_kept(x, mask=None):
    """Mean over the kept positions: `(B, T, C)` and mask `(B, T)` to `(B, C)`; zeros where nothing is kept."""
    if mask is None:
        return ops.mean(x, axis=1)
    weights = ops.cast(mask, x.dtype)[..., None]
    return ops.sum(x * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)


def pick(x, where):
    """What stands at chosen positions of each row: `(B, T, ...)` and integers `(B, M)` to `(B, M, ...)`."""
    shape = ops.shape(x)
    rows = ops.arange(shape[0], dtype="int32")[:, None] * shape[1]  # (B, 1)
    flat = ops.reshape(x, (-1, *shape[2:]))  # (B T, ...): gathering whole vectors is much quicker than along an axis
    return ops.take(flat, ops.cast(where, "int32") + rows, axis=0)


def near(reach, span):
    """Which tokens stand in the window of each centre: 1 where they do, the centre itself not.

    Args:
        reach: Integers `(B, T, 2)`, how many tokens the window of a centre has to its left and to its right.
        span: How many tokens W stand before the first centre and after the last.

    Returns:
        Float32 `(B, T, T + 2 W)`.
    """
    count = reach.shape[1]
    distance = ops.arange(count + 2 * span)[None] - span - ops.arange(count)[:, None]  # (T, S)
    inside = ops.logical_and(distance >= -reach[..., :1], distance <= reach[..., 1:])  # (B, T, S)
    return ops.cast(ops.logical_and(inside, distance != 0), "float32")
