"""Generated sentences in which a word's meaning or part of speech depends on its context. Nobody wrote them."""

import random

from kerastf.errors import InputError

_MONEY = (
    ("the clerk", "my aunt", "a merchant", "the cashier", "her lawyer", "the young couple"),
    ("carried", "brought", "sent", "took"),
    ("the money", "some cash", "her savings", "a cheque", "the coins", "his wages"),
    ("to the bank", "into the bank", "back to the bank"),
    ("on monday", "before noon", "to open an account", "to pay a loan", "for safe keeping", "and asked for credit"),
)
_RIVER = (
    ("the ducks", "an otter", "two swans", "the old boat", "a beaver", "the fishermen"),
    ("swam", "drifted", "paddled", "floated"),
    ("down the stream", "through the reeds", "across the water", "with the current", "past the rocks"),
    ("to the bank", "into the bank", "back to the bank"),
    ("of the river", "under the willows", "where frogs sing", "covered with mud", "beside the ford", "to find shade"),
)

# Words that are one part of speech, and words that may be noun or verb.
_ADJECTIVES = (
    "old", "young", "green", "quiet", "clever", "lazy", "tall", "tired", "happy", "strange", "gentle", "noisy",
    "famous", "hungry", "brave", "shy", "careful", "busy",
)  # fmt: skip
_NOUNS = (
    "baker", "teacher", "farmer", "sailor", "doctor", "garden", "river", "window", "letter", "horse", "basket",
    "bridge", "village", "painter", "neighbour", "kitchen", "market", "forest", "castle", "student", "miller", "apple",
)  # fmt: skip
_VERBS = (
    "finds", "sees", "likes", "sells", "remembers", "draws", "carries", "forgets", "follows", "admires", "needs",
    "brings", "describes", "keeps", "loses", "wants",
)  # fmt: skip
_BOTH = ("watches", "plants", "studies", "paints", "cooks", "guards", "ships", "bears", "shows", "marks")
_ADVERBS = ("slowly", "often", "never", "quickly", "today", "again", "gladly", "seldom")
_PREPOSITIONS = ("near", "behind", "under", "beside", "without", "for")
_DETERMINERS = ("the", "a", "every", "this", "some", "two")
TAGS = ("determiner", "adjective", "noun", "verb", "adverb", "preposition")


def two_senses(count, *, seed=0):
    """Sentences with the word `bank`, half of them about money and half about a river.

    Args:
        count: How many.
        seed: The same seed gives the same sentences.

    Returns:
        A list of pairs: the sentence, and `"money"` or `"river"`.

    Examples:
        >>> from kerastf import data
        >>> data.two_senses(1, seed=3)
        [('her lawyer brought her savings back to the bank to pay a loan', 'money')]
    """
    if count < 1:
        raise InputError(f"`count` must be at least 1. Received: count={count}")
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        sense, parts = rng.choice((("money", _MONEY), ("river", _RIVER)))
        found.append((" ".join(rng.choice(part) for part in parts), sense))
    return found


def _noun_phrase(rng):
    words = [(rng.choice(_DETERMINERS), 0)]
    words += [(rng.choice(_ADJECTIVES), 1) for _ in range(rng.choice((0, 1, 1, 2)))]
    return [*words, (rng.choice(_NOUNS if rng.random() < 0.6 else _BOTH), 2)]


def tagged_sentences(count, *, seed=0):
    """Sentences with the part of speech of each word. Ten words may be noun or verb: the context decides.

    Args:
        count: How many.
        seed: The same seed gives the same sentences.

    Returns:
        A list of pairs: a list of words, and a list of numbers of `data.TAGS`.

    Examples:
        >>> from kerastf import data
        >>> words, tags = data.tagged_sentences(1, seed=3)[0]
        >>> [(word, data.TAGS[tag]) for word, tag in zip(words, tags)][:2]
        [('a', 'determiner'), ('noisy', 'adjective')]
    """
    if count < 1:
        raise InputError(f"`count` must be at least 1. Received: count={count}")
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        words = _noun_phrase(rng)
        if rng.random() < 0.4:
            words += [(rng.choice(_ADVERBS), 4)]
        words += [(rng.choice(_VERBS if rng.random() < 0.6 else _BOTH), 3), *_noun_phrase(rng)]
        if rng.random() < 0.5:
            words += [(rng.choice(_PREPOSITIONS), 5), *_noun_phrase(rng)]
        found.append(tuple(map(list, zip(*words, strict=True))))
    return found
