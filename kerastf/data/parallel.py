"""Pairs of texts for sequence-to-sequence models: read, split, batched. Shapes: B batch, S source, T target."""

import warnings
from pathlib import Path

import numpy as np

from kerastf import text
from kerastf.data.batching import GIVEN, Batches, dataset
from kerastf.errors import ConfigError, FileFormatError, InputError


def read_pairs(path, other=None):
    """Pairs of texts from files.

    Args:
        path: A `.tsv` file whose first two columns are the pair; or, with `other`, a text file of one source per line.
            Either may be `.gz`.
        other: A text file of one target per line.

    Returns:
        A list of pairs `(source, target)`.

    Raises:
        FileFormatError: A line lacks a second column, or the files differ in length.
    """
    if other is not None:
        sources, targets = list(text.read_lines(path)), list(text.read_lines(other))
        if len(sources) != len(targets):
            raise FileFormatError(
                f"Two parallel files have as many lines as each other. "
                f"Received: {len(sources)} in {Path(path).name}, {len(targets)} in {Path(other).name}"
            )
        return list(zip(sources, targets, strict=True))
    pairs = []
    for number, line in enumerate(text.read_lines(path), 1):
        columns = line.split("\t")
        if len(columns) > 1:
            pairs.append((columns[0], columns[1]))
        elif line:
            raise FileFormatError(f"{Path(path).name}, line {number}: there is no second column. Received: {line!r}")
    return pairs


def split(items, fraction, seed=0, *, key=None):
    """Items for training and items held out, at random.

    Args:
        items: The items.
        fraction: The share to hold out, in `[0, 1]`.
        seed: The same seed gives the same split.
        key: A function of an item; items with the same key stay together. `key=lambda pair: pair[0]` keeps a source
            with several translations from standing on both sides.

    Returns:
        Two lists, training and held out, each in the order of `items`.

    Examples:
        >>> from kerastf import data
        >>> data.split(list(range(10)), 0.2, seed=1)
        ([0, 1, 2, 3, 5, 6, 7, 9], [4, 8])
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"`fraction` must be in [0, 1]. Received: fraction={fraction}")
    items = list(items)
    keys = list(range(len(items))) if key is None else [key(i) for i in items]
    groups = list(dict.fromkeys(keys))
    order = np.random.default_rng(seed).permutation(len(groups))
    held = {groups[i] for i in order[: round(fraction * len(groups))]}
    return (
        [i for i, k in zip(items, keys, strict=True) if k not in held],
        [i for i, k in zip(items, keys, strict=True) if k in held],
    )


def _collect(sources, targets):
    """What a user may give for pairs, as one list of pairs."""
    if isinstance(sources, str | Path):
        if targets is not None and not isinstance(targets, str | Path):
            raise InputError("`sources` is a file, so `targets` is a file, too, or None for a .tsv of both.")
        return read_pairs(sources, targets)
    pairs = list(sources)
    if targets is not None:
        targets = list(targets)
        if len(pairs) != len(targets):
            raise InputError(f"Each source has one target. Received: {len(pairs)} sources, {len(targets)} targets")
        pairs = list(zip(pairs, targets, strict=True))
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(t, str) for t in pair):
            raise InputError(f"A pair is two strings, source and target. Received: {pair!r}")
    return pairs


def _require(tokenizer, what, *needed):
    tokenizer = text.from_config(tokenizer)
    if tokenizer is None:
        raise ConfigError(f"`{what}` is needed. Received: {what}=None")
    missing = [n for n in needed if getattr(tokenizer, f"{n}_id") is None]
    if missing:
        raise ConfigError(
            f"`{what}` needs the special tokens {', '.join(needed)}. Make it with special_tokens={needed}. "
            f"Received: special_tokens={tokenizer.special_tokens}"
        )
    return tokenizer


def lengths(given, name="max_length"):
    """The most tokens of sources and of targets, from one number or two."""
    both = tuple(given) if isinstance(given, list | tuple) else (given, given)
    if len(both) != 2 or not all(isinstance(n, int) and n >= 1 for n in both):
        raise InputError(
            f"`{name}` must be a number of at least 1, or one for sources and one for targets. "
            f"Received: {name}={given!r}"
        )
    return both


def encode_pairs(pairs, source_tokenizer, target_tokenizer, limits, too_long):
    """Rows `(source, start + target + end)` that are kept, and one warning for the rest."""
    rows, empty, long = [], 0, 0
    start, end = target_tokenizer.start_id, target_tokenizer.end_id
    for source, target in pairs:
        source, target = source_tokenizer.encode(source), target_tokenizer.encode(target)
        if not source or not target:
            empty += 1
        elif (len(source) > limits[0] or len(target) + 1 > limits[1]) and too_long == "drop":
            long += 1
        else:
            rows.append((source[: limits[0]], [start, *target, end][: limits[1] + 1]))
    if empty or long:
        told = f"{empty + long} of {len(pairs)} pairs are left out: {long} are longer than max_length={limits}"
        told += f" and {empty} have an empty side."
        warnings.warn(told + (" Longer pairs are kept in part with too_long='cut'." if long else ""), stacklevel=4)
    if not rows:
        raise InputError(f"No pair is left to make batches of. Received: {len(pairs)} pairs, max_length={limits}")
    return rows


class Buckets(Batches):
    """Batches of pairs of like length, at most one of them not full.

    What does not fill a batch of its bucket goes on to the next longer one. All is a function of (seed, epoch).

    Args:
        rows: Pairs `(source, start + target + end)` of tokens.
        pads: What sources and targets are filled up with.
        multiple: S and T are multiples of this number.
        bucket: Whether pairs of like length stand together; otherwise there is one shape.
        sizes: The one shape `(S, T)`, where it is not to come from the rows.
        **options: As for `Batches`.
    """

    def __init__(self, rows, pads, *, multiple, bucket, sizes=None, **options):
        self.pads = pads
        lengths = np.array([(len(s), len(t) - 1) for s, t in rows])
        rounded = -(-lengths // multiple) * multiple  # (N, 2)
        longest = rounded.max(axis=1) if bucket else np.zeros(len(rows), "int64")
        _, self.buckets = np.unique(longest, return_inverse=True)  # (N,)
        shapes = [rounded[self.buckets == b].max(axis=0) for b in range(self.buckets.max() + 1)]
        # A longer bucket must hold what a shorter one hands on.
        self.shapes = [tuple(int(n) for n in s) for s in np.maximum.accumulate(shapes)]
        if sizes is not None:
            self.shapes = [sizes]
        rows = [(*row, bucket) for row, bucket in zip(rows, self.buckets.tolist(), strict=True)]
        super().__init__(rows, self._make, fixed=len(self.shapes) == 1, **options)

    def draw(self, epoch):
        """Which rows each batch of an epoch has."""
        if epoch == GIVEN:
            return [range(len(self.rows))[i : i + self.batch_size] for i in range(0, len(self.rows), self.batch_size)]
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.rows)) if self.shuffle else np.arange(len(self.rows))
        plan, rest = [], order[:0]
        for bucket in range(len(self.shapes)):
            found = np.concatenate([rest, order[self.buckets[order] == bucket]])
            full = len(found) - len(found) % self.batch_size
            plan += [found[i : i + self.batch_size] for i in range(0, full, self.batch_size)]
            rest = found[full:]
        if len(rest) and not self.drop_remainder:
            plan.append(rest)
        return [plan[i] for i in (rng.permutation(len(plan)) if self.shuffle else range(len(plan)))]

    def part(self, drawn, number):
        return drawn[number]

    def _make(self, rows, _):
        shape = self.shapes[max(bucket for *_, bucket in rows)]
        source = text.pad([s for s, _, _ in rows], self.pads[0], shape[0])  # (B, S)
        target = text.pad([t[:-1] for _, t, _ in rows], self.pads[1], shape[1])  # (B, T)
        label = text.pad([t[1:] for _, t, _ in rows], self.pads[1], shape[1])  # (B, T)
        return {"source": source, "target": target}, label


def pairs(
    sources, targets, source_tokenizer, target_tokenizer, *, batch_size, max_length=64, too_long="drop", bucket=True,
    shuffle=True, drop_remainder=False, multiple=8, seed=0, first_epoch=0,
):  # fmt: skip
    """Batches of pairs for a sequence-to-sequence model.

    The target input is the start token and the target; the label is the target and the end token. Pairs of like length
    stand together, so that there is little padding and there are few shapes. Each pass over the data set is the next
    epoch; its order is a function of `(seed, epoch)`.

    Args:
        sources: Strings, or a text file with one per line. With `targets=None`: pairs of strings, or a `.tsv` file.
        targets: Strings, or a text file with one per line, or None.
        source_tokenizer: A tokenizer with the special token `pad`.
        target_tokenizer: A tokenizer with the special tokens `pad`, `start`, `end`.
        batch_size: How many pairs B in a batch. At most one batch of an epoch has fewer.
        max_length: The most tokens of a source and of a target with its start, or a pair of both numbers.
        too_long: `"drop"` leaves longer pairs out and says how many; `"cut"` cuts them, and a cut label has no end.
            Pairs with an empty side are left out.
        bucket: Whether pairs of like length stand together. Otherwise all batches have one shape.
        shuffle: Whether each epoch has an order of its own. With `shuffle=False, bucket=False` the order is the given.
        drop_remainder: Whether to leave out the batch that has fewer pairs.
        multiple: S and T are multiples of this number.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `({"source": (B, S), "target": (B, T)}, (B, T))`, int32; on the other backends, where
        TensorFlow need not be installed, a `keras.utils.PyDataset` of the same batches.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.CharacterTokenizer("abc", special_tokens=("pad", "start", "end"))
        >>> x, y = next(iter(data.pairs(["ab"], ["ba"], tokenizer, tokenizer, batch_size=1, multiple=4)))
        >>> x["source"].numpy().tolist(), x["target"].numpy().tolist(), y.numpy().tolist()
        ([[0, 1, 3, 3]], [[4, 1, 0, 3]], [[1, 0, 5, 3]])
    """
    for name, value in (("batch_size", batch_size), ("multiple", multiple)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` must be at least 1. Received: {name}={value!r}")
    if too_long not in ("drop", "cut"):
        raise InputError(f"`too_long` must be 'drop' or 'cut'. Received: too_long={too_long!r}")
    source_tokenizer = _require(source_tokenizer, "source_tokenizer", "pad")
    target_tokenizer = _require(target_tokenizer, "target_tokenizer", "pad", "start", "end")
    rows = encode_pairs(_collect(sources, targets), source_tokenizer, target_tokenizer, lengths(max_length), too_long)
    batches = Buckets(
        rows, (source_tokenizer.pad_id, target_tokenizer.pad_id), batch_size=batch_size, multiple=multiple,
        bucket=bucket, shuffle=shuffle, drop_remainder=drop_remainder, seed=seed,
    )  # fmt: skip
    return dataset(batches, first_epoch)
