"""The sets that come with the library, by name: all of them are generated, but for scikit-learn's digits."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kerastf.data import drawings, generated, language, opinions, puzzles, sentences
from kerastf.data.images import read_images
from kerastf.data.records import Images, Parts
from kerastf.errors import InputError
from kerastf.registry import did_you_mean, nearest

PLAIN = ("language", "sequences", "masked", "bidirectional", "word_vectors")


class Embedded(NamedTuple):
    """A set: what makes it, for which tasks, and the options it knows."""

    read: Callable[..., Parts]
    tasks: tuple[str, ...]
    options: dict[str, Any]


def _corpus(o, task):
    return Parts([{"text": language.corpus(o.size, seed=o.seed)}])


def _stories(o, task):
    made = generated.stories(o.count, seed=o.seed)
    return Parts([{"text": "\n".join(told), "label": topic} for topic, told in made])


def _analogies(o, task):
    return Parts([{"text": line} for line in generated.analogies(o.count, seed=o.seed)[0]])


def _pairs(make):
    def read(o, task):
        return Parts([{"source": a, "target": b} for a, b in make(o.count, seed=o.seed)])

    return read


def _two_senses(o, task):
    made = sentences.two_senses(o.count, seed=o.seed)
    return Parts([{"text": line, "label": sense} for line, sense in made], classes=["money", "river"])


def _tagged(o, task):
    made = sentences.tagged_sentences(o.count, seed=o.seed)
    if task != "tagging":
        return Parts([{"text": " ".join(words)} for words, _ in made])
    return Parts([{"words": words, "tags": tags} for words, tags in made], classes=list(sentences.TAGS))


def _strings(kind):
    return Embedded(
        lambda o, task: _pairs(lambda n, seed: puzzles.strings(kind, n, length=o.letters, seed=seed))(o, task),
        ("translation",), {"count": 10_000, "letters": 3 if kind == "addition" else 8},
    )  # fmt: skip


def _sentiment(o, task):
    made = opinions.sentiment(o.count, seed=o.seed)
    return Parts([{"text": line, "label": label} for line, label in made], classes=["negative", "positive"])


FACTS = {"shape": drawings.SHAPES, "colour": tuple(drawings.COLOURS), "position": drawings.POSITIONS,
         "count": drawings.COUNTS}  # fmt: skip


def _shapes(o, task):
    if o.label not in FACTS:
        raise InputError(f"`label` must be one of {', '.join(FACTS)}. Received: label={o.label!r}")
    images, facts = drawings.shapes(o.count, size=o.size, seed=o.seed)
    return Parts(Images(images, [f[o.label] for f in facts]), classes=list(FACTS[o.label]))


def _digits(o, task):
    train, test = (Images(*part) for part in read_images("digits"))
    return Parts(train, test=test, classes=[str(n) for n in range(10)])


SETS = {
    "corpus": Embedded(_corpus, (*PLAIN, "masked_pairs"), {"size": 200_000}),
    "stories": Embedded(_stories, (*PLAIN, "masked_pairs", "classification"), {"count": 2000}),
    "analogies": Embedded(_analogies, PLAIN, {"count": 4000}),
    "dates": Embedded(_pairs(generated.dates), ("translation",), {"count": 10_000}),
    "reversals": Embedded(_pairs(generated.reversals), ("translation",), {"count": 10_000}),
    **{kind: _strings(kind) for kind in puzzles.KINDS},
    "sentiment": Embedded(_sentiment, (*PLAIN, "classification"), {"count": 4000}),
    "two_senses": Embedded(_two_senses, (*PLAIN, "classification"), {"count": 2000}),
    "tagged_sentences": Embedded(_tagged, (*PLAIN, "tagging"), {"count": 2000}),
    "shapes": Embedded(_shapes, ("images",), {"count": 4000, "size": 24, "label": "shape"}),
    "digits": Embedded(_digits, ("images",), {}),
}


def sources(task=None):
    """The sets that come with the library.

    Args:
        task: Only those for this task; None for all.

    Returns:
        A dict: the name that `load` takes, and the tasks it is for.

    Examples:
        >>> from kerastf import data
        >>> list(data.sources("tagging"))
        ['embedded:tagged_sentences']
    """
    return {f"embedded:{name}": found.tasks for name, found in SETS.items() if task is None or task in found.tasks}


def find(name, task):
    """The set of that name, which is for that task."""
    if name not in SETS:
        raise InputError(
            f"There is no embedded set `{name}`.{did_you_mean(nearest(name, SETS))} Sets: {', '.join(SETS)}."
        )
    if task not in SETS[name].tasks:
        raise InputError(
            f"`embedded:{name}` is for {', '.join(SETS[name].tasks)}. For {task} there are: "
            f"{', '.join(sources(task)) or 'none'}. Received: task={task!r}"
        )
    return SETS[name]
