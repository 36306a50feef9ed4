"""Attention piece by piece, with a gradient of its own, so that the weights never exist as a whole. For TensorFlow.

Shapes: B batch, T queries, S keys, H heads, D per head, E per value; R queries and Z keys of a piece.
"""

import functools

import numpy as np
from keras import ops

from kerastf import chance, compat, cutting, kernels, products, shapes, tracing

# Softmax runs in float32, so this is finite there, and its exponential is exactly zero.
NEGATIVE = -1e30

MANY = 2**13  # numbers of a row of the batch from which on it pays to put pieces together by a program


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
    biases = () if bias is None else (bias if len(bias.shape) == 4 else bias[None],)
    pieces = cutting.pieces_of(query.shape[1], key.shape[1], causal, window, most=cutting.ROWS if biases else None)
    plan = _Plan(pieces, key.shape[1], mask, seed, causal=causal, window=window, rate=rate)
    attend_all, slopes_all = plan.attend, plan.slopes
    if by_program:
        attend_all, slopes_all = tracing.program(attend_all), tracing.program(slopes_all)

    @compat.custom_gradient
    def attend(query, key, value, *biases):
        rows, k, v = plan.cut(query), shapes.heads_first(key), shapes.heads_first(value)
        parts = plan.parts(rows, k, v)
        stays = plan.drawn_now(parts)
        outputs, weights = attend_all(parts, biases, stays)
        output = plan.joined(outputs)

        def gradient(above):
            slope = plan.cut(above)
            mean = ops.sum(ops.cast(above, "float32") * ops.cast(output, "float32"), axis=-1, keepdims=True)
            # Tied to the slope from above, or it is found that the weights were there before, and they are kept.
            k1, v1, *others = kernels.tied((k, v, *rows, *biases), slope[0])
            rows1, biases1 = others[: len(rows)], others[len(rows) :]
            known, turned = weights if plan.keeps else [None] * len(pieces), [(None, None)] * len(pieces)
            if by_program:
                turned = [tuple(ops.swapaxes(x, 2, 3) for x in pair) for pair in zip(rows1, slope, strict=True)]
            found = slopes_all(plan.parts(rows1, k1, v1), biases1, stays, slope, plan.cut(mean), known, turned)
            of_query, *of_memory, of_bias = found
            of_memory = [ops.transpose(x, (0, 3, 1, 2)) for x in of_memory] if _turns() else of_memory
            return plan.joined(of_query), *of_memory, *of_bias

        return output, gradient

    return attend(query, key, value, *biases)


class _Plan:
    """What is computed of each piece, forward and back. Heads come before positions here.

    Args:
        pieces: Of all queries.
        keys: How many keys there are.
        mask: Boolean, True = keep, or None.
        seed: Two integers.
        causal: Whether query `t` sees keys `<= t` only.
        window: How many positions up to its own a query sees; None for all.
        rate: Which share of the weights is dropped.
    """

    def __init__(self, pieces, keys, mask, seed, *, causal, window, rate):
        self.pieces, self.keys, self.seed = pieces, keys, seed
        self.causal, self.window, self.rate = causal, window, rate
        self.hidden = None if mask is None else ops.where(mask, 0.0, NEGATIVE)
        self.keeps = pieces[-1].stop <= cutting.KEPT  # weights, and what dropout leaves of them, for the gradient

    def cut(self, x):
        """What belongs to the queries `(B, T, H, ...)`, by pieces `(B, H, R, ...)`."""
        return cutting.cut(x, self.pieces)

    def parts(self, rows, k, v):
        """Queries of each piece, and the keys and values that they see."""
        return [(q, piece.seen(k), piece.seen(v)) for q, piece in self._each(rows)]

    def joined(self, parts):
        """The way back from `cut`."""
        return _put_together(_joined, parts)

    def drawn_now(self, parts):
        """Which weights of each piece dropout leaves, where that is kept; None where it is not, or all are left."""
        return [self._drawn(q, piece.start, piece) if self.keeps else None for (q, _, _), piece in self._each(parts)]

    def attend(self, parts, biases, stays):
        """Outputs of the pieces, and their weights.

        Args:
            parts: As `parts` gives them.
            biases: The bias `(B or 1, H or 1, T, S)`, or nothing.
            stays: As `drawn_now` gives them.
        """
        found = []
        for (q, k, v), stay, piece in self._each(parts, stays):
            if self._is_long(piece):
                found.append(self._attend_long(q, k, v, piece))
            else:
                stay = stay if self.keeps else self._drawn(q, piece.start, piece)
                found.append(self._forward(q, k, v, biases, stay, piece.start, piece))
        return tuple(zip(*found, strict=True))

    def slopes(self, parts, biases, stays, slopes, means, weights, turned):
        """Slopes of each piece's queries, of all keys and values as `_overlaid` gives them, and of the bias.

        Args:
            parts: As in `attend`, like `biases` and `stays`.
            biases: See there.
            stays: See there.
            slopes: Of each piece's output.
            means: Of the slopes of each piece's weights, `(B, H, R, 1)`.
            weights: Of each piece; None to compute them again.
            turned: Queries and slope of each with the last two axes transposed; None where they are not at hand.
        """
        found = []
        each = self._each(parts, stays, slopes, means, weights, turned)
        for (q, k, v), stay, slope, mean, known, turn, piece in each:
            if self._is_long(piece):
                found.append(self._slopes_long(q, k, v, slope, mean, piece))
            else:
                stay = stay if self.keeps else self._drawn(q, piece.start, piece)
                found.append(self._backward(q, k, v, biases, stay, slope, mean, piece.start, piece, known, turn))
        of_query, of_key, of_value, of_score = zip(*found, strict=True)
        ends = tuple((piece.first, self.keys - piece.last) for piece in self.pieces)
        total = []
        if biases:
            of_bias = cutting.joined([ops.pad(s, [[0, 0]] * 3 + [end]) for s, end in zip(of_score, ends, strict=True)])
            alike = [n for n in (0, 1) if biases[0].shape[n] == 1]
            of_bias = ops.sum(of_bias, axis=alike, keepdims=True) if alike else of_bias
            total = [ops.cast(of_bias, biases[0].dtype)]
        return of_query, _overlaid(of_key, ends), _overlaid(of_value, ends), total

    def _each(self, *lists):
        return zip(*lists, self.pieces, strict=True)

    def _is_long(self, piece):
        return not self.keeps and piece.stop - piece.start > cutting.ROWS

    def _drawn(self, q, start, piece):
        """Which weights of the queries `(B, H, R, D)` from `start` are not dropped; None for all."""
        if not self.rate:
            return None
        shape = (*ops.shape(q)[:3], piece.last - piece.first)
        return chance.kept_by_chance(_moved(self.seed, start), shape, self.rate)

    def _left(self, weights, stay):
        """Weights, or their slopes, after dropout."""
        return weights if stay is None else chance.only_kept(weights, stay, self.rate)

    def _weights(self, q, k, biases, start, piece):
        """Weights `(B, H, R, Z)` of the queries from `start`."""
        scores = ops.cast(products.product(q, k, transpose_b=True), "float32")
        stop = start + q.shape[2]
        shift = _out_of_sight(start, q.shape[2], piece, self.causal, self.window)
        if self.hidden is not None:
            there = self.hidden if self.hidden.shape[2] == 1 else self.hidden[:, :, start:stop]
            there = there[..., piece.first : piece.last]
            shift = there if shift is None else shift + there
        scores = scores if shift is None else scores + shift
        if biases:
            scores = scores + ops.cast(biases[0][:, :, start:stop, piece.first : piece.last], "float32")
        return softmax(scores)

    def _forward(self, q, k, v, biases, stay, start, piece):
        weights = self._weights(q, k, biases, start, piece)
        return products.product(ops.cast(self._left(weights, stay), v.dtype), v), weights

    def _backward(self, q, k, v, biases, stay, slope, mean, start, piece, weights=None, turned=(None, None)):
        """Slopes of queries, of keys `(B, H, D, Z)` and values `(B, H, E, Z)`, and of scores.

        Those of keys and values are turned: TensorFlow's products are slow where the larger of two is to be transposed.
        oneDNN's are not, and what is not turned is added up faster: `(B, H, Z, D)`.
        """
        weights = self._weights(q, k, biases, start, piece) if weights is None else weights
        of_value = _sum_of_rows(ops.cast(self._left(weights, stay), v.dtype), slope, turned[1])
        of_weight = self._left(ops.cast(products.product(slope, v, transpose_b=True), "float32"), stay)  # (B, H, R, Z)
        of_score = weights * (of_weight - mean)
        rounded = ops.cast(of_score, q.dtype)
        return products.product(rounded, k), _sum_of_rows(rounded, q, turned[0]), of_value, of_score

    def _attend_long(self, q, k, v, piece):
        """A piece of many rows, some at a time."""
        rows = cutting.stacked(q)  # (N, B, H, R, D)
        starts = piece.start + cutting.ROWS * ops.arange(rows.shape[0], dtype="int32")

        def attend_some(nothing, row):
            q, start = row
            return nothing, self._forward(q, k, v, (), self._drawn(q, start, piece), start, piece)[:1]

        shape = (*rows.shape[1:-1], v.shape[3]), v.dtype  # (B, H, R, E)
        return cutting.flat(kernels.fold(attend_some, (), (rows, starts), [shape])[1][0]), None

    def _slopes_long(self, q, k, v, slope, mean, piece):
        rows = [cutting.stacked(x) for x in (q, slope, mean)]
        starts = piece.start + cutting.ROWS * ops.arange(rows[0].shape[0], dtype="int32")

        def add(total, row):
            q, slope, mean, start = row
            found = self._backward(q, k, v, (), self._drawn(q, start, piece), slope, mean, start, piece)
            return tuple(a + ops.cast(b, a.dtype) for a, b in zip(total, found[1:3], strict=True)), found[:1]

        start = tuple(ops.zeros([ops.shape(x)[n] for n in ((0, 1, 3, 2) if _turns() else range(4))]) for x in (k, v))
        (of_key, of_value), (of_query,) = kernels.fold(add, start, (*rows, starts), [(rows[0].shape[1:], q.dtype)])
        return cutting.flat(of_query), ops.cast(of_key, k.dtype), ops.cast(of_value, v.dtype), None


def _pays_as_program(query, key):
    """Whether `fit` computes attention by two programs of XLA: of many weights that are kept, where oneDNN is not.

    Why: TensorFlow goes through the weights once for each operation. On two ARM cores attention takes 0.8 of the time
    as programs, a step of gpt.mini 0.92 and of gpt2 0.98, for a second of compiling.
    """
    rows, columns, heads = query.shape[1], key.shape[1], query.shape[2]
    large = rows <= cutting.KEPT and query.dtype == "float32" and rows * columns * heads >= tracing.LARGE
    return large and not tracing.one_dnn() and tracing.trains_on_cpu()


def _turns():
    """Whether slopes of keys and values are found turned."""
    return not tracing.one_dnn()


def _overlaid(parts, ends):
    """The sum of the pieces' slopes of their keys: `(B, H, D, S)`, or `(B, S, H, D)` of those not turned."""
    return cutting.overlaid(parts, ends, axis=3) if _turns() else _put_together(_added, parts, ends=ends)


def _put_together(function, parts, **settings):
    """The function of a piece's tensors, as a program in `fit` where oneDNN is.

    Why: TensorFlow copies for each operation that puts numbers elsewhere. Programs take a third of the time of adding,
    and two thirds of that of joining.
    """
    pays = len(parts) > 1 and tracing.one_dnn() and tracing.fuses(parts[-1], MANY)
    return (_program if pays else functools.partial)(function, **settings)(*parts)


@functools.cache
def _program(function, **settings):
    def put(*parts):
        return function(*parts, **settings)

    put.__name__ = function.__name__
    return tracing.program(put)


def _joined(*parts):
    return shapes.heads_first(cutting.joined(parts))


def _added(*parts, ends):
    return shapes.heads_first(cutting.overlaid(parts, ends, axis=2))


def _sum_of_rows(weights, x, turned):
    """For each key the sum of the rows of `x` by their weights, turned if that is the form here.

    Args:
        weights: `(B, H, R, Z)`.
        x: `(B, H, R, D)`.
        turned: `(B, H, D, R)` if it is at hand, as XLA's products want it; or None.
    """
    if turned is not None:
        return products.product(turned, weights)  # (B, H, D, Z)
    pair = (x, weights) if _turns() else (weights, x)
    return products.product(*pair, transpose_a=True)  # (B, H, D, Z) or (B, H, Z, D)


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
