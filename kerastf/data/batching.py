"""Rows to batches, epoch after epoch, the same on every backend. Shapes: B batch, T time.

A batch is a function of `(seed, epoch, number of the batch)`: the order of rows is drawn per epoch, and whatever else
is drawn (masks, pairs) per batch. So the same seed gives the same stream, and a later epoch can be made without the
ones before it.
"""

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


class Batches:
    """Batches of rows that are all at hand.

    Args:
        rows: The rows.
        make: From rows and a NumPy generator to a batch, nested arrays of shapes that do not change but for B.
        batch_size: How many rows B in a batch.
        shuffle: Whether each epoch has an order of its own.
        drop_remainder: Whether to leave out the last batch where it has fewer rows.
        seed: The same seed gives the same batches.
    """

    def __init__(self, rows, make, *, batch_size, shuffle, drop_remainder, seed):
        self.rows, self.make, self.batch_size = rows, make, batch_size
        self.shuffle, self.drop_remainder, self.seed = shuffle, drop_remainder, seed

    def __len__(self):
        return len(self.rows) // self.batch_size if self.drop_remainder else -(-len(self.rows) // self.batch_size)

    def order(self, epoch):
        rng = np.random.default_rng([self.seed, epoch])
        return rng.permutation(len(self.rows)) if self.shuffle else np.arange(len(self.rows))

    def batch(self, epoch, number, order):
        part = order[number * self.batch_size : (number + 1) * self.batch_size]
        return self.make([self.rows[i] for i in part], np.random.default_rng([self.seed, epoch, number]))

    def epoch(self, epoch):
        """The batches of an epoch, one after the other."""
        order = self.order(epoch)
        for number in range(len(self)):
            yield self.batch(epoch, number, order)


class Stream:
    """Batches of rows that are read anew in each epoch, and of which only some are held at a time.

    Args:
        blocks: A function that opens the rows: an iterator of lists, each held in memory and shuffled as a whole.
        make, batch_size, shuffle, drop_remainder, seed: As for `Batches`.
    """

    def __init__(self, blocks, make, *, batch_size, shuffle, drop_remainder, seed):
        self.blocks, self.make, self.batch_size = blocks, make, batch_size
        self.shuffle, self.drop_remainder, self.seed = shuffle, drop_remainder, seed

    def epoch(self, epoch):
        """The batches of an epoch, one after the other."""
        rng = np.random.default_rng([self.seed, epoch])
        rest, number = [], 0
        for block in self.blocks():
            block = list(block)
            rest += [block[i] for i in rng.permutation(len(block))] if self.shuffle else block
            while len(rest) >= self.batch_size:
                yield self._batch(rest[: self.batch_size], epoch, number)
                rest, number = rest[self.batch_size :], number + 1
        if rest and not self.drop_remainder:
            yield self._batch(rest, epoch, number)

    def _batch(self, rows, epoch, number):
        return self.make(rows, np.random.default_rng([self.seed, epoch, number]))


class PyBatches(keras.utils.PyDataset):
    """The batches for backends without tf.data."""

    def __init__(self, batches, first_epoch):
        super().__init__()
        self.batches, self.number = batches, first_epoch
        self.order = batches.order(first_epoch)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches.batch(self.number, index, self.order)

    def on_epoch_end(self):
        self.number += 1
        self.order = self.batches.order(self.number)


def dataset(batches, first_epoch=0):
    """What `fit` takes: a `tf.data.Dataset`, or on other backends a `keras.utils.PyDataset` of rows that are at hand.

    Each pass over it is the next epoch.
    """
    if keras.backend.backend() != "tensorflow" and isinstance(batches, Batches):
        return PyBatches(batches, first_epoch)
    import tensorflow as tf

    first = next(batches.epoch(first_epoch), None)
    if first is None:
        raise InputError("There is no whole batch. Give more rows, a smaller batch_size, or drop_remainder=False.")
    size = batches.batch_size if batches.drop_remainder else None
    signature = tf.nest.map_structure(lambda a: tf.TensorSpec((size, *a.shape[1:]), a.dtype), first)
    epochs = iter(range(first_epoch, 2**62))
    made = tf.data.Dataset.from_generator(lambda: batches.epoch(next(epochs)), output_signature=signature)
    if isinstance(batches, Batches):
        made = made.apply(tf.data.experimental.assert_cardinality(len(batches)))
    options = tf.data.Options()
    options.autotune.enabled = False  # its last tick would hold up the end of every short epoch
    return made.prefetch(2).with_options(options)
