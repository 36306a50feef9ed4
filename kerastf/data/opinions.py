"""Generated opinions, positive or negative, with planted negation and contrast. Nobody wrote them."""

import random

from kerastf.errors import InputError

GOOD = ("wonderful", "tasty", "friendly", "clever", "charming", "brilliant", "fresh", "pleasant", "superb", "lovely")
BAD = ("dreadful", "stale", "rude", "stupid", "boring", "awful", "broken", "noisy", "filthy", "bland")
THINGS = ("soup", "film", "waiter", "story", "hotel", "music", "room", "cake", "actor", "garden", "book", "service")
NEGATIONS = ("not", "never", "hardly")
_DEGREES = ("", "very", "rather", "really", "quite")
_BEGINNINGS = ("", "honestly ,", "all in all ,", "we found that", "i must say", "in the end ,")
_ENDINGS = ("", "again", "this time", "as always", "on sunday", "for the price")
_CONTRASTS = ("but", "yet", "however ,")


def _clause(rng, positive, thing):
    """What somebody says of a thing; every fifth time by denying the opposite."""
    denied = rng.random() < 0.2
    word = rng.choice(GOOD if positive != denied else BAD)
    words = ["the", thing, "was", rng.choice(NEGATIONS) if denied else "", rng.choice(_DEGREES), word]
    return " ".join(w for w in words if w)


def sentiment(count, *, seed=0):
    """Short opinions, half of them positive.

    The words alone do not always tell the label: a negation, which every fifth clause has, turns its clause round, and
    after a contrast (`but`, `yet`, `however`) the second clause decides against the first. Without a contrast both
    clauses agree.

    Args:
        count: How many.
        seed: The same seed gives the same opinions.

    Returns:
        A list of pairs: the text, and `"positive"` or `"negative"`.

    Examples:
        >>> from kerastf import data
        >>> for line in data.sentiment(2, seed=5):
        ...     print(line)
        ('in the end , the service was really wonderful however , the music was stupid again', 'negative')
        ('the story was really stupid however , the room was very fresh', 'positive')
    """
    if count < 0:
        raise InputError(f"`count` must not be negative. Received: count={count}")
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        positive = rng.random() < 0.5
        first, second = rng.sample(THINGS, 2)
        shape = rng.choice(("one", "both", "contrast"))
        parts = [rng.choice(_BEGINNINGS)]
        if shape != "one":
            joint = rng.choice(_CONTRASTS) if shape == "contrast" else "and"
            parts += [_clause(rng, positive == (shape == "both"), first), joint]
        parts += [_clause(rng, positive, second), rng.choice(_ENDINGS), rng.choice(("", ".", "!"))]
        made.append((" ".join(p for p in parts if p), "positive" if positive else "negative"))
    return made
