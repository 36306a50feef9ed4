"""Rows of an encoder: packed segments, hidden tokens. Shapes: B batch, T time, M masked.

A row is `[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, filled up with padding; segments are 0 up to the first separator
and 1 from there to the second. Labels that do not count are -1.
"""

import math

import numpy as np

from kerastf import text
from kerastf.data.batching import require_number, require_tokenizer
from kerastf.errors import InputError


def trim(first, second, length):
    """Two segments cut to `length` tokens together: from the end, the longer one first (keras-nlp's round robin)."""
    kept = min(len(first), max(-(-length // 2), length - len(second)))
    return first[:kept], second[: length - kept]


def pack(segments, tokenizer, *, max_length):
    """One row of an encoder's input.

    Args:
        segments: One or two texts, or their tokens.
        tokenizer: A tokenizer with the special tokens `class` and `separator`.
        max_length: The most tokens of the row, special ones included. Longer segments are cut at their ends, the
            longer one first.

    Returns:
        Two int32 arrays of shape `(T,)`: tokens, and segments 0 or 1.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.CharacterTokenizer("abcd", special_tokens=text.BERT)
        >>> tokens, segments = data.pack(["ab", "cd"], tokenizer, max_length=8)
        >>> tokenizer.class_id, tokenizer.separator_id, tokens.tolist(), segments.tolist()
        (6, 7, [6, 0, 1, 7, 2, 3, 7], [0, 0, 0, 0, 1, 1, 1])
    """
    if isinstance(segments, str):
        segments = [segments]
    if not 1 <= len(segments) <= 2:
        raise InputError(f"A row has one or two segments. Received: {len(segments)} segments")
    require_number("max_length", max_length, 2 * len(segments) + 1)
    for part in segments:
        if len(part) == 0 or (isinstance(part, str) and not part.strip()):
            raise InputError(f"A segment has at least one token. Received: segments={text.short(list(segments))}")
    tokenizer = require_tokenizer(tokenizer, "class", "separator")
    parts = [tokenizer.encode(s) if isinstance(s, str) else s for s in segments]
    if any(len(p) == 0 for p in parts):
        raise InputError(f"A segment has at least one token. Received: segments={text.short(list(segments))}")
    return pack_tokens(parts, tokenizer, max_length)


def pack_tokens(parts, tokenizer, max_length):
    first, second = trim(parts[0], parts[1] if len(parts) == 2 else [], max_length - 1 - len(parts))
    end = [tokenizer.separator_id]
    tokens = np.concatenate([[tokenizer.class_id], first, end, *([second, end] if len(parts) == 2 else [])])
    return tokens.astype("int32"), (np.arange(len(tokens)) >= len(first) + 2).astype("int32")


def pad_rows(rows, tokenizer, max_length):
    """Packed rows as `{"tokens": (B, T), "segments": (B, T)}`."""
    tokens = np.full((len(rows), max_length), tokenizer.pad_id, "int32")
    segments = np.zeros((len(rows), max_length), "int32")
    for i, row in enumerate(rows):
        tokens[i, : len(row[0])], segments[i, : len(row[1])] = row
    return {"tokens": tokens, "segments": segments}


def slots_of(rate, max_length, special):
    """How many masked positions a row has at most."""
    return max(1, math.ceil(rate * (max_length - special)))


def mask_tokens(tokens, tokenizer, rng, *, rate=0.15, slots=None):
    """Hides some tokens of each row, as BERT was trained: new ones at each call.

    Of the n ordinary tokens of a row `rate * n` are chosen, rounded up or down at random so that the mean is exact. Of
    those, 80 % become the mask token, 10 % another ordinary token at random, and 10 % stay. Special tokens and padding
    are never chosen, and never put in by chance.

    Args:
        tokens: Integers `(B, T)`.
        tokenizer: A tokenizer with the special token `mask`.
        rng: A NumPy generator.
        rate: The share of tokens to choose.
        slots: How many choices M a row has room for; by default as many as a row of T tokens can have.

    Returns:
        The tokens with some hidden `(B, T)`, the positions chosen `(B, M)`, in order, 0 where there are fewer; and the
        tokens that stood there `(B, M)`, -1 where there are fewer. All int32.

    References:
        - [Devlin et al., 2018](https://arxiv.org/abs/1810.04805), section 3.1
    """
    tokenizer = require_tokenizer(tokenizer, "mask")
    tokens = np.array(tokens, "int32")  # (B, T)
    slots = slots_of(rate, tokens.shape[1], 0) if slots is None else slots
    ordinary = np.isin(tokens, list(tokenizer.special_ids.values()), invert=True)
    counts = np.floor(rate * ordinary.sum(axis=1) + rng.random(len(tokens))).astype(int)  # (B,)
    chance = np.where(ordinary, rng.random(tokens.shape), 2.0)
    chosen = np.argsort(chance, axis=1)[:, :slots]  # (B, M), special tokens last
    if chosen.shape[1] < slots:
        chosen = np.pad(chosen, ((0, 0), (0, slots - chosen.shape[1])))
    used = np.arange(slots) < counts[:, None]
    positions = np.sort(np.where(used, chosen, tokens.shape[1]), axis=1)
    positions = np.where(used, positions, 0).astype("int32")
    labels = np.take_along_axis(tokens, positions, axis=1)  # (B, M)
    dice = rng.random(labels.shape)
    other = np.asarray(tokenizer.ids)[rng.integers(0, tokenizer.ordinary, labels.shape)]
    new = np.where(dice < 0.8, tokenizer.mask_id, np.where(dice < 0.9, other, labels))
    row, slot = np.nonzero(used)
    tokens[row, positions[row, slot]] = new[row, slot]
    return tokens, positions, np.where(used, labels, -1).astype("int32")
