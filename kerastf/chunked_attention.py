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
    by_program = bias is None and _pays_as_program(query, key)
    attend = tracing.shared(_attention, causal=causal, window=window, rate=rate, by_program=by_program)
    return attend(query, key, value, mask, bias, seed)


def _attention(query, key, value, mask, bias, seed, *, causal, window, rate, by_program):
    length, keys = query.shape[1], key.shape[1]
    keep = length <= KEPT
    pieces = pieces_of(length, keys, causal, window, most=ROWS if bias is not None else None)
    many = [not keep and piece.stop - piece.start > ROWS for piece in pieces]
    biases = () if bias is None else (bias if len(bias.shape) == 4 else bias[None],)
    hidden = None if mask is None else ops.where(mask, 0.0, NEGATIVE)

    def in_pieces(x, axis=2):
        return shapes.split(x, [piece.stop - piece.start for piece in pieces], axis)

    def drawn(q, start, piece):
        """Which weights of the queries `(B, H, R, D)` from `start` are not dropped; None for all."""
        if not rate:
            return None
        return chance.kept_by_chance(_moved(seed, start), (*ops.shape(q)[:3], piece.last - piece.first), rate)

    def dropped(weights, kept):
        return weights if kept is None else chance.only_kept(weights, kept, rate)

    def weights_of(q, k, biases, start, piece):
        """Weights `(B, H, R, Z)` of the queries from `start`."""
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
        return softmax(scores)

    def forward(q, k, v, biases, kept, start, piece):
        weights = weights_of(q, k, biases, start, piece)
        return products.product(ops.cast(dropped(weights, kept), v.dtype), v), weights

    def backward(q, k, v, biases, kept, slope, mean, start, piece, weights=None, turned=(None, None)):
        """Slopes of queries, of keys `(B, H, D, Z)` and values `(B, H, E, Z)`, and of scores.

        Those of keys and values are turned: TensorFlow's products are slow where the larger of two is to be transposed.

        Args:
            mean: Of the weights' slopes, `(B, H, R, 1)`.
            weights: None to compute them again.
            turned: Queries and slope with the last two axes transposed, where they are at hand.
        """
        weights = weights_of(q, k, biases, start, piece) if weights is None else weights
        of_value = _turned_product(slope, turned[1], ops.cast(dropped(weights, kept), v.dtype))  # (B, H, E, Z)
        of_weight = dropped(ops.cast(products.product(slope, v, transpose_b=True), "float32"), kept)  # (B, H, R, Z)
        of_score = weights * (of_weight - mean)
        rounded = ops.cast(of_score, q.dtype)
        return products.product(rounded, k), _turned_product(q, turned[0], rounded), of_value, of_score

    def attend_long(q, k, v, piece):
        """A piece of many rows, some at a time."""
        rows = _stacked(q)  # (N, B, H, R, D)
        starts = piece.start + ROWS * ops.arange(rows.shape[0], dtype="int32")

        def attend_some(nothing, row):
            q, start = row
            return nothing, forward(q, k, v, (), drawn(q, start, piece), start, piece)[:1]

        shape = (*rows.shape[1:-1], v.shape[3]), v.dtype  # (B, H, R, E)
        return _flat(kernels.fold(attend_some, (), (rows, starts), [shape])[1][0]), None

    def slopes_long(q, k, v, slope, mean, piece):
        rows = [_stacked(x) for x in (q, slope, mean)]
        starts = piece.start + ROWS * ops.arange(rows[0].shape[0], dtype="int32")

        def add(total, row):
            q, slope, mean, start = row
            found = backward(q, k, v, (), drawn(q, start, piece), slope, mean, start, piece)
            return tuple(a + ops.cast(b, a.dtype) for a, b in zip(total, found[1:3], strict=True)), found[:1]

        start = tuple(ops.zeros([ops.shape(x)[n] for n in (0, 1, 3, 2)]) for x in (k, v))
        (of_key, of_value), (of_query,) = kernels.fold(add, start, (*rows, starts), [(rows[0].shape[1:], q.dtype)])
        return _flat(of_query), ops.cast(of_key, k.dtype), ops.cast(of_value, v.dtype), None

    def attend_all(parts, biases, kept):
        """Outputs of the pieces, and their weights, by the queries, keys and values of each."""
        found = []
        for piece, long, (q, k, v), stays in zip(pieces, many, parts, kept, strict=True):
            if long:
                found.append(attend_long(q, k, v, piece))
            else:
                stays = stays if keep else drawn(q, piece.start, piece)
                found.append(forward(q, k, v, biases, stays, piece.start, piece))
        return tuple(zip(*found, strict=True))

    def slopes_all(parts, biases, kept, slopes, means, weights, turned):
        """Slopes of each piece's queries, of all keys `(B, H, D, S)` and values `(B, H, E, S)`, and of the bias."""
        found = []
        apart = zip(pieces, many, parts, kept, slopes, means, weights, turned, strict=True)
        for piece, long, (q, k, v), stays, slope, mean, known, turn in apart:
            if long:
                found.append(slopes_long(q, k, v, slope, mean, piece))
            else:
                stays = stays if keep else drawn(q, piece.start, piece)
                found.append(backward(q, k, v, biases, stays, slope, mean, piece.start, piece, known, turn))
        of_query, of_key, of_value, of_score = zip(*found, strict=True)
        ends = [(piece.first, keys - piece.last) for piece in pieces]
        total = [of_query, _overlaid(of_key, ends), _overlaid(of_value, ends)]
        if biases:
            of_bias = _joined([ops.pad(s, [[0, 0]] * 3 + [end]) for s, end in zip(of_score, ends, strict=True)])
            alike = [n for n in (0, 1) if biases[0].shape[n] == 1]
            total.append(ops.cast(ops.sum(of_bias, axis=alike, keepdims=True) if alike else of_bias, bias.dtype))
        return tuple(total)

    if by_program:
        attend_all, slopes_all = tracing.program(attend_all), tracing.program(slopes_all)

    def parts_of(q, k, v):
        return [(rows, _seen(k, piece), _seen(v, piece)) for piece, rows in zip(pieces, in_pieces(q), strict=True)]

    @ops.custom_gradient
    def attend(query, key, value, *biases):
        q, k, v = (shapes.heads_first(x) for x in (query, key, value))
        parts = parts_of(q, k, v)
        kept = [drawn(p[0], piece.start, piece) if keep else None for p, piece in zip(parts, pieces, strict=True)]
        outputs, weights = attend_all(parts, biases, kept)
        output = shapes.heads_first(_joined(outputs))

        def gradient(above):
            slope = shapes.heads_first(above)
            mean = ops.sum(ops.cast(above, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)
            # Tied to the slope from above, or it is found that the weights were there before, and they are kept.
            q1, k1, v1, *biases1 = kernels.tied((q, k, v, *biases), slope)
            known, turned = weights if keep else [None] * len(pieces), [(None, None)] * len(pieces)
            if by_program:
                turned = list(zip(*(in_pieces(ops.swapaxes(x, 2, 3), axis=3) for x in (q1, slope)), strict=True))
            apart = in_pieces(slope), in_pieces(shapes.heads_first(mean))
            found = slopes_all(parts_of(q1, k1, v1), biases1, kept, *apart, known, turned)
            of_query, of_key, of_value, *of_bias = found
            of_key, of_value = (ops.transpose(x, (0, 3, 1, 2)) for x in (of_key, of_value))
            return shapes.heads_first(_joined(of_query)), of_key, of_value, *of_bias

        return output, gradient

    return attend(query, key, value, *biases)


def _pays_as_program(query, key):
    """Whether `fit` computes attention by two programs of XLA: of many weights that are kept, where oneDNN is not.

    Why: TensorFlow goes through the weights once for each operation. On two ARM cores attention takes 0.8 of the time
    as programs, a step of gpt.mini 0.92 and of gpt2 0.98, for a second of compiling.
    """
    rows, columns, heads = query.shape[1], key.shape[1], query.shape[2]
    large = rows <= KEPT and query.dtype == "float32" and rows * columns * heads >= tracing.LARGE
    return large and not products.one_dnn() and tracing.trains_on_cpu()


def _turned_product(x, turned, weights):
    """`x` transposed, times the weights, by its transposed form if there is one: XLA's products want no other."""
    if turned is None:
        return products.product(x, weights, transpose_a=True)
    return products.product(turned, weights)


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
