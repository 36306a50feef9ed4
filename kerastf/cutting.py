"""Sequences in pieces: how they are cut, and put together again.

Shapes: B batch, T queries, S keys, H heads, D per head; R queries of a piece, N pieces of `ROWS` queries.
"""

from typing import NamedTuple

from keras import ops

from kerastf import shapes, tracing

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

    def seen(self, x):
        """Of keys or values `(B, H, S, D)` those that the piece's queries see."""
        return x if (self.first, self.last) == (0, x.shape[2]) else x[:, :, self.first : self.last]


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
        last = min(keys, stop if causal else keys if window is None else stop + window - 1)
        first = 0 if window is None else max(0, min(start - window + 1, last - 1))  # who sees none gets some mean
        pieces.append(Piece(start, stop, first, last))
    return pieces


def joined(parts):
    """Pieces `(B, H, R, D)` one after another."""
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=2)


def cut(x, pieces):
    """What belongs to the queries `(B, T, H, ...)`, by pieces `(B, H, R, ...)`.

    Why: in one transposition with oneDNN, after which the pieces lie apart, and TensorFlow need not copy them.
    """
    sizes = [piece.stop - piece.start for piece in pieces]
    if len(pieces) == 1 or len(set(sizes)) > 1 or not tracing.one_dnn():
        return shapes.split(shapes.heads_first(x), sizes, axis=2)
    apart = ops.reshape(x, (*shapes.leading(x, 1), len(pieces), sizes[0], *x.shape[2:]))  # (B, N, R, H, D)
    return ops.unstack(ops.transpose(apart, (1, 0, 3, 2, 4)))


def overlaid(parts, ends, axis):
    """The sum of parts that stand at different places of an axis."""
    total = None
    for part, end in zip(parts, ends, strict=True):
        whole = ops.pad(part, [end if n == axis else [0, 0] for n in range(4)]) if any(end) else part
        total = whole if total is None else total + whole
    return total


def stacked(x):
    """`(B, H, N R, D)` to `(N, B, H, R, D)`."""
    shape = ops.shape(x)
    return ops.transpose(ops.reshape(x, (*shape[:2], x.shape[2] // ROWS, ROWS, shape[3])), (2, 0, 1, 3, 4))


def flat(x):
    """`(N, B, H, R, D)` to `(B, H, N R, D)`."""
    shape = ops.shape(x)
    return ops.reshape(ops.transpose(x, (1, 2, 0, 3, 4)), (shape[1], shape[2], x.shape[0] * ROWS, shape[4]))
