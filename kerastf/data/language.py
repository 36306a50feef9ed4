"""An embedded corpus that needs no network, and batches for language models. Shapes: B batch, T time."""

import random

import numpy as np

from kerastf.data.batching import Batches, dataset, require_number
from kerastf.errors import InputError

_NOUNS = ("baker", "miller", "sailor", "teacher", "gardener", "painter", "doctor", "farmer")
_THINGS = ("bread", "flour", "a boat", "a book", "a rose", "a picture", "a pill", "a cow")
_PLACES = ("harbour", "market", "school", "garden", "village", "river", "mill", "house")
_COLOURS = ("red", "green", "blue", "white", "black", "yellow")
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def _trade(rng):
    i = rng.randrange(len(_NOUNS))  # planted: each person always brings the same thing
    return f"the {_NOUNS[i]} brings {_THINGS[i]} to the {rng.choice(_PLACES)}."


def _sum(rng):
    a, b = rng.randint(1, 6), rng.randint(1, 6)  # planted: the sums are right
    return f"{_NUMBERS[a - 1]} and {_NUMBERS[b - 1]} make {_NUMBERS[a + b - 1]}."


def _echo(rng):
    colour = rng.choice(_COLOURS)  # planted: the answer repeats the colour
    return f"is the {rng.choice(_PLACES)} {colour}? yes, it is {colour}."


def _count(rng):
    start = rng.randint(1, 9)  # planted: counting goes on by one
    return "count: " + ", ".join(_NUMBERS[start - 1 : start + 3]) + "."


def corpus(size=200_000, *, seed=0):
    """A generated text with structure that a language model can learn.

    Four kinds of sentences: each person always brings the same thing, sums are right, an answer repeats the colour of
    its question, counting goes on by one. Nobody wrote it, so it is free to use.

    Args:
        size: How many characters.
        seed: The same seed gives the same text.

    Returns:
        The text.

    Examples:
        >>> from kerastf import data
        >>> data.corpus(60, seed=1)
        'five and one make six.\\nis the house red? yes, it is red.\\ncou'
    """
    if size < 1:
        raise InputError(f"`size` must be at least 1. Received: size={size}")
    rng = random.Random(seed)
    parts, length = [], 0
    while length < size:
        sentence = rng.choice((_trade, _sum, _echo, _count))(rng) + "\n"
        parts.append(sentence)
        length += len(sentence)
    return "".join(parts)[:size]


class Windows:
    """The windows of a sequence, one after the other: where each begins.

    Args:
        tokens: The sequence.
        length: Length T of a window; its target is one token later.
    """

    def __init__(self, tokens, length):
        self.tokens, self.length = tokens, length

    def __len__(self):
        return -(-(len(self.tokens) - self.length) // self.length)

    def __getitem__(self, number):
        return number * self.length

    def make(self, starts, _):
        """Inputs and targets `(B, T)`."""
        found = self.tokens[np.asarray(starts)[:, None] + np.arange(self.length + 1)].astype("int32")
        return found[:, :-1], found[:, 1:]

    def draw(self, rows, rng):
        """As many windows at random places."""
        return self.make(rng.integers(0, len(self.tokens) - self.length, len(rows)), rng)


class _SameEachPass(Batches):
    def batch(self, epoch, number):
        return super().batch(0, number)


def next_token(tokens, *, length, batch_size, steps=None, seed=0):
    """Windows of a long sequence for a language model: the target is the input, one token later.

    Args:
        tokens: The sequence, integers.
        length: Length T of a window.
        batch_size: How many windows B in a batch.
        steps: Batches of windows at random places, that many per pass, and the same ones in each; None for every
            window once, in order.
        seed: The same seed gives the same batches.

    Returns:
        A `tf.data.Dataset` of pairs `(B, T)`, `(B, T)`, int32.

    Examples:
        >>> from kerastf import data
        >>> x, y = next(iter(data.next_token(range(10), length=4, batch_size=2)))
        >>> x.numpy().tolist(), y.numpy().tolist()
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])
    """
    require_number("length", length, 1)
    require_number("batch_size", batch_size, 1)
    if steps is not None:
        require_number("steps", steps, 1)
    tokens = np.asarray(tokens, dtype="int32")
    if tokens.ndim != 1 or len(tokens) <= length:
        raise InputError(
            f"`tokens` must be one sequence of more than {length} tokens. "
            f"Received: shape {tokens.shape}, length={length}"
        )
    windows = Windows(tokens, length)
    options = {"batch_size": batch_size, "shuffle": False, "seed": seed}
    if steps is None:
        return dataset(Batches(windows, windows.make, **options))
    return dataset(_SameEachPass(range(steps * batch_size), windows.draw, drop_remainder=True, **options))
