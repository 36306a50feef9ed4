"""The benchmark's own arithmetic: who takes turns, which round counts, which figures come of it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import speed
from peers import report
from peers.process import Failure, Steal

CASE = {"kind": "train", "gpu": False, "tokens": 6, "steps": 2}
OPTIONS = SimpleNamespace(rounds=3, retries=2, steal=0.02, timeout=1)


@pytest.fixture
def calm(monkeypatch):
    monkeypatch.setattr(Steal, "_read", staticmethod(lambda: (100, 0)))


def contestants(monkeypatch, times, asked):
    """Processes that answer with the next of their times; an exception is a contestant that gives up."""

    class Fake:
        def __init__(self, name, case, timeout):
            self.name, self.left = name, iter(times[name])

        def answer(self):
            if not times[self.name]:
                raise Failure("no memory")
            return {"ready": True}

        def ask(self, command):
            asked.append(self.name)
            value = next(self.left)
            if isinstance(value, Exception):
                raise value
            return {"s": value}

        def close(self):
            pass

    monkeypatch.setattr(speed, "Contestant", Fake)


@pytest.mark.parametrize("values", [[3.0], [1.0, 4.0], [5.0, 1.0, 2.0], list(np.random.default_rng(0).random(8))])
def test_quartiles(values):
    np.testing.assert_allclose(report.quartiles(values), np.percentile(values, [25, 50, 75]))


def test_ratios_compare_what_was_measured_in_the_same_round():
    rounds = [
        {"kerastf": {"s": 1.0}, "torch": {"s": 2.0}}, {"kerastf": {"s": 10.0}, "torch": {"s": 10.0}},
        {"kerastf": {"s": 3.0}, "torch": {"s": 30.0}}, {"kerastf": {"s": 500.0}},
    ]  # fmt: skip
    rows = report.summarize(rounds, tokens=60)["s"]
    ratio = rows["torch"]["ratios"]["kerastf"]
    assert ratio["median"] == 0.5  # of 0.5, 1 and 0.1; that of the medians would be 0.65
    assert (ratio["low"], ratio["high"]) == (0.3, 0.75)
    assert rows["torch"]["tokens_per_second"] == 6.0 and rows["kerastf"]["median"] == 6.5
    assert "ratios" not in rows["kerastf"]


def test_everybody_begins_a_round_now_and_then(monkeypatch, calm):
    asked = []
    contestants(monkeypatch, {"kerastf": [1.0] * 3, "torch": [2.0] * 3}, asked)
    result = speed.Race("train", CASE, ["kerastf", "torch"], OPTIONS).result()
    assert asked == ["kerastf", "torch", "torch", "kerastf", "kerastf", "torch"]
    assert result["rounds"] == 3 and result["metrics"]["s"]["torch"]["ratios"]["kerastf"]["median"] == 0.5


def test_who_gives_up_is_named_and_the_others_go_on(monkeypatch, calm):
    times = {"kerastf": [1.0] * 3, "torch": [2.0, Failure("gone")], "transformers": []}
    contestants(monkeypatch, times, [])
    result = speed.Race("train", CASE, list(times), OPTIONS).result()
    assert result["missing"] == {"torch": "gone", "transformers": "no memory"}
    assert result["rounds"] == 3 and result["metrics"]["s"]["torch"]["values"] == [2.0]
    lines = report.table("train", result)
    assert "transformers, SDPA     missing: no memory" in lines and "0.50 (0.50 - 0.50)" in lines


@pytest.mark.parametrize(
    "stolen, kept, again", [([0, 9, 9], 0, 0), ([3, 2, 9], 1, 1), ([5, 3, 4], 1, 2), ([3, 3, 3], 0, 2)]
)
def test_a_round_with_stolen_time_is_run_again_and_the_least_disturbed_counts(monkeypatch, stolen, kept, again):
    ticks = iter([x for percent in stolen for x in ((1000, 50), (1100, 50 + percent))])
    monkeypatch.setattr(Steal, "_read", staticmethod(lambda: next(ticks)))
    runs = iter(range(9))
    assert speed.undisturbed(lambda: next(runs), OPTIONS) == (kept, stolen[kept] / 100, again)


def test_large_figures_stay_apart():
    rounds = [{"kerastf": {"peak MB": 12_710.4, "s": 0.01234}}]
    result = {"rounds": 1, "repeated": 0, "missing": {}, "metrics": report.summarize(rounds, tokens=0)}
    lines = report.table("growth", result).splitlines()
    assert lines[3].split() == ["kerastf", "12,710", "12,710", "-", "12,710"]
    assert lines[5].split() == ["kerastf", "0.01234", "0.01234", "-", "0.01234"]
