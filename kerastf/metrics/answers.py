"""Scores of answers to questions, as the SQuAD data set has them."""

import re
import string
from collections import Counter

from kerastf.metrics.texts import collect

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_MARKS = str.maketrans("", "", string.punctuation)


def normalize_answer(answer):
    """An answer as SQuAD compares it: small letters, no punctuation, no articles, single spaces.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.normalize_answer("The  Eiffel-Tower, a tower!")
        'eiffeltower tower'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_MARKS)).split())


def _f1(made, wanted):
    """The harmonic mean of precision and recall in words."""
    made, wanted = made.split(), wanted.split()
    if not made or not wanted:
        return float(made == wanted)
    shared = (Counter(made) & Counter(wanted)).total()
    return 2 * shared / (len(made) + len(wanted))


def answer_scores(hypotheses, references):
    """Exact match and F1 of answers, means over all questions, each in `[0, 1]`.

    Both compare normalised answers (see `normalize_answer`), and take the best of several references. F1 is that of the
    words the answers share: `2 shared / (found + wanted)`.

    Args:
        hypotheses: The answers found, strings.
        references: A string, or a list of strings, for each.

    Returns:
        `{"exact_match", "f1"}`.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.answer_scores(["the Eiffel Tower", "1889"], [["Eiffel Tower"], ["in 1889", "March 1889"]])
        {'exact_match': 0.5, 'f1': 0.8333333333333333}

    References:
        - [Rajpurkar et al., 2016](https://arxiv.org/abs/1606.05250), section 6.1
    """
    exact = f1 = 0.0
    hypotheses, references = collect(hypotheses, references)
    for hypothesis, several in zip(hypotheses, references, strict=True):
        made, wanted = normalize_answer(hypothesis), [normalize_answer(r) for r in several]
        exact += made in wanted
        f1 += max(_f1(made, w) for w in wanted)
    return {"exact_match": exact / len(hypotheses), "f1": f1 / len(hypotheses)}
