"""Attention piece by piece, with a gradient of its own, so that the weights never exist as a whole. For TensorFlow.

Shapes: B batch, T queries, S keys, H heads, D per head, E per value; R queries and Z keys of a piece.
"""

from typing import NamedTuple

import numpy as np
from keras import ops

from kerastf import chance, kernels, products, shapes, tracing

# Softmax runs in float32, so this is finite there, and its exponential is exactly zero.
NEGATIVE = -1e30
PIECES = 8  # how often a sequence is cut at most
SHORT = 64  # how many queries a piece has at least
ROWS = 128  # how many queries are looked at together at most
KEPT = 512  # up to this length the weights are kept for the gradient; beyond it they are computed again


class Piece(NamedTuple):
    """Queries from `start` to `stop`, which see keys from `first` to `last`."""

    start: int
    stop: int
    first: int
    last: int


def pieces_of(length, keys, causal, window, most=None):
    """Cuts queries into pieces: of at most `most` (None for any number), or multiples of `ROWS`.

    Args:
        length: How many queries there are.
        keys: How many keys there are.
        causal: Whether query `t` sees keys `<= t` only.
        window: How many positions up to its own a query sees; None for all.
        most: How many queries a piece may have.
    """
    if length <= KEPT and not causal and window is None:
        return [Piece(0, length, 0, keys)]
    size = max(SHORT, -(-length // PIECES))
    size = size if size <= ROWS else -(-size // ROWS) * ROWS
    size = size if most is None else min(size, most)
    ends = [*range(size, length, size), length]
    if ends[-1] - (ends[-2] if len(ends) > 1 else 0) > ROWS:  # a remainder of its own, where the last is no multiple
        ends = sorted({*ends, length // ROWS * ROWS})
    pieces = []
    for start, stop in zip([0, *ends], ends, strict=False):
        first = 0 if window is None else max(0, start - window + 1)
        last = stop if causal else keys if window is None else min(keys, stop + window - 1)
        pieces.append(Piece(start, stop, first, last))
    return pieces


def attention(query, key, value, *, mask=None, bias=None, causal=False, window=None, rate=0.0, seed=None):
    """Attention over pieces of the queries, each of which looks only at the keys that it may see.

    The weights `(B, H, T, S)` never exist as a whole. Of long sequences none are kept: the gradient computes them anew.

    Args:
        query: `(B, T, H, D)`, scaled; T and S are known.
        key: `(B, S, H, D)`.
        value: `(B, S, H, E)`.
        mask: Boolean `(B or 1, 1, T or 1, S)`, True = keep, or None.
        bias: Added to the scores, `(H, T, S)` or `(B, H, T, S)`, or None.
        causal: Whether query `t` sees keys `<= t` only; T is S then.
        window: How many positions up to its own a query sees, and without `causal` as many to the other side.
        rate: Which share of the weights is dropped.
        seed: Two integers that decide which.

    Returns:
        `(B, T, H, E)`.
    """
    attend = tracing.shared(_attention, causal=causal, window=window, rate=rate)
    return attend(query, key, value, mask, bias, seed)


def _attention(query, key, value, mask, bias, seed, *, causal, window, rate):
    length, keys = query.shape[1], key.shape[1]
    keep = length <= KEPT
    pieces = pieces_of(length, keys, causal, window, most=ROWS if bias is not None else None)
    many = [not keep and piece.stop - piece.start > ROWS for piece in pieces]
    biases = () if bias is None else (bias if len(bias.shape) == 4 else bias[None],)
    hidden = None if mask is None else ops.where(mask, 0.0, NEGATIVE)

    def in_pieces(x):
        return shapes.split(x, [piece.stop - piece.start for piece in pieces], axis=2)

    def weights_of(q, k, biases, start, piece):
        """Weights `(B, H, R, Z)` of the queries from `start`, and which of them are not dropped, or None."""
        scores = ops.cast(products.product(q, k, transpose_b=True), "float32")
        stop = start + q.shape[2]
        shift = _out_of_sight(start, q.shape[2], piece, causal, window)
        if hidden is not None:
            there = hidden if hidden.shape[2] == 1 else hidden[:, :, start:stop]
            there = there[..., piece.first : piece.last]
            shift = there if shift is None else shift + there
        scores = scores if shift is None else scores + shift
        if biases:
            scores = scores + ops.cast(biases[0][:, :, start:stop, piece.first : piece.last], "float32")
        kept = chance.kept_by_chance(_moved(seed, start), ops.shape(scores), rate) if rate else None
        return softmax(scores), kept

    def dropped(weights, kept):
        return weights if kept is None else chance.only_kept(weights, kept, rate)

    def forward(q, k, v, biases, start, piece):
        weights, kept = weights_of(q, k, biases, start, piece)
        return products.product(ops.cast(dropped(weights, kept), v.dtype), v), weights, kept

    def backward(q, k, v, biases, slope, output, start, piece, known=None):
        """Slopes of queries, of keys `(B, H, D, Z)` and values `(B, H, E, Z)`, and of scores.

        Those of keys and values are turned: TensorFlow's products are slow where the larger of two is to be transposed.
        """
        weights, kept = known or weights_of(q, k, biases, start, piece)
        of_value = products.product(slope, ops.cast(dropped(weights, kept), v.dtype), transpose_a=True)  # (B, H, E, Z)
        of_weight = dropped(ops.cast(products.product(slope, v, transpose_b=True), "float32"), kept)  # (B, H, R, Z)
        mean = ops.sum(ops.cast(slope, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)
        of_score = weights * (of_weight - mean)
        rounded = ops.cast(of_score, q.dtype)
        return products.product(rounded, k), products.product(q, rounded, transpose_a=True), of_value, of_score

    def attend_long(q, k, v, piece):
        """A piece of many rows, some at a time."""
        rows = _stacked(q)  # (N, B, H, R, D)
        starts = piece.start + ROWS * ops.arange(rows.shape[0], dtype="int32")

        def attend_some(nothing, row):
            return nothing, forward(row[0], k, v, (), row[1], piece)[:1]

        shape = (*rows.shape[1:-1], v.shape[3]), v.dtype  # (B, H, R, E)
        return _flat(kernels.fold(attend_some, (), (rows, starts), [shape])[1][0])

    def slopes_long(q, k, v, slope, output, piece):
        rows = [_stacked(x) for x in (q, slope, output)]
        starts = piece.start + ROWS * ops.arange(rows[0].shape[0], dtype="int32")

        def add(total, row):
            q, slope, output, start = row
            of_query, of_key, of_value, _ = backward(q, k, v, (), slope, output, start, piece)
            return tuple(a + ops.cast(b, a.dtype) for a, b in zip(total, (of_key, of_value), strict=True)), (of_query,)

        start = tuple(ops.zeros([ops.shape(x)[n] for n in (0, 1, 3, 2)]) for x in (k, v))
        (of_key, of_value), (of_query,) = kernels.fold(add, start, (*rows, starts), [(rows[0].shape[1:], q.dtype)])
        return _flat(of_query), ops.cast(of_key, k.dtype), ops.cast(of_value, v.dtype), None

    @ops.custom_gradient
    def attend(q, k, v, *biases):
        q, k, v = (shapes.heads_first(x) for x in (q, k, v))
        outputs, known = [], []
        for piece, long, rows in zip(pieces, many, in_pieces(q), strict=True):
            parts = rows, _seen(k, piece), _seen(v, piece)
            if long:
                output, weights = attend_long(*parts, piece), None
            else:
                output, *weights = forward(*parts, biases, piece.start, piece)
            outputs.append(output)
            known.append(weights if keep else None)

        def gradient(slope):
            slope = shapes.heads_first(slope)
            # Tied to the slope from above, or it is found that the weights were there before, and they are kept.
            q1, k1, v1, *biases1 = kernels.tied((q, k, v, *biases), slope)
            found, apart = [], zip(pieces, many, in_pieces(q1), in_pieces(slope), outputs, known, strict=True)
            for piece, long, rows, *above, weights in apart:
                parts = rows, _seen(k1, piece), _seen(v1, piece)
                if long:
                    found.append(slopes_long(*parts, *above, piece))
                else:
                    found.append(backward(*parts, biases1, *above, piece.start, piece, weights))
            of_query, of_key, of_value, of_score = zip(*found, strict=True)
            ends = [(piece.first, keys - piece.last) for piece in pieces]
            turned = [ops.transpose(_overlaid(x, ends), (0, 3, 1, 2)) for x in (of_key, of_value)]
            total = [shapes.heads_first(_joined(of_query)), *turned]
            if biases:
                of_bias = _joined([ops.pad(s, [[0, 0]] * 3 + [end]) for s, end in zip(of_score, ends, strict=True)])
                alike = [n for n in (0, 1) if biases[0].shape[n] == 1]
                total.append(ops.cast(ops.sum(of_bias, axis=alike, keepdims=True) if alike else of_bias, bias.dtype))
            return tuple(total)

        return shapes.heads_first(_joined(outputs)), gradient

    return attend(query, key, value, *biases)


def softmax(scores):
    """Softmax over the last axis. One key has all the weight; Keras warns of a softmax over one."""
    return ops.ones_like(scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def _out_of_sight(start, count, piece, causal, window):
    """What hides keys by their position from `count` queries: `(R, Z)`, or None where all are seen."""
    if not causal and window is None:
        return None
    here = np if isinstance(start, int) else ops  # what is known now need not be traced
    distance = (start + here.arange(count))[:, None] - here.arange(piece.first, piece.last)[None]
    seen = distance >= 0 if causal else here.ones_like(distance, dtype="bool")
    if window is not None:
        seen = here.logical_and(seen, here.abs(distance) < window)
    return ops.convert_to_tensor(here.where(seen, 0.0, NEGATIVE), "float32")


def _moved(seed, start):
    """Another seed for each piece."""
    return ops.cast(seed, "int32") + ops.stack([ops.cast(7_919 * start, "int32"), 0])


def _seen(x, piece):
    """Of keys or values `(B, H, S, D)` those that a piece's queries see."""
    return x if (piece.first, piece.last) == (0, x.shape[2]) else x[:, :, piece.first : piece.last]


def _joined(parts):
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=2)


def _overlaid(parts, ends):
    """The sum of parts that stand at different places of the last axis."""
    total = None
    for part, end in zip(parts, ends, strict=True):
        whole = ops.pad(part, [[0, 0]] * 3 + [end]) if any(end) else part
        total = whole if total is None else total + whole
    return total


def _stacked(x):
    """`(B, H, N R, D)` to `(N, B, H, R, D)`."""
    shape = ops.shape(x)
    return ops.transpose(ops.reshape(x, (*shape[:2], x.shape[2] // ROWS, ROWS, shape[3])), (2, 0, 1, 3, 4))


def _flat(x):
    """`(N, B, H, R, D)` to `(B, H, N R, D)`."""
    shape = ops.shape(x)
    return ops.reshape(ops.transpose(x, (1, 2, 0, 3, 4)), (shape[1], shape[2], x.shape[0] * ROWS, shape[4]))
