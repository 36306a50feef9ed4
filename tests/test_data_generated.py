"""What is planted in the generated sets is there, read by rules of its own."""

import numpy as np
import pytest

from kerastf import data
from kerastf.data import drawings, opinions, puzzles
from kerastf.errors import InputError


def polarity(clause):
    """+1 or -1: the opinion of the clause, turned round where it is denied."""
    words = clause.split()
    good, bad = (sum(w in known for w in words) for known in (opinions.GOOD, opinions.BAD))
    assert good + bad == 1
    return (1 if good else -1) * (-1 if set(words) & set(opinions.NEGATIONS) else 1)


def test_opinions_follow_negation_and_contrast():
    made = data.sentiment(3000, seed=1)
    assert made == data.sentiment(3000, seed=1) != data.sentiment(3000, seed=2)
    seen = {"one": 0, "and": 0, "contrast": 0}
    denied = right_by_words = 0
    for line, label in made:
        padded = f" {line} "
        contrast = next((c for c in (" but ", " yet ", " however , ") if c in padded), None)
        kind = "contrast" if contrast else "and" if " and " in padded else "one"
        clauses = padded.split(contrast or " and ") if kind != "one" else [padded]
        signs = [polarity(c) for c in clauses]
        assert (signs[-1] > 0) == (label == "positive"), line
        if kind == "and":
            assert signs[0] == signs[1]
        if kind == "contrast":
            assert signs[0] == -signs[1]
        seen[kind] += 1
        denied += bool(set(line.split()) & set(opinions.NEGATIONS))
        score = sum((w in opinions.GOOD) - (w in opinions.BAD) for w in line.split())
        right_by_words += (score > 0) == (label == "positive") if score else 0.5
    assert all(n > 850 for n in seen.values()) and 0.45 < sum(v == "positive" for _, v in made) / 3000 < 0.55
    assert 700 < denied < 1200
    assert right_by_words / 3000 < 0.75  # counting words is not enough


@pytest.mark.parametrize("kind", puzzles.KINDS)
def test_string_tasks(kind):
    made = data.strings(kind, 300, length=4, seed=2)
    assert made == data.strings(kind, 300, length=4, seed=2) != data.strings(kind, 300, length=4, seed=3)
    for source, target in made:
        if kind == "addition":
            a, b = source.split("+")
            assert int(a) + int(b) == int(target) and len(a) <= 4 and len(b) <= 4
        else:
            want = {"copy": list(source), "reverse": list(reversed(source)), "sort": sorted(source)}[kind]
            assert list(target) == want and 1 <= len(source) <= 4
    assert len({len(s) for s, _ in made}) > 3


def test_shapes_show_what_their_captions_say():
    images, facts = data.shapes(400, size=24, seed=5)
    again, _ = data.shapes(400, size=24, seed=5)
    assert images.dtype == np.uint8 and images.shape == (400, 24, 24, 3) and np.array_equal(images, again)
    for image, fact in zip(images, facts, strict=True):
        colour = np.array(drawings.COLOURS[fact["colour"]])
        drawn = np.abs(image.astype(int) - colour).max(axis=-1) <= 8  # (H, W)
        assert drawn.any()
        thirds = [drawn[8 * i : 8 * i + 8].sum() for i in range(3)]
        assert np.argmax(thirds) == drawings.POSITIONS.index(fact["position"]) and sum(n > 0 for n in thirds) == 1
        columns = [drawn[:, 8 * i : 8 * i + 8].sum() for i in range(3)]
        assert sum(n > 6 for n in columns) == drawings.COUNTS.index(fact["count"]) + 1
        words = fact["caption"].split()
        assert words[0] == fact["count"] and words[1] == fact["colour"] and words[2].startswith(fact["shape"])
        assert words[-1] == fact["position"]
    # Each shape covers its own share of its place.
    areas = {s: [] for s in drawings.SHAPES}
    for image, fact in zip(images, facts, strict=True):
        near = np.abs(image.astype(int) - np.array(drawings.COLOURS[fact["colour"]])).max(axis=-1) <= 8
        areas[fact["shape"]].append(near.sum() / (drawings.COUNTS.index(fact["count"]) + 1))
    means = {s: np.mean(a) for s, a in areas.items()}
    assert means["cross"] < means["triangle"] < means["square"] < means["circle"] + 8
    for name in ("shape", "colour", "position", "count"):
        assert min(sum(f[name] == v for f in facts) for v in {f[name] for f in facts}) > 40


def test_the_label_of_shapes_can_be_chosen():
    found = data.load("embedded:shapes", task="images", count=20, batch_size=4, label="colour")
    assert found.classes == list(drawings.COLOURS) and found.options["num_classes"] == 6
    with pytest.raises(
        InputError, match="^`label` must be one of shape, colour, position, count. Received: label='size'$"
    ):
        data.load("embedded:shapes", task="images", label="size")


def test_what_there_is():
    assert set(data.sources("images")) == {"embedded:shapes", "embedded:digits"}
    assert data.sources()["embedded:dates"] == ("translation",)


MISTAKES = [
    (lambda: data.strings("shout", 2), "`kind` must be one of copy, reverse, sort, addition. Received: kind='shout'"),
    (lambda: data.strings("copy", 2, length=0), "`count` must not be negative, and `length` at least 1. Received: count=2, length=0"),
    (lambda: data.sentiment(-1), "`count` must not be negative. Received: count=-1"),
    (lambda: data.shapes(2, size=8), "`count` must be at least 1, and `size` 16. Received: count=2, size=8"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes(number):
    act, message = MISTAKES[number]
    with pytest.raises(InputError) as told:
        act()
    assert str(told.value) == message
