"""Generated pictures of coloured shapes with captions. Shapes: N pictures, H height, W width."""

import itertools
from collections import Counter
from dataclasses import astuple, dataclass, fields

import numpy as np

from kerastf.errors import InputError

# By attribute, its values. Colours are shares of red, green and blue.
COUNTS = ("one", "two", "three")
COLOURS = {"red": (1.0, 0.1, 0.1), "green": (0.1, 0.9, 0.1), "blue": (0.2, 0.3, 1.0), "yellow": (1.0, 0.9, 0.0),
           "purple": (0.8, 0.1, 0.9), "white": (1.0, 1.0, 1.0)}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross")
POSITIONS = {"top": "at the top", "bottom": "at the bottom", "left": "on the left", "right": "on the right",
             "middle": "in the middle"}  # fmt: skip
VALUES = {"count": COUNTS, "colour": tuple(COLOURS), "shape": SHAPES, "position": tuple(POSITIONS)}
ATTRIBUTES = tuple(VALUES)

# Lengths as shares of the side: where a line of shapes stands, how far its shapes are apart, sizes, and jitter.
EDGE = 0.2
STEP = 0.32
RADII = (0.1, 0.122)
LINE_JITTER = 0.03
SHAPE_JITTER = 0.015
DETAIL = 4  # each pixel is the mean of so many points each way: soft edges


@dataclass(frozen=True)
class Scene:
    """What a picture shows.

    Attributes:
        count: `"one"`, `"two"` or `"three"`.
        colour: A name in `COLOURS`.
        shape: A name in `SHAPES`.
        position: A name in `POSITIONS`. Several shapes stand side by side, on the left and right one above the other.

    Examples:
        >>> Scene("two", "red", "circle", "top").caption
        'two red circles at the top'
    """

    count: str
    colour: str
    shape: str
    position: str

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value not in VALUES[field.name]:
                known = ", ".join(VALUES[field.name])
                raise InputError(f"`{field.name}` is one of {known}. Received: {field.name}={value!r}")

    @property
    def caption(self) -> str:
        """The picture in words."""
        plural = "" if self.count == "one" else "es" if self.shape == "cross" else "s"
        return f"{self.count} {self.colour} {self.shape}{plural} {POSITIONS[self.position]}"


def scenes():
    """All 360 scenes, in a fixed order."""
    return [Scene(*values) for values in itertools.product(*VALUES.values())]


def split(share=0.2, seed=0):
    """Scenes for training, and scenes that training never shows.

    Every single value of every attribute is seen in training; what is held out are combinations.

    Args:
        share: Which share is held out, in `(0, 1)`.
        seed: The same seed gives the same split.

    Returns:
        Two lists of scenes.

    Examples:
        >>> training, unseen = split()
        >>> len(training), len(unseen)
        (288, 72)
    """
    if not 0 < share < 1:
        raise InputError(f"`share` must be in (0, 1). Received: share={share}")
    everything = scenes()
    left = Counter((name, value) for scene in everything for name, value in _values(scene))
    unseen = set()
    for number in np.random.default_rng(seed).permutation(len(everything)):
        scene = everything[number]
        if len(unseen) < round(share * len(everything)) and all(left[value] > 1 for value in _values(scene)):
            unseen.add(scene)
            left.subtract(_values(scene))
    return [s for s in everything if s not in unseen], [s for s in everything if s in unseen]


def _values(scene):
    return list(zip(ATTRIBUTES, astuple(scene), strict=True))


def render(scene, rng, size=32):
    """Draws a scene on black, with random jitter in size and place.

    Args:
        scene: A `Scene`.
        rng: A `numpy.random.Generator`.
        size: Height and width in pixels, at least 16.

    Returns:
        A float32 array of shape `(H, W, 3)` in `[0, 1]`.

    Examples:
        >>> render(Scene("one", "blue", "square", "middle"), np.random.default_rng(0)).shape
        (32, 32, 3)
    """
    if size < 16:
        raise InputError(f"`size` must be at least 16. Received: size={size}")
    points = (np.arange(size * DETAIL) + 0.5) / (size * DETAIL)
    covered = np.zeros((size * DETAIL, size * DETAIL), bool)
    for centre, radius in _places(scene, rng):
        covered |= _inside(scene.shape, (points[:, None] - centre[0]) / radius, (points[None] - centre[1]) / radius)
    share = covered.reshape(size, DETAIL, size, DETAIL).mean((1, 3))  # (H, W)
    return (share[..., None] * np.array(COLOURS[scene.colour])).astype("float32")  # (H, W, 3)


def _places(scene, rng):
    """Centre (down, right) and radius of each shape, as shares of the side."""
    count = COUNTS.index(scene.count) + 1
    along = 0.5 + STEP * (np.arange(count) - (count - 1) / 2)
    across = {"top": EDGE, "left": EDGE, "middle": 0.5, "bottom": 1 - EDGE, "right": 1 - EDGE}[scene.position]
    line = np.stack([np.full(count, across), along], axis=1)  # (count, 2)
    line = line[:, ::-1] if scene.position in ("left", "right") else line
    line = line + rng.uniform(-LINE_JITTER, LINE_JITTER, 2) + rng.uniform(-SHAPE_JITTER, SHAPE_JITTER, (count, 2))
    return list(zip(line, rng.uniform(*RADII, count), strict=True))


def _inside(shape, y, x):
    """Which points a shape of radius 1 around the origin covers."""
    if shape == "circle":
        return y**2 + x**2 <= 1
    if shape == "square":
        return (np.abs(y) <= 0.9) & (np.abs(x) <= 0.9)
    if shape == "triangle":  # its top above, its base below
        return (np.abs(x) <= (y + 1) / 2) & (y <= 0.9)
    return (np.minimum(np.abs(y), np.abs(x)) <= 0.3) & (np.maximum(np.abs(y), np.abs(x)) <= 1)


def pictures(chosen, count, *, size=32, seed=0):
    """Many pictures of some scenes: each scene as often as any other, in random order.

    Args:
        chosen: Scenes to draw.
        count: How many pictures N.
        size: Height and width in pixels.
        seed: The same seed gives the same pictures.

    Returns:
        A float32 array `(N, H, W, 3)` in `[0, 1]`, and a list of N scenes.

    Examples:
        >>> images, shown = pictures(scenes(), 3)
        >>> images.shape, shown[0].caption
        ((3, 32, 32, 3), 'three yellow triangles on the right')
    """
    if not len(chosen) or count < 1:
        raise InputError(f"There must be a scene and a picture. Received: {len(chosen)} scenes, count={count}")
    rng = np.random.default_rng(seed)
    rounds = [rng.permutation(len(chosen)) for _ in range(-(-count // len(chosen)))]
    shown = [chosen[number] for number in np.concatenate(rounds)[:count]]
    return np.stack([render(scene, rng, size) for scene in shown]), shown


def labels(shown):
    """By attribute, the number of each scene's value: int32 `(N,)`.

    Args:
        shown: Scenes.
    """
    return {
        name: np.array([VALUES[name].index(getattr(scene, name)) for scene in shown], "int32") for name in ATTRIBUTES
    }
