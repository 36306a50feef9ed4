"""Windows around words, streamed from a corpus of any size.

Shapes: B blocks, T centres in a block, W tokens on both sides of them, S = T + 2 W.
"""

import tempfile
from pathlib import Path

import keras
import numpy as np

from kerastf import text
from kerastf.errors import ConfigError, InputError

LINE_END = -1
LONGEST = 10_000  # a longer line is cut, as gensim does, so that memory has a bound
CHUNK = 2**19  # numbers read at a time; blocks are shuffled within as many


class _Windows:
    """The windows of a corpus, epoch after epoch: all is a function of (seed, epoch).

    The texts are encoded once, into a temporary file of four bytes per word. Pairs of words never exist: a block holds
    T centres with W tokens on both sides, and says how far each centre's window reaches.
    """

    def __init__(self, texts, tokenizer, *, window, length, batch_size, subsample, shuffle, seed):
        self.window, self.length, self.batch_size = window, length, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.file, self.counts = _encode(texts, tokenizer)
        self.chances = keep_probabilities(self.counts, subsample)
        kept = float(self.counts @ self.chances)
        noise = float(np.sqrt(self.counts @ (self.chances * (1 - self.chances))))
        # How many words are kept is random, how many steps an epoch has must not be: the last blocks may be empty.
        self.steps = max(1, int(np.ceil((kept + 4 * noise) / (length * batch_size))))

    def epoch(self, number):
        """Batches of an epoch, some at a time: tokens `(N, B, S)` and reaches `(N, B, T, 2)`, int32."""
        rng = np.random.default_rng([self.seed, number])
        done, blocks, rest = 0, self._no_blocks(), None
        for numbers in self._chunks():
            fresh, rest = self._blocks(self._read(numbers, rng), rest)
            blocks = [np.concatenate(both) for both in zip(blocks, fresh, strict=True)]
            if self.shuffle:
                order = rng.permutation(len(blocks[0]))
                blocks = [b[order] for b in blocks]
            count = min(len(blocks[0]) // self.batch_size, self.steps - done)
            if count:
                yield self._batches(blocks, count)
            blocks, done = [b[count * self.batch_size :] for b in blocks], done + count
        if done < self.steps:
            last, _ = self._blocks([np.zeros(self.length, "int32")] * 3, rest)  # fills up what is left of a block
            blocks = [np.concatenate(both) for both in zip(blocks, last, strict=True)]
            missing = (self.steps - done) * self.batch_size - len(blocks[0])
            blocks = [np.pad(b, ((0, max(missing, 0)), *((0, 0),) * (b.ndim - 1))) for b in blocks]
            yield self._batches(blocks, self.steps - done)

    def _chunks(self):
        """Whole lines of numbers, about `CHUNK` at a time."""
        self.file.seek(0)
        rest = np.zeros(0, "int32")
        while True:
            read = np.frombuffer(self.file.read(4 * CHUNK), "int32")
            if not len(read):
                return
            numbers = np.concatenate([rest, read])
            end = len(numbers) - int(np.argmax(numbers[::-1] == LINE_END))
            rest = numbers[end:]
            yield numbers[:end]

    def _read(self, numbers, rng):
        """Tokens that are kept, and how far the window of each reaches to the left and to the right."""
        ends = numbers == LINE_END
        keep = (rng.random(len(numbers), dtype="float32") < self.chances[numbers]) & ~ends
        tokens, line = numbers[keep], np.cumsum(ends, dtype="int32")[keep]
        reach = rng.integers(1, self.window + 1, len(tokens), dtype="int32")  # as word2vec: near words count more
        at = np.arange(len(tokens), dtype="int32")
        starts = np.diff(line, prepend=-1) != 0
        first = np.maximum.accumulate(np.where(starts, at, 0))
        borders = np.append(np.flatnonzero(starts), len(tokens)).astype("int32")
        last = borders[np.cumsum(starts)] - 1 if len(tokens) else at
        return [tokens, np.minimum(reach, at - first), np.minimum(reach, last - at)]

    def _blocks(self, fresh, rest):
        """Cuts what came and what was left before into blocks; returns them and what is left now."""
        before, *old = rest or [np.zeros(self.window, "int32"), *[np.zeros(0, "int32")] * 3]
        tokens, left, right = (np.concatenate(both) for both in zip(old, fresh, strict=True))
        count = len(tokens) // self.length
        end = count * self.length
        padded = np.concatenate([before, tokens, np.zeros(self.window, "int32")])
        starts = np.arange(count)[:, None] * self.length
        blocks = padded[starts + np.arange(self.length + 2 * self.window)]  # (count, S)
        reaches = np.stack([left[:end], right[:end]], axis=-1).reshape(count, self.length, 2)
        return [blocks, reaches], [padded[end : end + self.window], tokens[end:], left[end:], right[end:]]

    def _no_blocks(self):
        return [np.zeros((0, self.length + 2 * self.window), "int32"), np.zeros((0, self.length, 2), "int32")]

    def _batches(self, blocks, count):
        return tuple(b[: count * self.batch_size].reshape(count, self.batch_size, *b.shape[1:]) for b in blocks)


def _encode(texts, tokenizer):
    """The numbers of all texts in a temporary file, each text ended by `LINE_END`, and how often each number occurs."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the data set)
    counts = np.zeros(tokenizer.vocab_size, "int64")
    for line in texts:
        numbers = np.asarray(tokenizer.encode_known(line), "int32")
        np.add.at(counts, numbers, 1)
        for at in range(0, len(numbers), LONGEST):
            file.write(numbers[at : at + LONGEST].tobytes() + np.int32(LINE_END).tobytes())
    if not counts.any():
        file.close()
        raise InputError(
            f"The corpus has no word of the tokenizer's vocabulary of {tokenizer.vocab_size}: it is empty, or of "
            f"another language or spelling than the texts the tokenizer was trained on."
        )
    return file, counts


def keep_probabilities(counts, subsample):
    """How likely one occurrence of each word is kept: `min(1, sqrt(t / f) + t / f)`, f the word's share of the corpus.

    Args:
        counts: How often each word occurs.
        subsample: The threshold t; 0 keeps every word.

    Returns:
        A float32 array, one number per word; 0 for words that never occur.
    """
    counts = np.asarray(counts, "float64")
    shares = counts / max(counts.sum(), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        chances = np.minimum(1, np.sqrt(subsample / shares) + subsample / shares) if subsample else np.ones(len(counts))
    return np.where(counts > 0, chances, 0).astype("float32")


class _PyWindows(keras.utils.PyDataset):
    """The same batches for backends without tf.data. They come in order, whatever index is asked for."""

    def __init__(self, windows, first_epoch):
        super().__init__()
        self.windows, self.number = windows, first_epoch
        self.batches = self._stream()

    def __len__(self):
        return self.windows.steps

    def __getitem__(self, index):
        return next(self.batches)

    def _stream(self):
        while True:
            for tokens, reaches in self.windows.epoch(self.number):
                yield from zip(tokens, reaches, strict=True)
            self.number += 1


def windows(
    corpus, tokenizer, *, window=5, subsample=1e-3, batch_size=64, length=32, shuffle=True, seed=0, first_epoch=0
):  # fmt: skip
    """Batches of words with their windows, to train `word2vec`.

    Each text is a sentence: windows do not cross its ends. Words that the tokenizer lacks are left out, then frequent
    words at random, and what is left are neighbours, as in word2vec. The window of each word reaches 1 to `window`
    words to both sides, at random. Each pass over the data set is the next epoch, with draws of its own.

    The corpus is read once, line by line, and encoded into a temporary file; memory does not grow with the corpus.
    Pairs of words are never made: a row holds T centres and the words around them, and the target tells each centre's
    reach.

    Args:
        corpus: The path of a UTF-8 text file, plain or `.gz`, one sentence or paragraph per line; or strings.
        tokenizer: The model's tokenizer, as a rule `text.train("word", corpus, ...)`.
        window: The farthest that a window reaches, W.
        subsample: Threshold t of frequent words, which are kept with probability `min(1, sqrt(t / f) + t / f)` where f
            is the word's share of the corpus; 0 keeps all words.
        batch_size: How many rows B in a batch. One batch is one update.
        length: How many centres T in a row.
        shuffle: Whether rows come in random order within half a million words; otherwise in the corpus's.
        seed: The same seed gives the same batches.
        first_epoch: The epoch of the first pass, to go on with a training.

    Returns:
        A `tf.data.Dataset` of `(tokens (B, T + 2 W), reach (B, T, 2))`, int32; on the other backends, where TensorFlow
        need not be installed, a `keras.utils.PyDataset` of the same batches. The centres of a row are
        `tokens[:, W:-W]`, and centre t has the words from `t - reach[t, 0]` to `t + reach[t, 1]` around it. The last
        rows of an epoch may be empty: their reach is 0.

    Raises:
        InputError: An option is wrong, or the corpus has no known word.

    Examples:
        >>> from kerastf import data, text
        >>> tokenizer = text.train("word", ["a b c d"], special_tokens=())
        >>> dataset = data.windows(["a b c d"], tokenizer, window=1, subsample=0, batch_size=1, length=4)
        >>> tokens, reach = next(iter(dataset))
        >>> tokens.numpy().tolist(), reach.numpy().tolist()
        ([[0, 0, 1, 2, 3, 0]], [[[0, 1], [1, 1], [1, 1], [1, 0]]])
    """
    for name, value in (("window", window), ("batch_size", batch_size), ("length", length)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` must be at least 1. Received: {name}={value!r}")
    if not subsample >= 0:
        raise InputError(f"`subsample` must not be negative; 0 keeps all words. Received: subsample={subsample}")
    tokenizer = text.from_config(tokenizer)
    if tokenizer is None:
        raise ConfigError("`tokenizer` is needed. Received: tokenizer=None")
    texts = text.read_lines(corpus) if isinstance(corpus, str | Path) else corpus
    found = _Windows(
        texts, tokenizer, window=window, length=length, batch_size=batch_size, subsample=subsample, shuffle=shuffle,
        seed=seed,
    )  # fmt: skip
    if keras.backend.backend() != "tensorflow":
        return _PyWindows(found, first_epoch)
    import tensorflow as tf

    epochs = iter(range(first_epoch, 2**62))
    # Many batches per call of the generator: each call costs as much as a small batch takes to train.
    dataset = tf.data.Dataset.from_generator(
        lambda: found.epoch(next(epochs)),
        output_signature=(
            tf.TensorSpec((None, batch_size, length + 2 * window), "int32"),
            tf.TensorSpec((None, batch_size, length, 2), "int32"),
        ),
    ).unbatch()
    options = tf.data.Options()
    options.autotune.enabled = False  # its last tick would hold up the end of every short epoch
    return dataset.apply(tf.data.experimental.assert_cardinality(found.steps)).prefetch(16).with_options(options)
