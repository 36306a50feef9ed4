"""What the page tells of costs is what the code counts: some choices on every run, all of them with the slow tests."""

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "docs" / "_site"))
import choices

DATA = json.loads(choices.PATH.read_text("utf-8"))
PLACES = [(family, preset) for family in choices.FAMILIES for preset in choices.presets_of(family)]


def draw(rng, table):
    """A random choice for every slot."""
    return {slot: rng.choice(names) for slot, names in table["slots"].items()}


def depth_of(family, preset):
    return choices.presets_of(family)[preset].get("num_layers", 1)


def test_every_preset_and_block_is_there():
    assert tuple(DATA["families"]) == choices.FAMILIES
    assert choices.PATH.stat().st_size < 100_000
    for family, table in DATA["families"].items():
        assert list(table["presets"]) == list(choices.presets_of(family))
        assert table["slots"] == choices.slots_of(family)
        for names in table["slots"].values():
            ours = ("dalle/learned_2d", "linear_attention/linear", "moe/top_k", "ssm/selective", "template/unit")
            assert all("/" not in n or n in ours for n in names)
        for preset, known in table["presets"].items():
            assert known["default"] == choices.defaults_of(family, preset)
            assert known["given"] == choices.given_of(family, preset)


@pytest.mark.parametrize("seed", range(6))
def test_costs_of_some_choices(seed):
    rng = random.Random(seed)
    family, preset = rng.choice([p for p in PLACES if depth_of(*p) <= 8])
    table = DATA["families"][family]
    chosen = draw(rng, table)
    while choices.is_refused(table["refused"], chosen):
        chosen = draw(rng, table)
    assert choices.total(table, preset, chosen) == choices.cost_of(family, preset, chosen)


@pytest.mark.parametrize("family", choices.FAMILIES)
def test_what_is_refused(family):
    rng, table = random.Random(family), DATA["families"][family]
    for _ in range(12):
        preset, chosen = rng.choice(list(table["presets"])), draw(rng, table)
        told = choices.is_refused(table["refused"], chosen)
        assert bool(told) == bool(choices.why_not(family, preset, chosen)), (preset, chosen)


def test_the_count_of_a_published_size():
    assert DATA["families"]["gpt"]["presets"]["gpt2"]["cost"][0] == 124_439_808


@pytest.mark.slow
@pytest.mark.parametrize("family", choices.FAMILIES)
def test_all_choices(family):
    assert json.loads(json.dumps(choices.family_table(family))) == DATA["families"][family]


@pytest.mark.slow
@pytest.mark.parametrize("family, preset", PLACES, ids=lambda v: v)
def test_a_whole_model_of_every_preset(family, preset):
    rng, table = random.Random(f"{family}.{preset}"), DATA["families"][family]
    chosen = next(c for c in iter(lambda: draw(rng, table), None) if not choices.is_refused(table["refused"], c))
    assert choices.total(table, preset, chosen) == choices.cost_of(family, preset, chosen)
