"""Stateless tensor functions on `keras.ops`.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, D width of a head, E width of a value.
Masks are boolean, True = keep.
"""

import math

import keras
from keras import ops

from kerastf import chunked, kernels
from kerastf.chunked import NEGATIVE


def positions(length, index=0):
    """The positions of `length` tokens that start at `index`, a scalar or one start per row.

    Returns:
        `(T,)` for a scalar start, `(B, T)` for one start per row.
    """
    offsets = ops.arange(length, dtype="int32")
    if isinstance(index, int):
        return offsets + index  # (T,)
    index = ops.cast(index, "int32")
    return offsets + (index if len(index.shape) == 0 else ops.expand_dims(index, -1))  # (T,) or (B, T)


def visible(query_positions, key_positions, *, causal=True, window=None):
    """Which key each query may see, by position.

    Args:
        query_positions: `(T,)` or `(B, T)`.
        key_positions: `(S,)` or `(B, S)`; a negative position is never seen.
        causal: Whether keys after the query are hidden.
        window: How many positions up to and with its own a query sees; None for all. Without `causal`, also as many
            to the other side.

    Returns:
        Boolean `(T, S)` or `(B, T, S)`.
    """
    distance = ops.expand_dims(query_positions, -1) - ops.expand_dims(key_positions, -2)
    keep = ops.expand_dims(key_positions >= 0, -2)
    if causal:
        keep = ops.logical_and(keep, distance >= 0)
    if window is not None:
        keep = ops.logical_and(keep, ops.abs(distance) < window)
    return ops.logical_and(keep, ops.ones_like(distance, dtype="bool"))


def join_masks(*masks):
    """The conjunction of masks `(B, S)`, `(T, S)` by position (rank 2, marked by a tuple) or `(B, T, S)`.

    Args:
        *masks: None, a key mask `(B, S)`, a full mask `(B, T, S)`, or `("pairs", (T, S))`.

    Returns:
        `(B or 1, 1, T or 1, S)`, or None where every mask is None.
    """
    joined = None
    for mask in masks:
        if mask is None:
            continue
        if isinstance(mask, tuple):
            mask = mask[1][None] if len(mask[1].shape) == 2 else mask[1]  # (1 or B, T, S)
        elif len(mask.shape) == 2:
            mask = mask[:, None, :]  # (B, 1, S)
        mask = ops.cast(mask[:, None], "bool")  # (B, 1, T or 1, S)
        joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined


def dot_scores(query, key, *, scale=1.0):
    """`scale * q k` for queries `(B, T, H, D)` and keys `(B, S, K, D)`, H a multiple of K: `(B, H, T, S)`."""
    heads, shared = query.shape[2], key.shape[2]
    query = query if scale == 1 else query * scale
    if _one_by_one(query):
        query = ops.reshape(query, (-1, 1, shared, heads // shared, query.shape[3]))  # (B, 1, K, H/K, D)
        scores = ops.sum(query * ops.expand_dims(key, 3), axis=-1)  # (B, S, K, H/K)
        return ops.reshape(ops.transpose(scores, (0, 2, 3, 1)), (-1, heads, 1, key.shape[1]))  # (B, H, 1, S)
    query = ops.transpose(query, (0, 2, 1, 3))  # (B, H, T, D)
    key = ops.transpose(key, (0, 2, 3, 1))  # (B, K, D, S)
    return ops.matmul(query, _share(key, heads // shared))  # (B, H, T, S)


def _one_by_one(query):
    """Whether products are written as sums: of one query, in a loop that XLA compiles, so that no key is moved."""
    return query.shape[1] == 1 and query.shape[0] is not None and keras.backend.backend() != "torch"


def additive_scores(query, key, vector):
    """`v tanh(q + k)` for one head: queries `(B, T, 1, D)`, keys `(B, S, 1, D)`, vector `(D,)`: `(B, 1, T, S)`."""
    total = ops.tanh(ops.expand_dims(query[:, :, 0], 2) + ops.expand_dims(key[:, :, 0], 1))  # (B, T, S, D)
    # As a product of two matrices: a sum over `total * vector` would write that down, and twice more going back.
    scores = ops.matmul(ops.reshape(total, (-1, total.shape[-1])), vector[:, None])  # (B T S, 1)
    return ops.reshape(scores, (-1, 1, *ops.shape(total)[1:3]))  # (B, 1, T, S)


def _share(x, times):
    """Lets each key/value head serve `times` query heads: `(B, K, ...)` to `(B, K * times, ...)`."""
    return x if times == 1 else ops.repeat(x, times, axis=1)


def weigh(scores, mask=None, bias=None):
    """Softmax over the keys, in float32: scores `(B, H, T, S)`, mask as from `join_masks`, bias `(H, T, S)` or 4-D."""
    weights = ops.cast(scores, "float32")
    if bias is not None:
        weights = weights + ops.cast(bias, "float32")
    if mask is not None:
        weights = ops.where(mask, weights, NEGATIVE)
    return chunked.softmax(weights)  # (B, H, T, S)


def mean_by(weights, value):
    """The mean of values `(B, S, K, E)` under weights `(B, H, T, S)`: `(B, T, H, E)`."""
    heads, shared = weights.shape[1], value.shape[2]
    if _one_by_one(ops.transpose(weights, (0, 2, 1, 3))):
        shape = (-1, shared, heads // shared, value.shape[1])
        weights = ops.transpose(ops.reshape(ops.cast(weights, value.dtype), shape), (0, 3, 1, 2))  # (B, S, K, H/K)
        mean = ops.sum(ops.expand_dims(weights, -1) * ops.expand_dims(value, 3), axis=1)  # (B, K, H/K, E)
        return ops.reshape(mean, (-1, 1, heads, value.shape[3]))  # (B, 1, H, E)
    value = ops.transpose(value, (0, 2, 1, 3))  # (B, K, S, E)
    mean = ops.matmul(ops.cast(weights, value.dtype), _share(value, weights.shape[1] // value.shape[1]))  # (B, H, T, E)
    return ops.transpose(mean, (0, 2, 1, 3))  # (B, T, H, E)


def attention(
    query, key, value, *, score="dot", vector=None, scale=None, mask=None, causal=False, window=None, bias=None,
    dropout=0.0, seed=None, return_weights=False,
):  # fmt: skip
    """Attention: the mean of the values, weighted by how relevant each key is to the query.

    `Attention(Q, K, V) = softmax(score(Q, K)) V`, with the score a scaled dot product, a cosine, or additive:
    `score = v tanh(q + k)`.

    With a dot product or cosine, and where the weights are not asked for, the form is chosen by backend and shape:
    TensorFlow goes through the queries piece by piece, skips keys that a piece cannot see, and keeps no weights of
    long sequences for the gradient; JAX on a GPU and PyTorch take their flash attention where it can serve. A query
    that may see no key at all is given some mean of the values, not the same one by every form.

    Args:
        query: `(B, T, H, D)`.
        key: `(B, S, K, D)`, H a multiple of K.
        value: `(B, S, K, E)`.
        score: `"dot"`, `"cosine"` or `"additive"`.
        vector: The `v` of the additive score, `(D,)`; queries and keys have one head then.
        scale: What the dot product or cosine is multiplied by; `1 / sqrt(D)` by default for `"dot"`, else 1.
        mask: Boolean `(B, S)` or `(B, T, S)`, True = keep.
        causal: Whether query `t` sees keys `<= t` only.
        window: How many positions up to its own a query sees; None for all.
        bias: Added to the scores, `(H, T, S)` or `(B, H, T, S)`.
        dropout: Fraction of the weights that is dropped, in `[0, 1)`.
        seed: A `keras.random.SeedGenerator`, where something is dropped.
        return_weights: Whether to return the weights too, as they are before any is dropped.

    Returns:
        `(B, T, H, E)`; with `return_weights` a pair with the weights `(B, H, T, S)`.

    Examples:
        >>> from keras import ops
        >>> from kerastf.functional import attention
        >>> x = ops.ones((1, 3, 1, 4))
        >>> mean, weights = attention(x, x, x, causal=True, return_weights=True)
        >>> [round(float(w), 2) for w in weights[0, 0, 1]]
        [0.5, 0.5, 0.0]
    """
    if score not in ("dot", "cosine", "additive"):
        raise ValueError(f"`score` must be one of 'dot', 'cosine', 'additive'. Received: score={score!r}")
    if score != "additive":
        if score == "cosine":
            query, key = (ops.normalize(x, axis=-1) for x in (query, key))
        scale = scale if scale is not None else 1 / math.sqrt(query.shape[-1]) if score == "dot" else 1.0
        query = query if scale == 1 else query * scale
        if not return_weights:
            rules = {"causal": causal, "window": window, "bias": bias, "rate": dropout, "seed": seed}
            mean = _in_a_form(query, key, value, join_masks(mask), **rules)
            if mean is not None:
                return mean
    allowed = None
    if causal or window is not None:
        where = positions(ops.shape(query)[1]), positions(ops.shape(key)[1])
        allowed = ("pairs", visible(*where, causal=causal, window=window))
    scores = additive_scores(query, key, vector) if score == "additive" else dot_scores(query, key)
    weights = weigh(scores, join_masks(mask, allowed), bias)
    mean = mean_by(drop(weights, dropout, seed), value)
    return (mean, weights) if return_weights else mean


def _in_a_form(query, key, value, mask, *, causal, window, bias, rate, seed):
    """Attention by a form that writes no weights down, or None where the backend has none for these shapes."""
    length, keys = query.shape[1], key.shape[1]
    if keras.backend.is_keras_tensor(query) or None in (length, keys) or 1 in (length, keys):
        return None  # one query or one key is as fast without
    if keras.backend.backend() != "tensorflow":
        return kernels.flash(query, key, value, mask, bias, causal, rate) if window is None else None
    times = query.shape[2] // key.shape[2]
    query = ops.transpose(query, (0, 2, 1, 3))  # (B, H, T, D)
    key, value = (_share(ops.transpose(x, (0, 2, 1, 3)), times) for x in (key, value))  # (B, H, S, D or E)
    mean = chunked.attention(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window, rate=rate,
        seed=kernels.next_seed(seed) if rate else None,
    )  # fmt: skip
    return ops.transpose(mean, (0, 2, 1, 3))  # (B, T, H, E)


def drop(x, rate, seed):
    """Sets a share of `rate` to 0, and divides the rest by the share that stays, so that the mean is kept.

    Args:
        x: A float tensor.
        rate: A number in `[0, 1)`.
        seed: A `keras.random.SeedGenerator`.
    """
    if not rate:
        return x
    if keras.backend.backend() != "tensorflow" or keras.backend.is_keras_tensor(x):
        return keras.random.dropout(x, rate, seed=seed)
    kept = kernels.kept_by_chance(kernels.next_seed(seed), ops.shape(x), rate)
    return ops.where(kept, x / ops.cast(kernels.kept_share(rate), x.dtype), ops.zeros((), x.dtype))


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


def logistic_losses(true, true_weights, false, false_weights):
    """`-w log s(x)` of true scores and `-w log s(-x)` of false ones, summed per row: `(B,)`."""
    pieces = (true_weights * ops.softplus(-true), false_weights * ops.softplus(false))
    return sum(ops.sum(p, axis=tuple(range(1, len(p.shape)))) for p in pieces)


def logistic_slope(true, true_weights, false, false_weights):
    """A scalar with the gradient of the sum of `logistic_losses`, without its logarithms."""
    slopes = (true_weights * (ops.sigmoid(true) - 1), true), (false_weights * ops.sigmoid(false), false)
    return sum(ops.sum(ops.stop_gradient(slope) * score) for slope, score in slopes)


def activation_of(name):
    """The activation function that a name stands for, the names that models give their blocks included.

    Args:
        name: Name of a Keras activation, or `"gelu_tanh"` for GPT-2's approximation of GELU.

    Raises:
        ValueError: There is none of that name.

    Examples:
        >>> from kerastf.functional import activation_of
        >>> float(activation_of("relu")(-1.0))
        0.0
    """
    if name == "gelu_tanh":
        return lambda x: keras.activations.gelu(x, approximate=True)
    try:
        return keras.activations.get(name)
    except ValueError:
        raise ValueError(
            f"`activation` must be 'gelu_tanh' or the name of a Keras activation. Received: activation={name!r}"
        ) from None


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


def rollout(weights):
    """How much each position of the input goes into each position of the output, through all layers.

    A residual layer passes on half of itself: with `A_l` the mean over the heads of layer l's weights,
    `R = M_L ... M_1` with `M_l = (A_l + I) / 2`

    Args:
        weights: One `(B, H, T, T)` per layer, the first layer first.

    Returns:
        `(B, T, T)`; each row sums to 1.

    References:
        - [Abnar and Zuidema, 2020](https://arxiv.org/abs/2005.00928), section 4
    """
    total = None
    for layer in weights:
        mean = ops.mean(ops.cast(layer, "float32"), axis=1)  # (B, T, T)
        step = (mean + ops.eye(mean.shape[-1])) / 2
        total = step if total is None else ops.matmul(step, total)
    return total


def pick(x, where):
    """Features at chosen positions of each row: `(B, T, C)` and integers `(B, M)` to `(B, M, C)`."""
    shape = ops.shape(x)
    rows = ops.arange(shape[0], dtype="int32")[:, None] * shape[1]  # (B, 1)
    flat = ops.reshape(x, (-1, x.shape[-1]))  # (B T, C): gathering whole vectors is much quicker than along an axis
    return ops.take(flat, ops.cast(where, "int32") + rows, axis=0)
