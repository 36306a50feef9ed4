"""The generated pictures: what the caption says can be measured in the pixels."""

from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from kerastf_dalle import shapes
from kerastf_dalle.shapes import COLOURS, Scene
from scipy import ndimage

from kerastf.errors import InputError

SOME = shapes.pictures(shapes.scenes(), 720, seed=3)


def test_captions():
    assert Scene("one", "red", "cross", "left").caption == "one red cross on the left"
    assert Scene("three", "white", "cross", "middle").caption == "three white crosses in the middle"
    assert Scene("two", "blue", "square", "bottom").caption == "two blue squares at the bottom"
    captions = {scene.caption for scene in shapes.scenes()}
    assert len(captions) == len(shapes.scenes()) == 4 * 6 * 5 * 3


def test_as_many_pieces_as_the_caption_says():
    for image, scene in zip(*SOME, strict=True):
        _, found = ndimage.label(image.max(-1) > 0.3, structure=np.ones((3, 3)))
        assert found == shapes.COUNTS.index(scene.count) + 1, scene.caption


def test_the_mean_colour_is_the_captions():
    for image, scene in zip(*SOME, strict=True):
        mean = image.sum((0, 1)) / image.sum((0, 1)).max()
        distances = {name: np.abs(mean - np.array(c) / max(c)).sum() for name, c in COLOURS.items()}
        assert min(distances, key=distances.get) == scene.colour, scene.caption


def test_the_centre_of_mass_is_where_the_caption_says():
    for image, scene in zip(*SOME, strict=True):
        down, right = np.array(ndimage.center_of_mass(image.sum(-1))) / (len(image) - 1)
        third = [0 if x < 1 / 3 else 2 if x > 2 / 3 else 1 for x in (down, right)]
        wanted = {"top": [0, 1], "bottom": [2, 1], "left": [1, 0], "right": [1, 2], "middle": [1, 1]}
        assert third == wanted[scene.position], scene.caption


def test_edges_are_soft_and_nothing_is_cut_off():
    image = shapes.render(Scene("three", "white", "circle", "top"), np.random.default_rng(0))
    assert image.dtype == "float32" and image.min() == 0 and image.max() == 1
    assert np.any((image > 0.1) & (image < 0.9))
    for image, scene in zip(*SOME, strict=True):
        edge = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
        assert edge.max() < 0.5, scene.caption


def test_shapes_cover_what_their_areas_say():
    # Areas of radius 1: pi, 1.8^2, half of 1.9 x 1.9, and two bars of 2 x 0.6 less their overlap.
    areas = {"circle": np.pi, "square": 1.8**2, "triangle": 1.9 * 1.9 / 2, "cross": 2 * 2 * 0.6 - 0.6**2}
    points = (np.arange(400) + 0.5) / 100 - 2
    for shape, area in areas.items():
        assert abs(shapes._inside(shape, points[:, None], points[None]).mean() * 16 - area) < 0.03, shape


def test_the_same_seed_gives_the_same_pictures_and_another_others():
    first, again = (shapes.pictures(shapes.scenes(), 20, seed=5) for _ in range(2))
    np.testing.assert_array_equal(first[0], again[0])
    assert first[1] == again[1]
    assert np.abs(first[0] - shapes.pictures(shapes.scenes(), 20, seed=6)[0]).max() > 0.5


def test_scenes_come_equally_often():
    chosen = shapes.scenes()[:7]
    found = Counter(shapes.pictures(chosen, 22, seed=0)[1])
    assert set(found) == set(chosen) and max(found.values()) - min(found.values()) <= 1


@pytest.mark.parametrize("share, seed", [(0.2, 0), (0.5, 1), (0.98, 2)])
def test_the_split_holds_out_combinations_but_no_value(share, seed):
    training, unseen = shapes.split(share, seed)
    assert not set(training) & set(unseen)
    assert sorted(map(astuple, training + unseen)) == sorted(map(astuple, shapes.scenes()))
    assert len(unseen) == round(share * 360) or share > 0.9
    for name, values in shapes.VALUES.items():
        assert {getattr(scene, name) for scene in training} == set(values)
    assert shapes.split(share, seed) == (training, unseen)


def test_labels():
    found = shapes.labels([Scene("three", "green", "circle", "middle")])
    assert {k: v.tolist() for k, v in found.items()} == {"count": [2], "colour": [1], "shape": [0], "position": [4]}


def test_mistakes():
    with pytest.raises(InputError, match=r"`colour` is one of red, .*, white. Received: colour='pink'"):
        Scene("one", "pink", "circle", "top")
    with pytest.raises(InputError, match=r"Received: size=8"):
        shapes.render(shapes.scenes()[0], np.random.default_rng(0), size=8)
    with pytest.raises(InputError, match=r"Received: share=1"):
        shapes.split(share=1)
    with pytest.raises(InputError, match=r"Received: 0 scenes, count=3"):
        shapes.pictures([], 3)
