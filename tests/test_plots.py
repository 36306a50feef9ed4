"""Pictures and the data beside them."""

import itertools
import json

import numpy as np
import pytest

from kerastf import plots
from kerastf.errors import InputError

pytest.importorskip("matplotlib")


def some(*shape):
    weights = np.random.default_rng(0).random(shape)
    return weights / weights.sum(-1, keepdims=True)


def test_pyplot_is_left_to_the_user(tmp_path):
    import matplotlib
    from matplotlib import pyplot

    before = matplotlib.get_backend()
    pyplot.switch_backend("svg")
    try:
        figure = plots.attention_map(some(2, 2), "ab", path=tmp_path / "map.png")
        assert matplotlib.get_backend() == "svg" and not pyplot.get_fignums()
    finally:
        pyplot.switch_backend(before)
    assert figure.axes and (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"


def test_attention_data_holds_thousandths(tmp_path):
    layers = [some(2, 3, 4), some(2, 3, 4)]
    told = plots.attention_data(
        layers, "abc", ["w", " ", "é", 1], path=tmp_path / "map.json", start=(1, np.int64(0), 2)
    )
    assert json.loads((tmp_path / "map.json").read_text("utf-8")) == told
    assert told["keys"] == ["w", " ", "é", "1"] and told["start"] == [1, 0, 2]
    assert np.abs(np.array(told["layers"]) / 1000 - np.array(layers)).max() <= 0.0005 + 1e-7


def test_attention_data_names_wrong_shapes(tmp_path):
    with pytest.raises(InputError) as told:
        plots.attention_data([some(3, 4)], "abc", "abcd", path=tmp_path / "map.json")
    assert str(told.value) == (
        "`layers` must be one (H, T, S) per layer for 3 queries and 4 keys. Received: shapes [(3, 4)]"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words, turned", [("abcd", 0), (["a", "longer", "b", "c"], 90)])
def test_long_labels_stand_upright_and_do_not_overlap(words, turned):
    figure = plots.attention_map(some(4, 4, 4), words)
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {turned}
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert not [1 for a, b in itertools.pairwise(boxes) if a.overlaps(b)]


def test_a_curve_counts_whole_steps(tmp_path):
    figure = plots.curve({"loss": np.linspace(1, 0, 20)}, across="distance", first=0)
    assert figure.axes[0].get_xlabel() == "distance"
    assert all(float(t).is_integer() for t in figure.axes[0].get_xticks())
    assert figure.axes[0].lines[0].get_xdata()[0] == 0
