"""Generated string tasks for sequence-to-sequence models: copy, reverse, sort, add."""

import random
import string

from kerastf.errors import InputError

KINDS = ("copy", "reverse", "sort", "addition")


def _word(rng, length):
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, length)))


def _pair(kind, rng, length):
    if kind == "addition":
        a, b = (rng.randrange(10 ** rng.randint(1, length)) for _ in range(2))
        return f"{a}+{b}", str(a + b)
    word = _word(rng, length)
    return word, {"copy": word, "reverse": word[::-1], "sort": "".join(sorted(word))}[kind]


def strings(kind, count, *, length=8, seed=0):
    """Pairs of strings, the second made from the first by a rule.

    Args:
        kind: `"copy"`, `"reverse"`, `"sort"` (letters in the order of the alphabet) or `"addition"` (two numbers and
            their sum).
        count: How many pairs.
        length: The most letters of a string, or digits of a number; the fewest is one.
        seed: The same seed gives the same pairs.

    Returns:
        A list of pairs `(source, target)`.

    Examples:
        >>> from kerastf import data
        >>> data.strings("sort", 2, length=5, seed=2), data.strings("addition", 1, length=3, seed=2)
        ([('c', 'c'), ('vtr', 'rtv')], [('1+5', '6')])
    """
    if kind not in KINDS:
        raise InputError(f"`kind` must be one of {', '.join(KINDS)}. Received: kind={kind!r}")
    if count < 0 or length < 1:
        raise InputError(
            f"`count` must not be negative, and `length` at least 1. Received: count={count}, length={length}"
        )
    rng = random.Random(seed)
    return [_pair(kind, rng, length) for _ in range(count)]
