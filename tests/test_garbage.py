"""Python's search for garbage waits where it would find nothing, and no longer."""

import gc
import subprocess
import sys
import weakref

import pytest

import kerastf
from kerastf import garbage


class Knot:
    """An object that only a search finds when nobody knows it any more."""

    alive = 0

    def __init__(self):
        self.own = self
        Knot.alive += 1

    def __del__(self):
        Knot.alive -= 1


def test_the_search_waits_and_goes_on():
    assert gc.isenabled()
    with garbage.later():
        assert not gc.isenabled()
        for _ in range(5000):
            Knot()
        assert Knot.alive == 5000
        with garbage.later():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.collect()
    assert Knot.alive == 0


def test_whatever_happens_it_is_as_it_was():
    with pytest.raises(ZeroDivisionError), garbage.later():
        _ = 1 / 0
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_old_is_found_as_well():
    young = Knot()
    assert any(o is young for o in gc.get_objects(generation=0))
    garbage.grow_old()
    assert any(o is young for o in gc.get_objects(generation=2)) and not gc.get_freeze_count()
    del young
    gc.collect()
    assert Knot.alive == 0


def test_what_somebody_froze_stays_frozen():
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        garbage.grow_old()
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()


def test_models_that_nobody_uses_any_more_are_found_without_being_asked():
    """Their weights would otherwise fill the memory of a search over configurations."""
    alive, built = set(), 0
    while built < 60 and built == len(alive):
        model = kerastf.create_model("gpt.nano", vocab_size=9, max_length=8)
        alive.add(id(model))
        weakref.finalize(model, alive.discard, id(model))
        built += 1
    assert len(alive) < built


def test_no_search_while_keras_is_imported_or_a_model_built():
    """Nor when either is done, through all that it made."""
    code = (
        "import gc, kerastf\n"
        "seen = [0]\n"
        "def count(phase, facts):\n"
        "    seen.append(sum(len(gc.get_objects(age)) for age in range(facts['generation'] + 1)))\n"
        "gc.callbacks.append(count)\n"
        "import keras\n"
        "model = kerastf.create_model('gpt.nano', vocab_size=9, max_length=8)\n"
        "assert gc.isenabled()\n"
        "print(max(seen), len(gc.get_objects()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    looked_at, there = map(int, found.stdout.split())
    assert looked_at < there / 10
