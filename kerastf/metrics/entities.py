"""Scores of entities: names of several words count as one, and only when they are found whole.

Tags are those of IOB2 (`B-PER I-PER O`) or IOBES (`B- I- E-` for more words, `S-` for one). They are read as the CoNLL
script and seqeval read them: an `I-` after another kind, or after `O`, begins an entity too.
"""

from kerastf.errors import InputError

_PREFIXES = ("B", "I", "E", "S")


def _parts(tag):
    """Prefix and kind of a tag; `O` has no kind."""
    if not isinstance(tag, str) or (tag != "O" and (tag[:1] not in _PREFIXES or tag[1:2] not in ("", "-"))):
        raise InputError(f"A tag is O, or B-, I-, E- or S- and a kind, such as B-PER. Received: {tag!r}")
    return ("O", "") if tag == "O" else (tag[0], tag[2:] or "_")


def entities(tags):
    """The entities of a sentence.

    Args:
        tags: A tag for each word.

    Returns:
        A list of `(kind, first, last)`, numbers of words, both included.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.entities(["B-PER", "I-PER", "O", "B-LOC", "B-LOC", "I-ORG"])
        [('PER', 0, 1), ('LOC', 3, 3), ('LOC', 4, 4), ('ORG', 5, 5)]
    """
    found, start = [], None
    before, kind_before = "O", ""
    for i, tag in enumerate([*tags, "O"]):
        prefix, kind = _parts(tag)
        goes_on = prefix in ("I", "E") and before in ("B", "I") and kind == kind_before
        if start is not None and not goes_on:
            found.append((kind_before, start, i - 1))
            start = None
        if prefix != "O" and not goes_on:
            start = i
        before, kind_before = prefix, kind
    return found


def _rates(right, found, wanted):
    """Precision, recall and their harmonic mean; 0 where nothing was found, or nothing was there."""
    precision, recall = right / found if found else 0.0, right / wanted if wanted else 0.0
    both = precision + recall
    return {"precision": precision, "recall": recall, "f1": 2 * precision * recall / both if both else 0.0}


def entity_scores(hypotheses, references, *, by_kind=False):
    """Precision, recall and F1 of entities over all sentences, the same as seqeval's.

    An entity is right when its kind, its first and its last word are. `precision = right / found`,
    `recall = right / wanted`, `f1 = 2 precision recall / (precision + recall)`.

    Args:
        hypotheses: The tags found, a list for each sentence.
        references: The right tags, a list for each sentence.
        by_kind: Whether to score each kind by itself.

    Returns:
        `{"precision", "recall", "f1", "support"}`, where support is the number of right entities there are; with
        `by_kind` a dict of such for each kind.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "I-PER", "B-LOC"]])
        {'precision': 0.5, 'recall': 0.5, 'f1': 0.5, 'support': 2}
    """
    hypotheses, references = list(hypotheses), list(references)
    if len(hypotheses) != len(references) or not references:
        raise InputError(
            f"Each sentence has tags found and right tags, and there is at least one. "
            f"Received: {len(hypotheses)} and {len(references)} sentences"
        )
    found, wanted = set(), set()
    for i, (made, right) in enumerate(zip(hypotheses, references, strict=True)):
        if isinstance(made, str) or len(made) != len(right):
            raise InputError(f"Sentence {i} has a tag for each word. Received: {len(made)} found, {len(right)} right")
        found |= {(i, *e) for e in entities(made)}
        wanted |= {(i, *e) for e in entities(right)}

    def score(kind=None):
        a, b = ({e for e in s if kind is None or e[1] == kind} for s in (found, wanted))
        return {**_rates(len(a & b), len(a), len(b)), "support": len(b)}

    return {k: score(k) for k in sorted({e[1] for e in found | wanted})} if by_kind else score()
