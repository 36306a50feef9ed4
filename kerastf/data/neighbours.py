"""Windows around words, streamed from a corpus of any size.

Shapes: B blocks, T centres in a block, W tokens on both sides of them, S = T + 2 W.
"""

import itertools
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np

from kerastf import text
from kerastf.data.batching import GIVEN, dataset
from kerastf.errors import ConfigError, InputError

LINE_END = -1
LONGEST = 10_000  # a longer line is cut, as gensim does, so that memory has a bound
CHUNK = 2**19  # numbers read at a time, in whole lines; blocks are shuffled within as many


class Neighbours:
    """The windows of a corpus, each batch by its number: all is a function of (seed, epoch, chunk).

    The texts are encoded once, into a temporary file of four bytes per word. Pairs of words never exist: a block holds
    T centres with W tokens on both sides, and says how far each centre's window reaches. How many words are kept is
    random, how many batches a chunk of the file has must not be: its last blocks may be empty.
    """

    fixed, drop_remainder = True, True

    def __init__(self, texts, tokenizer, *, window, length, batch_size, subsample, shuffle, seed):
        self.window, self.length, self.batch_size = window, length, batch_size
        self.shuffle, self.seed = shuffle, seed
        self.file, self.counts, self.chunks = _encode(texts, tokenizer)
        weakref.finalize(self, self.file.close)
        self.chances = keep_probabilities(self.counts, subsample)
        kept = np.array([self._expected(*chunk) for chunk in self.chunks])
        self.ends = np.cumsum(np.maximum(1, np.ceil(kept / (length * batch_size)).astype("int64")))
        self.steps = self.passes = int(self.ends[-1])
        self._made = (None, None)

    def __len__(self):
        return self.steps

    def _expected(self, at, count):
        """How many words of a chunk are kept, and four standard deviations more."""
        chances = self.chances[(numbers := self._numbers(at, count))] * (numbers != LINE_END)
        return chances.sum(dtype="float64") + 4 * np.sqrt((chances * (1 - chances)).sum(dtype="float64"))

    def _numbers(self, at, count):
        return np.frombuffer(os.pread(self.file.fileno(), 4 * count, 4 * at), "int32")

    def batch(self, epoch, number):
        """One batch: tokens `(B, S)` and reaches `(B, T, 2)`, int32."""
        chunk = int(np.searchsorted(self.ends, number, side="right"))
        if self._made[0] != (epoch, chunk):
            self._made = ((epoch, chunk), self._make(epoch, chunk))
        first = (number - (int(self.ends[chunk - 1]) if chunk else 0)) * self.batch_size
        return tuple(b[first : first + self.batch_size] for b in self._made[1])

    def _make(self, epoch, chunk):
        """All blocks of a chunk, the last of them empty."""
        rng = np.random.default_rng([self.seed, epoch, chunk])
        blocks = self._blocks(*self._read(self._numbers(*self.chunks[chunk]), rng))
        if self.shuffle and epoch != GIVEN:
            order = rng.permutation(len(blocks[0]))
            blocks = [b[order] for b in blocks]
        count = int(self.ends[chunk] - (self.ends[chunk - 1] if chunk else 0)) * self.batch_size
        return [np.pad(b[:count], ((0, max(count - len(b), 0)), *((0, 0),) * (b.ndim - 1))) for b in blocks]

    def epoch(self, epoch):
        """The batches of an epoch, one after the other."""
        return (self.batch(epoch, number) for number in range(self.steps))

    def at(self, step):
        """The batch of a step, counted over all epochs."""
        return self.batch(*divmod(step, self.steps))

    def run(self, start=0):
        """The batches from a step on, without end."""
        return (self.at(step) for step in itertools.count(start))

    def once(self):
        """The batches of one pass in the corpus's order."""
        return self.epoch(GIVEN)

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

    def _blocks(self, tokens, left, right):
        """Cuts what is kept into blocks of T centres; the last one is filled up with centres that reach nowhere."""
        count = -(-len(tokens) // self.length)
        fill = count * self.length - len(tokens)
        padded = np.pad(tokens, (self.window, fill + self.window))
        starts = np.arange(count)[:, None] * self.length
        blocks = padded[starts + np.arange(self.length + 2 * self.window)]  # (count, S)
        reaches = np.pad(np.stack([left, right], axis=-1), ((0, fill), (0, 0)))
        return blocks, reaches.reshape(count, self.length, 2)


def _encode(texts, tokenizer):
    """The numbers of all texts in a temporary file, each text ended by `LINE_END`; their counts; where chunks are."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the data set)
    counts = np.zeros(tokenizer.vocab_size, "int64")
    chunks, start, at = [], 0, 0
    for line in texts:
        numbers = np.asarray(tokenizer.encode_known(line), "int32")
        np.add.at(counts, numbers, 1)
        for first in range(0, len(numbers), LONGEST):
            part = numbers[first : first + LONGEST]
            file.write(part.tobytes() + np.int32(LINE_END).tobytes())
            at += len(part) + 1
            if at - start >= CHUNK:
                chunks.append((start, at - start))
                start = at
    if at > start:
        chunks.append((start, at - start))
    if not counts.any():
        file.close()
        raise InputError(
            f"The corpus has no word of the tokenizer's vocabulary of {tokenizer.vocab_size}: it is empty, or of "
            f"another language or spelling than the texts the tokenizer was trained on."
        )
    file.flush()
    return file, counts, chunks


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
    found = Neighbours(
        texts, tokenizer, window=window, length=length, batch_size=batch_size, subsample=subsample, shuffle=shuffle,
        seed=seed,
    )  # fmt: skip
    return dataset(found, first_epoch)
