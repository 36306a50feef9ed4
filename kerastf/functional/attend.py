"""Attention, and who sees whom.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, D width of a head, E width of a value.
Masks are boolean, True = keep.
"""

import math

import keras
from keras import ops

from kerastf import chance, chunked_attention, compat, kernels, products, shapes
from kerastf.chunked_attention import NEGATIVE


def positions(length, index=0):
    """The positions of `length` tokens that start at `index`, a scalar or one start per row.

    Returns:
        `(T,)` for a scalar start, `(B, T)` for one start per row.
    """
    offsets = ops.arange(length, dtype="int32")
    if isinstance(index, int):
        return offsets + index if index else offsets  # (T,)
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
            mask = mask[:, None]  # (B, 1, S)
        mask = ops.cast(mask[:, None], "bool")  # (B, 1, T or 1, S)
        joined = mask if joined is None else ops.logical_and(joined, mask)
    return joined


def dot_scores(query, key, *, scale=1.0):
    """`scale * q k` for queries `(B, T, H, D)` and keys `(B, S, K, D)`, H a multiple of K: `(B, H, T, S)`."""
    heads, shared = query.shape[2], key.shape[2]
    query = query if scale == 1 else query * scale
    if _alone(query.shape[1]):
        query = ops.reshape(query, (-1, heads // shared, query.shape[3]))  # (B K, H/K, D)
        scores = products.product(query, heads_as_rows(key), transpose_b=True)  # (B K, H/K, S)
        return ops.reshape(scores, (-1, heads, 1, ops.shape(key)[1]))  # (B, H, 1, S)
    query = shapes.heads_first(query)  # (B, H, T, D)
    key = ops.transpose(key, (0, 2, 3, 1))  # (B, K, D, S)
    return ops.matmul(query, _share(key, heads // shared))  # (B, H, T, S)


def _alone(length):
    """Whether heads count as rows: for one query in a loop that XLA compiles, where what is kept so is not moved."""
    return length == 1 and compat.compiling()


def heads_as_rows(x):
    """`(B, S, K, D)` to `(B K, S, D)`, which is how decoding keeps keys and values.

    Between the place where a token is written and the product that reads it, XLA on a CPU may meet no other shape: it
    would copy all that is kept, at every token.
    """
    if x.shape[2] == 1:
        return ops.squeeze(x, 2)  # nothing to move
    return ops.reshape(shapes.heads_first(x), (-1, ops.shape(x)[1], x.shape[3]))


def heads_apart(x, heads):
    """`(B K, S, D)` to `(B, S, K, D)`: the way back from `heads_as_rows`."""
    if heads == 1:
        return ops.expand_dims(x, 2)
    return shapes.heads_first(ops.reshape(x, (-1, heads, ops.shape(x)[1], x.shape[2])))


def additive_scores(query, key, vector):
    """`v tanh(q + k)` for one head: queries `(B, T, 1, D)`, keys `(B, S, 1, D)`, vector `(D,)`: `(B, 1, T, S)`."""
    # Squeezed, not cut out: the gradient of a cut is a tensor of zeros to write into.
    total = ops.tanh(query + ops.expand_dims(ops.squeeze(key, 2), 1))  # (B, T, S, D)
    # As a product of two matrices: a sum over `total * vector` would write that down, and twice more going back.
    scores = ops.matmul(ops.reshape(total, (-1, total.shape[-1])), vector[:, None])  # (B T S, 1)
    return ops.reshape(scores, (-1, 1, *ops.shape(total)[1:3]))  # (B, 1, T, S)


def _share(x, times, axis=1):
    """Lets each key/value head serve `times` query heads, which stand along `axis`: `(B, K, ...)` to `(B, H, ...)`."""
    return x if times == 1 else ops.repeat(x, times, axis=axis)


def weigh(scores, mask=None, bias=None):
    """Softmax over the keys, in float32: scores `(B, H, T, S)`, mask as from `join_masks`, bias `(H, T, S)` or 4-D."""
    weights = ops.cast(scores, "float32")
    if bias is not None:
        weights = weights + ops.cast(bias, "float32")
    if mask is not None:
        weights = ops.where(mask, weights, NEGATIVE)
    return chunked_attention.softmax(weights)  # (B, H, T, S)


def mean_by(weights, value):
    """The mean of values `(B, S, K, E)` under weights `(B, H, T, S)`: `(B, T, H, E)`."""
    heads, shared = weights.shape[1], value.shape[2]
    if _alone(weights.shape[2]):
        weights = ops.reshape(ops.cast(weights, value.dtype), (-1, heads // shared, ops.shape(value)[1]))
        mean = products.product(weights, heads_as_rows(value))  # (B K, H/K, E)
        return ops.reshape(mean, (-1, 1, heads, value.shape[3]))  # (B, 1, H, E)
    value = shapes.heads_first(value)  # (B, K, S, E)
    mean = ops.matmul(ops.cast(weights, value.dtype), _share(value, weights.shape[1] // value.shape[1]))  # (B, H, T, E)
    return shapes.heads_first(mean)  # (B, T, H, E)


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
    key, value = (_share(x, times, axis=2) for x in (key, value))  # (B, S, H, D or E)
    return chunked_attention.attention(
        query, key, value, mask=mask, bias=bias, causal=causal, window=window, rate=rate,
        seed=chance.next_seed(seed) if rate else None,
    )  # fmt: skip


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
    kept = chance.kept_by_chance(chance.next_seed(seed), ops.shape(x), rate)

    @compat.custom_gradient  # of a product and a choice TensorFlow would trace thrice as many operations
    def choose(x):
        return chance.only_kept(x, kept, rate), lambda above: chance.only_kept(above, kept, rate)

    return choose(x)


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
