"""Scores of generated texts.

Scores of texts take one hypothesis per reference, both strings; a reference may be a list of strings where several are
right, such as the pronunciations of a word.
"""

from kerastf.errors import InputError

_UNITS = {"token": str.split, "character": list, "sequence": lambda text: [text]}


def _sacrebleu():
    try:
        import sacrebleu
    except ImportError:
        raise ImportError(
            "BLEU and chrF are computed by sacrebleu. Install it: pip install 'kerastf[metrics]'"
        ) from None
    return sacrebleu


def collect(hypotheses, references):
    """Hypotheses, and a list of references for each."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise InputError("Hypotheses and references are lists of strings. Received: a string")
    hypotheses = list(hypotheses)
    references = [[r] if isinstance(r, str) else list(r) for r in references]
    if len(hypotheses) != len(references) or not hypotheses:
        raise InputError(
            f"Each hypothesis has a reference, and there is at least one. "
            f"Received: {len(hypotheses)} hypotheses, {len(references)} references"
        )
    for text in [*hypotheses, *(r for rs in references for r in rs)]:
        if not isinstance(text, str):
            raise InputError(f"Hypotheses and references are strings. Received: {text!r}")
    if not all(references):
        raise InputError("Each hypothesis has at least one reference. Received: an empty list")
    return hypotheses, references


def _columns(references):
    """References as sacrebleu wants them: one list per rank, None where a hypothesis has fewer."""
    most = max(map(len, references))
    return [[r[i] if i < len(r) else None for r in references] for i in range(most)]


def corpus_bleu(hypotheses, references):
    """BLEU of a corpus, 0 to 100, by sacrebleu with its standard tokenization (13a).

    Args:
        hypotheses: Strings.
        references: A string, or a list of strings, for each hypothesis.

    Returns:
        The score, a float.

    References:
        - [Post, 2018](https://aclanthology.org/W18-6319)
    """
    hypotheses, references = collect(hypotheses, references)
    return float(_sacrebleu().corpus_bleu(hypotheses, _columns(references)).score)


def chrf(hypotheses, references):
    """chrF2 of a corpus, 0 to 100, by sacrebleu: an F-score of character n-grams.

    Args:
        hypotheses: Strings.
        references: A string, or a list of strings, for each hypothesis.

    Returns:
        The score, a float.

    References:
        - [Popović, 2015](https://aclanthology.org/W15-3049)
    """
    hypotheses, references = collect(hypotheses, references)
    return float(_sacrebleu().corpus_chrf(hypotheses, _columns(references)).score)


def edit_distance(one, other):
    """The fewest insertions, deletions and replacements that make one sequence the other.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.edit_distance("kitten", "sitting")
        3
    """
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def exact_match(hypotheses, references):
    """The share of hypotheses that are a reference, sign for sign.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.exact_match(["a b", "c"], ["a b", "d"])
        0.5
    """
    hypotheses, references = collect(hypotheses, references)
    return sum(h in r for h, r in zip(hypotheses, references, strict=True)) / len(hypotheses)


def error_rate(hypotheses, references, *, unit="token"):
    """Errors per unit of the references; it can exceed 1 where hypotheses are too long.

    Args:
        hypotheses: Strings.
        references: A string, or a list of strings, for each hypothesis; the nearest counts.
        unit: `"token"`: edit distance in what spaces separate (words, phonemes); `"character"`: edit distance in
            characters; `"sequence"`: whole strings, `1 - exact_match`, which is what grapheme-to-phoneme work calls
            the word error rate.

    Returns:
        The rate, a float.

    Examples:
        >>> from kerastf import metrics
        >>> metrics.error_rate(["K AE T", "D AO G Z"], ["K AE T", ["D AO G", "D AA G"]])
        0.16666666666666666
        >>> metrics.error_rate(["K AE T", "D AO G Z"], ["K AE T", "D AO G"], unit="sequence")
        0.5
    """
    if unit not in _UNITS:
        raise InputError(f"`unit` must be 'token', 'character' or 'sequence'. Received: unit={unit!r}")
    cut = _UNITS[unit]
    errors = total = 0
    for hypothesis, several in zip(*collect(hypotheses, references), strict=True):
        made = cut(hypothesis)
        # Nearest by share of its length, so that a long reference is not preferred for its length.
        distance, length = min(
            ((edit_distance(made, wanted), len(wanted)) for wanted in map(cut, several)),
            key=lambda found: found[0] / max(found[1], 1),
        )
        errors, total = errors + distance, total + length
    if total == 0:
        raise InputError("The references are all empty, so there is no rate.")
    return errors / total
