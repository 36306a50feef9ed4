"""Bugs planted in converters: each check of their contract catches its own."""

import pytest

import kerastf
from kerastf.convert.base import Field
from kerastf.convert.bert import BODY, Bert
from kerastf.convert.gpt2 import GPT2
from kerastf.testing import ContractError, check_block


def failures(base, only, **body):
    made = type("Planted", (base,), {**body, "__doc__": base.__doc__, "__module__": __name__})
    kerastf.register("converter", "planted", supports=("hf/planted",))(made)
    with pytest.raises(ContractError) as caught:
        check_block("converter", "planted", only=only)
    return caught.value.report


def test_a_sound_one_passes():
    made = type("Sound", (GPT2,), {"__doc__": GPT2.__doc__, "__module__": __name__})
    kerastf.register("converter", "sound", supports=("hf/sound",))(made)
    assert not check_block("converter", "sound").failed


def test_a_setting_that_is_read_otherwise_than_it_is_written():
    fields = [f for f in GPT2.fields if f.theirs != "n_layer"]
    report = failures(
        GPT2, ["settings"], fields=(*fields, Field("layers", "num_layers", 3)), read_more=lambda *_: {"num_layers": 5}
    )
    assert report.failed == ["settings"] and "num_layers" in str(report)


def test_queries_and_keys_the_wrong_way_round():
    class Swapped(Bert):
        __doc__ = Bert.__doc__

        def rules(self, options, head, prefix=None):
            found = super().rules(options, head, prefix)
            if prefix is None:
                return found
            turned = {r.ours: r.theirs[::-1] for r in found if len(r.theirs) > 1}
            return [type(r)(turned.get(r.ours, r.theirs), r.ours, r.form, r.optional) for r in found]

    report = failures(Swapped, ["round_trip"])
    assert report.failed == ["round_trip"] and "qkv" in str(report)


def test_a_weight_that_is_forgotten():
    less = "\n".join(line for line in BODY.splitlines() if "embedding_norm/shift" not in line)
    report = failures(Bert, ["round_trip"], body=less)
    assert report.failed == ["round_trip"] and "embedding_norm/shift" in str(report)


def test_surplus_tensors_that_are_passed_over():
    assert failures(GPT2, ["refusals"], carries_nothing=lambda self, name: True).failed == ["refusals"]


def test_an_option_that_is_lost():
    assert failures(GPT2, ["refusals"], written=lambda self, options: set(options)).failed == ["refusals"]
