"""What a training is fed with: batches by step, split over workers, or every row once. Shapes: B batch, T time."""

import keras

from kerastf.data.batching import GIVEN, generated, resized, signature
from kerastf.errors import InputError


class _PyFeed(keras.utils.PyDataset):
    """The batches from a step on, for backends without tf.data."""

    def __init__(self, feed, start, shard):
        super().__init__()
        self.feed, self.start, self.shard = feed, start, shard

    @property
    def num_batches(self):
        return None  # it never ends

    def __getitem__(self, index):
        return self.feed.cut(self.feed.batches.at(self.start + index), self.shard)


class _PyOnce(keras.utils.PyDataset):
    """Every row once, for backends without tf.data."""

    def __init__(self, feed, shard):
        super().__init__()
        self.feed, self.shard = feed, shard
        by_number = hasattr(feed.batches, "batch")
        self.made = None if by_number else list(feed.batches.once())

    def __len__(self):
        return self.feed.batches.passes if self.made is None else len(self.made)

    def __getitem__(self, index):
        made = self.feed.batches.batch(GIVEN, index) if self.made is None else self.made[index]
        return self.feed.cut(made, self.shard)


class Feed:
    """Batches of one part of a data set: without end for `fit`, or every row once for `evaluate`.

    The batch of a step is a function of `(seed, step)` alone, and always whole; rows that do not fill a batch are left
    for another epoch.

    Args:
        batches: What makes the batches: `Batches`, or what has the same `run`, `once` and `batch_size`.
        unit: What is counted: `"tokens"`, `"images"` or `"pairs"`.
        per_row: How many of them a row has.
        items: What the rows were made of, where it is at hand.

    Attributes:
        batch_size: How many rows B in a batch.
        steps: How many batches one pass of `dataset` has, or None where that is not known.
        units: How many tokens, images or pairs a batch has.
        unit: Which of them.
        items: What the rows were made of, or None.
    """

    def __init__(self, batches, *, unit, per_row=1, items=None):
        self.batches, self.unit, self.items = batches, unit, items
        self.batch_size = batches.batch_size
        self.units = batches.batch_size * per_row
        self.steps = batches.steps
        self._spec = None

    def __repr__(self):
        passes = "of unknown number" if self.steps is None else f"{self.steps} a pass"
        return f"<Feed: batches of {self.batch_size}, {passes}, {self.units} {self.unit} each>"

    @property
    def element_spec(self):
        """Shapes and dtypes of the batches of `dataset()`, as `tf.TensorSpec`."""
        if self._spec is None:
            first = next(iter(self.batches.run(0)), None) if self.steps != 0 else None
            if first is None:
                raise InputError(
                    "There is no whole batch here: `once()` gives the rows there are. "
                    f"Received: batch_size={self.batch_size}"
                )
            self._spec = signature(first, self.batch_size, self.batches.fixed)
        return self._spec

    def cut(self, batch, shard):
        """The rows of a batch that one worker of several has."""
        worker, workers = shard
        if workers == 1:
            return batch

        def own(array):
            return array[worker * len(array) // workers : (worker + 1) * len(array) // workers]

        return keras.tree.map_structure(own, batch)

    def _check(self, shard):
        worker, workers = shard
        if not (isinstance(worker, int) and isinstance(workers, int) and 0 <= worker < workers):
            raise InputError(f"`shard` is the number of a worker and how many there are. Received: shard={shard!r}")
        if self.batch_size % workers:
            raise InputError(
                f"Each of {workers} workers has the same share of a batch, so their number must divide it. "
                f"Received: shard={shard!r}, batch_size={self.batch_size}"
            )

    def dataset(self, start=0, shard=(0, 1)):
        """Batches for `fit`, from a step on and without end.

        Args:
            start: The step of the first batch: `dataset(k)` is `dataset()` without its first k batches.
            shard: `(i, n)` for worker i of n: rows `i * B / n` to `(i + 1) * B / n` of each batch.

        Returns:
            A `tf.data.Dataset`; on the other backends a `keras.utils.PyDataset`.

        Raises:
            InputError: `start` is negative, n does not divide the batch, or there is no whole batch.
        """
        if not isinstance(start, int) or start < 0:
            raise InputError(f"`start` must be at least 0. Received: start={start!r}")
        self._check(shard)
        if self.steps == 0:
            raise InputError(
                "`batch_size` is larger than the data: give more of it, or a smaller batch. "
                f"Received: batch_size={self.batch_size}, rows={len(self.batches.rows)}"
            )
        if keras.backend.backend() != "tensorflow" and hasattr(self.batches, "at"):
            return _PyFeed(self, start, shard)
        spec = resized(self.element_spec, self.batch_size // shard[1])
        return generated(lambda: (self.cut(batch, shard) for batch in self.batches.run(start)), spec)

    def once(self, shard=(0, 1)):
        """Every row once, in the given order; the last batch may have fewer rows.

        Args:
            shard: `(i, n)` for worker i of n.

        Returns:
            A finite `tf.data.Dataset`; on the other backends a `keras.utils.PyDataset`.
        """
        self._check(shard)
        first = next(iter(self.batches.once()))
        if keras.backend.backend() != "tensorflow" and hasattr(self.batches, "at"):
            return _PyOnce(self, shard)
        rows = getattr(self.batches, "rows", None)
        whole = hasattr(rows, "__len__") and len(rows) % self.batch_size == 0
        spec = signature(first, self.batch_size // shard[1] if whole else None, self.batches.fixed)
        return generated(lambda: (self.cut(batch, shard) for batch in self.batches.once()), spec, self.batches.passes)


class Found:
    """A data set as a training takes it.

    Attributes:
        train: A `Feed` to train on.
        valid: A `Feed` to look at while training, or None.
        test: A `Feed` for the end, or None.
        tokenizer: The tokenizer, a pair of them for translation, or None.
        options: What a model must know: options of the families' constructors.
        classes: The names of the classes, or None.
    """

    def __init__(self, train, valid, test, *, tokenizer=None, options=None, classes=None):
        self.train, self.valid, self.test = train, valid, test
        self.tokenizer, self.options, self.classes = tokenizer, options or {}, classes

    def __repr__(self):
        return f"<Found: train={self.train}, valid={self.valid}, test={self.test}>"
