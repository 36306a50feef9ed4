"""Rows to batches, epoch after epoch, the same on every backend. Shapes: B batch, T time.

A batch is a function of `(seed, epoch, number of the batch)`: the order of rows is drawn per epoch, and whatever else
is drawn (masks, pairs, shifts) per batch. So the same seed gives the same stream, and a later batch can be made without
the ones before it.
"""

import itertools

import keras
import numpy as np

from kerastf import text
from kerastf.errors import ConfigError, InputError


def require_tokenizer(tokenizer, *needed):
    """The tokenizer, which has all special tokens that are needed."""
    tokenizer = text.from_config(tokenizer)
    if tokenizer is None:
        raise ConfigError("`tokenizer` is needed. Received: tokenizer=None")
    missing = [n for n in needed if getattr(tokenizer, f"{n}_id") is None]
    if missing:
        raise ConfigError(
            f"`tokenizer` needs the special tokens {', '.join(needed)}. Train it with special_tokens=text.BERT. "
            f"Received: special_tokens={tokenizer.special_tokens}"
        )
    return tokenizer


def require_number(name, value, least):
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"`{name}` must be at least {least}. Received: {name}={value!r}")


GROUP, GROUP_BYTES = 8, 2**19  # how many batches, of how many bytes together, are handed on at a time
GIVEN = 2**32 - 1  # the epoch that stands for the given order; no training comes so far


class Batches:
    """Batches of rows that are all at hand, each made by its number alone.

    Args:
        rows: The rows: what has a length and gives a row by its number.
        make: From rows and a NumPy generator to a batch: nested arrays whose first axis is B.
        batch_size: How many rows B in a batch.
        shuffle: Whether each epoch has an order of its own.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        seed: The same seed gives the same batches.
        fixed: Whether all batches have one shape but for B.
        plain: What to make batches of the given order with, where it is not `make`.
    """

    def __init__(self, rows, make, *, batch_size, shuffle=True, drop_remainder=False, seed=0, fixed=True, plain=None):
        self.rows, self.make, self.batch_size, self.fixed = rows, make, batch_size, fixed
        self.plain = plain or make
        self.shuffle, self.drop_remainder, self.seed = shuffle, drop_remainder, seed
        self._drawn = {}

    def __len__(self):
        return len(self.rows) // self.batch_size if self.drop_remainder else -(-len(self.rows) // self.batch_size)

    @property
    def steps(self):
        """How many batches an epoch has."""
        return len(self)

    @property
    def passes(self):
        """How many batches `once` has."""
        return -(-len(self.rows) // self.batch_size)

    def draw(self, epoch):
        """The order of an epoch: the numbers of all rows."""
        if not self.shuffle or epoch == GIVEN:
            return range(len(self.rows))
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.rows))

    def part(self, drawn, number):
        """Which rows a batch has, in an order that was drawn."""
        return drawn[number * self.batch_size : (number + 1) * self.batch_size]

    def batch(self, epoch, number):
        """One batch."""
        drawn = self._drawn.get(epoch)
        if drawn is None:
            drawn = self.draw(epoch)
            self._drawn = {epoch: drawn}
        rows = [self.rows[i] for i in self.part(drawn, number)]
        make = self.plain if epoch == GIVEN else self.make
        return make(rows, np.random.default_rng([self.seed, epoch, number]))

    def epoch(self, epoch):
        """The batches of an epoch, one after the other."""
        return (self.batch(epoch, number) for number in range(len(self)))

    def at(self, step):
        """The batch of a step, counted over all epochs."""
        return self.batch(*divmod(step, len(self)))

    def run(self, start=0):
        """The batches from a step on, without end."""
        return (self.at(step) for step in itertools.count(start))

    def once(self):
        """Every row once, in the given order."""
        return (self.batch(GIVEN, number) for number in range(self.passes))


class Stream:
    """Batches of rows that are read anew in each epoch, and of which only some are held at a time.

    Args:
        blocks: A function that opens the rows: an iterator of lists, each held in memory and shuffled as a whole.
        make, batch_size, shuffle, drop_remainder, seed: As for `Batches`.
    """

    fixed, steps, passes = True, None, None

    def __init__(self, blocks, make, *, batch_size, shuffle=True, drop_remainder=False, seed=0):
        self.blocks, self.make, self.batch_size = blocks, make, batch_size
        self.shuffle, self.drop_remainder, self.seed = shuffle, drop_remainder, seed

    def rows(self, epoch):
        """The rows of each batch of an epoch."""
        rng = np.random.default_rng([self.seed, epoch])
        rest = []
        for block in self.blocks():
            block = list(block)
            mixed = self.shuffle and epoch != GIVEN
            rest += [block[i] for i in rng.permutation(len(block))] if mixed else block
            while len(rest) >= self.batch_size:
                yield rest[: self.batch_size]
                rest = rest[self.batch_size :]
        if rest and (epoch == GIVEN or not self.drop_remainder):
            yield rest

    def epoch(self, epoch, start=0):
        """The batches of an epoch from a number on, one after the other; those before are read and not made."""
        for number, rows in enumerate(self.rows(epoch)):
            if number >= start:
                yield self.make(rows, np.random.default_rng([self.seed, epoch, number]))

    def run(self, start=0):
        """The batches from a step on, without end. The rows before them are read and dropped."""
        for epoch in itertools.count():
            count = 0
            for number, rows in enumerate(self.rows(epoch)):
                count += 1
                if start:
                    start -= 1
                else:
                    yield self.make(rows, np.random.default_rng([self.seed, epoch, number]))
            if not count:
                return

    def once(self):
        """Every row once, in the given order."""
        return self.epoch(GIVEN)


class PyBatches(keras.utils.PyDataset):
    """The batches for backends without tf.data."""

    def __init__(self, batches, first_epoch, **kwargs):
        super().__init__(**kwargs)
        self.batches, self.number = batches, first_epoch

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches.batch(self.number, index)

    def on_epoch_end(self):
        self.number += 1


def signature(batch, size, fixed):
    """Shapes and dtypes of batches like this one; the first axis is `size`."""
    import tensorflow as tf

    tail = lambda a: a.shape[1:] if fixed else [None] * (a.ndim - 1)  # noqa: E731
    return tf.nest.map_structure(lambda a: tf.TensorSpec((size, *tail(a)), a.dtype), batch)


def resized(spec, size):
    """The same shapes and dtypes with another first axis."""
    import tensorflow as tf

    return tf.nest.map_structure(lambda s: tf.TensorSpec((size, *s.shape[1:]), s.dtype), spec)


def _grouped(batches, size):
    while group := list(itertools.islice(batches, size)):
        yield keras.tree.map_structure(lambda *parts: np.stack(parts), *group)


def generated(generator, spec, count=None):
    """A `tf.data.Dataset` of what a function generates, made ahead of its use.

    A call of the generator costs as much as a small batch takes to train, so small ones come several in one call.
    """
    import tensorflow as tf

    leaves = tf.nest.flatten(spec)
    static = all(s.shape.is_fully_defined() for s in leaves)
    size = sum(s.shape.num_elements() * s.dtype.size for s in leaves) if static else GROUP_BYTES
    group = max(1, min(GROUP, GROUP_BYTES // max(size, 1)))
    if group == 1:
        made = tf.data.Dataset.from_generator(generator, output_signature=spec)
    else:
        several = tf.nest.map_structure(lambda s: tf.TensorSpec((None, *s.shape), s.dtype), spec)
        made = tf.data.Dataset.from_generator(lambda: _grouped(generator(), group), output_signature=several).unbatch()
    if count is not None:
        made = made.apply(tf.data.experimental.assert_cardinality(count))
    options = tf.data.Options()
    options.autotune.enabled = False  # its last tick would hold up the end of every short epoch
    return made.prefetch(max(2, group)).with_options(options)


def dataset(batches, first_epoch=0):
    """What `fit` takes: a `tf.data.Dataset`, or on other backends a `keras.utils.PyDataset` of rows that are at hand.

    Each pass over it is the next epoch.
    """
    at_hand = not isinstance(batches, Stream)
    if keras.backend.backend() != "tensorflow" and at_hand:
        return PyBatches(batches, first_epoch)
    first = next(iter(batches.epoch(first_epoch)), None)
    if first is None:
        raise InputError("There is no whole batch. Give more rows, a smaller batch_size, or drop_remainder=False.")
    spec = signature(first, batches.batch_size if batches.drop_remainder else None, batches.fixed)
    epochs = itertools.count(first_epoch)
    return generated(lambda: batches.epoch(next(epochs)), spec, len(batches) if at_hand else None)
