"""Ids, slots, options, suggestions."""

import json
from typing import Literal

import keras
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kerastf
from kerastf import config, registry, schema
from kerastf.errors import ConfigError, UnknownNameError

NAME = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@given(namespace=st.none() | NAME, name=NAME, preset=st.none() | NAME)
def test_ids_round_trip(namespace, name, preset):
    text = (f"{namespace}/" if namespace else "") + name + (f".{preset}" if preset else "")
    assert registry.split_id(text) == (namespace, name, preset)
    assert registry.split_id(text.replace("_", "-")) == (namespace, name, preset)


@given(text=st.text(max_size=12))
def test_any_text_finds_something_or_says_so(text):
    for kind in ("attention", "model"):
        try:
            registry.find(kind, text)
        except UnknownNameError as error:
            assert "Received" in str(error) or "There is no" in str(error)


@pytest.mark.parametrize("pattern, want", [("*soidal", ["sinusoidal"]), ("top_?", ["top_k", "top_p"]), ("zzz", [])])
def test_patterns(pattern, want):
    assert kerastf.list_blocks(pattern) == want


def test_listing_by_kind():
    found = {"none", "learned", "sinusoidal", "rotary", "alibi", "sinusoidal_2d", "relative_2d"}
    assert {id for id in kerastf.list_blocks(kind="position") if "/" not in id} == found
    with pytest.raises(UnknownNameError, match="Did you mean `position`?"):
        kerastf.list_blocks(kind="postion")


@pytest.mark.parametrize(
    "value, canonical, names",
    [
        ("rms", "rms", ["rms"] * 4),
        ({"name": "rms", "epsilon": 1e-3}, {"name": "rms", "epsilon": 1e-3}, ["rms"] * 4),
        ({"name": "rms"}, "rms", ["rms"] * 4),
        (["rms", "layer"], ["rms", "layer"], ["rms", "layer"] * 2),
        (["rms", "layer", "rms"], ["rms", "layer", "rms"], ["rms", "layer", "rms", "rms"]),
        ({"default": "rms", 2: "layer"}, {"default": "rms", "2": "layer"}, ["rms", "rms", "layer", "rms"]),
        ({"default": "rms", "-1": "layer"}, {"default": "rms", "3": "layer"}, ["rms", "rms", "rms", "layer"]),
        ({0: "rms", 1: "rms", 2: "rms", 3: "layer"}, {"0": "rms", "1": "rms", "2": "rms", "3": "layer"}, ["rms"] * 3 + ["layer"]),
    ],
)  # fmt: skip
def test_slot_grammar(value, canonical, names):
    got, specs = config.expand_slot("norm", value, 4)
    assert got == canonical and [s["name"] for s in specs] == names
    assert config.expand_slot("norm", json.loads(json.dumps(got)), 4) == (got, specs)


def test_facts_flow_and_explicit_values_win():
    model = kerastf.create_model(
        "gpt", vocab_size=5, max_length=8, dim=12, num_layers=2, num_heads=3, dropout=0.2, epsilon=1e-3,
        attention={"name": "multi_head", "num_heads": 2, "dropout": 0.0},
    )  # fmt: skip
    layer = model.blocks[0]
    assert (layer.attention.num_heads, layer.attention.dropout) == (2, 0.0)
    assert (layer.feedforward.dropout, layer.attention_norm.epsilon) == (0.2, 1e-3)
    assert layer.attention.output_std == pytest.approx(0.02 / 2)


def test_all_problems_come_in_one_error():
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model(
            "gpt.nano", vocab_size="many", n_layer=3, norm="rmsnorm", attention={"name": "multi_head", "heads": 2}
        )
    assert len(caught.value.problems) == 4


@pytest.mark.parametrize(
    "value, hint, fits",
    [
        (3, int, True), (True, int, False), (3.0, int, False), (3, float, True), ("3", float, False), (None, int | None, True),
        ("a", Literal["a", "b"], True), ("c", Literal["a", "b"], False), ([1, 2], list[int], True), ([1, "2"], list[int], False),
        (1, bool, False), ({}, str | dict | None, True), ([], str | dict | None, False),
    ],
)  # fmt: skip
def test_annotations_drive_validation(value, hint, fits):
    assert (schema.mismatch(value, hint) == "") is fits


@pytest.mark.parametrize("foreign, ours", schema.FOREIGN_OPTIONS.items())
def test_foreign_options_are_suggested(foreign, ours):
    known = {ours: None, "zzz": None}
    assert registry.nearest(foreign, known, schema.FOREIGN_OPTIONS) == [ours]


@pytest.mark.parametrize("foreign, ours", registry.FOREIGN_NAMES.items())
def test_foreign_names_lead_somewhere(foreign, ours):
    everything = {e.id for e in registry.entries()} | set(kerastf.list_models())
    assert ours in everything


def test_a_registered_class_is_stored_as_its_id():
    from kerastf.blocks.norm import RMSNorm

    model = kerastf.create_model("gpt", vocab_size=5, max_length=8, dim=8, num_layers=1, num_heads=2, norm=RMSNorm)
    assert model.options["norm"] == "rms"


def test_create_block_takes_layer_options():
    block = kerastf.create_block("norm", "rms", name="mine", dtype="bfloat16")
    assert (block.name, block.dtype_policy.name) == ("mine", "bfloat16")


def test_info():
    info = kerastf.info("gpt.gpt2")
    assert info.parameters == {"gpt2": 124_439_808}
    assert list(info.presets) == ["gpt2"]
    assert "slot: one attention block per layer" in str(info)
    assert kerastf.info("linear_attention/linear").origin.startswith("kerastf-linear-attention 0.1.0")
    assert kerastf.info("rotary").references == ["Su et al., 2021: https://arxiv.org/abs/2104.09864"]


def test_the_model_is_a_plain_keras_model():
    model = kerastf.create_model("gpt", vocab_size=5, max_length=8, dim=8, num_layers=1, num_heads=2)
    assert isinstance(model, keras.Model)
    assert type(model).from_config(model.get_config()).get_config() == model.get_config()
