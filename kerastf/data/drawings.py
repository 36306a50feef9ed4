"""Generated images of coloured shapes, with captions. Shapes: N images, H height, W width."""

import numpy as np

from kerastf.errors import InputError

SHAPES = ("circle", "square", "triangle", "cross")
COLOURS = {"red": (220, 50, 50), "green": (60, 190, 70), "blue": (70, 90, 230), "yellow": (230, 210, 60),
           "white": (240, 240, 240), "purple": (170, 70, 200)}  # fmt: skip
POSITIONS = ("top", "middle", "bottom")
COUNTS = ("one", "two", "three")
_PLACES = {"top": "at the top", "middle": "in the middle", "bottom": "at the bottom"}
_PLURALS = {"cross": "crosses"}


def _covers(shape, y, x, radius):
    """Which pixels a shape covers, by their distance from its centre."""
    if shape == "circle":
        return y**2 + x**2 <= radius**2 + 0.5
    if shape == "square":
        return np.maximum(np.abs(y), np.abs(x)) <= radius * 0.85
    if shape == "triangle":
        return (np.abs(x) <= (y + radius) / 2 + 0.25) & (np.abs(y) <= radius)
    arm = max(0.5, radius / 4)
    return (np.abs(y) <= arm) & (np.abs(x) <= radius) | (np.abs(x) <= arm) & (np.abs(y) <= radius)


def _draw(facts, size, rng):
    image = np.full((size, size, 3), rng.integers(0, 50), "int16")
    third = size / 3
    y, x = np.mgrid[:size, :size] + 0.5  # (H, W)
    middle = third * (POSITIONS.index(facts["position"]) + 0.5)
    for column in rng.permutation(3)[: COUNTS.index(facts["count"]) + 1]:
        down, right = rng.uniform(-0.5, 0.5, 2)
        covered = _covers(facts["shape"], y - middle - down, x - third * (column + 0.5) - right, third / 2 - 1)
        image[covered] = COLOURS[facts["colour"]]
    return np.clip(image + rng.integers(-8, 9, image.shape), 0, 255).astype("uint8")  # (H, W, 3)


def shapes(count, *, size=24, seed=0):
    """Images of one to three coloured shapes, and what they show.

    Shape, colour, position and number are drawn independently, so a caption tells four facts of its image.

    Args:
        count: How many images.
        size: Height and width, at least 16.
        seed: The same seed gives the same images.

    Returns:
        The images, uint8 `(N, H, W, 3)`, and for each a dict of `shape`, `colour`, `position`, `count` and `caption`.

    Examples:
        >>> from kerastf import data
        >>> images, facts = data.shapes(2, seed=1)
        >>> images.shape, facts[0]["caption"], facts[1]["caption"]
        ((2, 24, 24, 3), 'three yellow squares at the bottom', 'three yellow squares in the middle')
    """
    if count < 1 or size < 16:
        raise InputError(f"`count` must be at least 1, and `size` 16. Received: count={count}, size={size}")
    rng = np.random.default_rng(seed)
    images, found = [], []
    for _ in range(count):
        facts = {
            "shape": SHAPES[rng.integers(4)], "colour": list(COLOURS)[rng.integers(6)],
            "position": POSITIONS[rng.integers(3)], "count": COUNTS[rng.integers(3)],
        }  # fmt: skip
        several = facts["count"] != "one"
        noun = _PLURALS.get(facts["shape"], facts["shape"] + "s") if several else facts["shape"]
        facts["caption"] = f"{facts['count']} {facts['colour']} {noun} {_PLACES[facts['position']]}"
        images.append(_draw(facts, size, rng))
        found.append(facts)
    return np.stack(images), found
