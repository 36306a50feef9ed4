"""Recurrent networks: padding, streaming, the contract with every cell, mistakes, sizes, options, tiny tasks."""

import keras
import numpy as np
import pytest
from keras import ops
from tensors import numpy
from tiny_rnn import CELLS, TINY

import kerastf
from kerastf import compat
from kerastf.blocks.recurrent import Recurrent
from kerastf.errors import ConfigError, InputError
from kerastf.testing import check_model
from kerastf.testing.subjects import shake


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("head", ["classifier", "tagger"])
def test_padding_does_not_change_answers(head, bidirectional):
    head = {"name": head, "num_classes": 3}
    model = kerastf.create_model("rnn", **TINY, pad_id=0, bidirectional=bidirectional, head=head, residual=True)
    shake(model, 1)
    tokens = np.random.default_rng(0).integers(1, 11, (4, 5))
    short, padded = numpy(model(tokens)), numpy(model(np.pad(tokens, ((0, 0), (0, 3)))))
    np.testing.assert_allclose(padded[:, :5] if head["name"] == "tagger" else padded, short, atol=1e-6)


@pytest.mark.parametrize("pad_id", [None, 0])
@pytest.mark.parametrize("name", CELLS)
def test_streaming_equals_one_call(name, pad_id):
    model = kerastf.create_model("rnn", **TINY, cell=name, pad_id=pad_id, norm="layer", residual=True)
    shake(model, 1)
    tokens = np.random.default_rng(0).integers(0, 11, (3, 12))
    want, state, pieces = numpy(model(tokens)), None, []
    for piece in np.split(tokens, [1, 2, 6, 7], axis=1):
        output, state = model.stream(piece, state)
        pieces.append(numpy(output))
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), want, atol=1e-5)


def test_a_streaming_classifier_answers_for_what_came_so_far():
    model = kerastf.create_model("rnn", **TINY, head={"name": "classifier", "num_classes": 3})
    shake(model, 1)
    tokens = np.random.default_rng(0).integers(0, 11, (3, 6))
    _, state = model.stream(tokens[:, :4])
    np.testing.assert_allclose(numpy(model.stream(tokens[:, 4:], state)[0]), numpy(model(tokens)), atol=1e-5)


def test_streaming_needs_one_direction():
    tagger = kerastf.create_model("rnn", **TINY, bidirectional=True, head={"name": "tagger", "num_classes": 2})
    with pytest.raises(InputError, match="A bidirectional model needs the whole sequence"):
        tagger.stream([[1, 2]])
    mean = kerastf.create_model("rnn", **TINY, head={"name": "classifier", "num_classes": 2, "pooling": "mean"})
    with pytest.raises(InputError, match="pooling='last' does not"):
        mean.stream([[1, 2]])
    with pytest.raises(ValueError, match="cannot decode step by step"):
        Recurrent({"name": "gru", "units": 2}, reverse=True).step(ops.ones((1, 1, 2)), [ops.zeros((1, 2))])
    with pytest.raises(InputError, match="the head `tagger`"):
        tagger.generate([1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simple", "gru"])  # test_contracts.py has the default, lstm
def test_model_contract_of_every_cell(name):
    check_model("rnn", cell=name)


@pytest.mark.parametrize(
    "options",
    [
        {"norm": "rms", "residual": True, "dim": 12, "dropout": 0.2},
        {"cell": ["simple", {"name": "lstm", "units": 7, "unit_forget_bias": False}], "pad_id": 0},
        {"head": {"name": "language_model", "tied": True, "bias": True}, "dim": 12, "cell": {"default": "gru"}},
    ],
    ids=["residual", "mixed", "tied"],
)
@pytest.mark.slow
def test_model_contract_with_slots(options):
    check_model("rnn", only=["config", "gradients", "save", "padding", "steps", "generate"], **options)


@pytest.mark.slow
def test_model_contract_in_two_directions():
    check_model(
        "rnn", bidirectional=True, residual=True, cell="gru", head={"name": "tagger", "num_classes": 13},
        only=["config", "gradients", "length", "precision", "graph", "batch", "save", "padding", "fit"],
    )  # fmt: skip


def message(**options):
    with pytest.raises(ConfigError) as caught:
        kerastf.create_model("rnn", **{**TINY, **options})
    return str(caught.value)


def test_mistakes():
    assert message(bidirectional=True) == (
        "A bidirectional model has seen the token that `language_model` is to predict. Write bidirectional=False, or "
        "another head, such as head='tagger'. Received: bidirectional=True, head='language_model'"
    )
    assert message(head={"name": "language_model", "tied": True}) == (
        "A tied head needs features as wide as the embedding. Write dim=5, or tied=False. "
        "Received: tied=True, dim=6, and features 5 wide"
    )
    assert message(units=0) == "`units` must be at least 1. Received: units=0"
    assert "Did you mean `units`?" in message(rnn_units=3)
    assert "cell `lstm` has no option `bias`" in message(cell={"name": "lstm", "bias": 3})


def test_an_embedding_that_cannot_be_tied_is_no_hindrance():
    from kerastf.blocks.embedding import Token

    made = type("Untied", (Token,), {"__doc__": Token.__doc__, "__module__": __name__})
    kerastf.register("embedding", "untied")(made)
    kerastf.create_model("rnn", **TINY, embedding="untied")
    with pytest.raises(ConfigError, match="does not support tied"):
        kerastf.create_model(
            "rnn", **{**TINY, "dim": 5}, embedding="untied", head={"name": "language_model", "tied": True}
        )


@pytest.mark.parametrize(
    "preset, size", [("ptb_small", 4_651_600), ("ptb_medium", 19_775_200), ("ptb_large", 66_022_000)]
)
def test_published_sizes(preset, size):
    """The sizes that follow from Zaremba et al., 2014: the literature says 20M and 66M for the latter two."""
    assert kerastf.count_parameters(f"rnn.{preset}") == size


def test_presets():
    presets = kerastf.registry.presets(kerastf.registry.find("model", "rnn"))
    assert list(presets) == ["simple", "lstm", "gru", "ptb_small", "ptb_medium", "ptb_large"]
    assert all(p["num_layers"] == 2 and p["dim"] == p["units"] for p in presets.values())


def test_residual_only_where_widths_agree():
    model = kerastf.create_model("rnn", **TINY, residual=True, head="features")
    plain = kerastf.create_model("rnn", **TINY, head="features")
    shake(model, 1)
    plain.set_weights(model.get_weights())
    tokens = ops.array([[1, 2, 3]])
    x = model.blocks[0](model.embedding(tokens))  # 6 wide in, 5 out: nothing is added
    np.testing.assert_allclose(numpy(x), numpy(plain.blocks[0](plain.embedding(tokens))))
    np.testing.assert_allclose(numpy(model(tokens)), numpy(x + model.blocks[1].forwards(x)), atol=1e-6)


def test_dropout_only_in_training():
    model = kerastf.create_model("rnn", **TINY, dropout=0.5)
    tokens = ops.array([[1, 2, 3]])
    np.testing.assert_array_equal(numpy(model(tokens)), numpy(model(tokens)))
    assert np.any(numpy(model(tokens, training=True)) != numpy(model(tokens)))


def test_mixed_precision_generates():
    model = kerastf.create_model("rnn", **TINY, dtype="mixed_bfloat16")
    assert model.generate([[1, 2], [3, 4]], max_length=6).shape == (2, 6)
    assert str(model.step(ops.array([[1]]), model.init_state(1))[1][0][0].dtype).endswith("bfloat16'>")


@pytest.mark.parametrize("name", ["lstm", *(pytest.param(c, marks=pytest.mark.slow) for c in CELLS if c != "lstm")])
def test_learns_to_remember_the_first_token(name):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).integers(1, 5, (4096, 8))
    model = kerastf.create_model(
        "rnn", vocab_size=5, dim=16, units=24, num_layers=1, cell=name, head={"name": "classifier", "num_classes": 5}
    )
    model.compile(keras.optimizers.AdamW(1e-2))
    model.fit(x, x[:, 0], batch_size=64, epochs=16, verbose=0)  # of which some may be spent on three of the four
    fresh = np.random.default_rng(1).integers(1, 5, (200, 8))
    assert model.evaluate(fresh, fresh[:, 0], verbose=0, return_dict=True)["accuracy"] > 0.99


def test_learns_to_repeat():
    """A language model that must count: three tokens, then the same three again."""
    keras.utils.set_random_seed(0)
    first = np.random.default_rng(0).integers(1, 6, (2048, 3))
    rows = np.concatenate([first, first], axis=1)
    model = kerastf.create_model("rnn", vocab_size=6, max_length=6, dim=16, units=48, num_layers=1, cell="gru")
    model.compile(keras.optimizers.AdamW(1e-2))
    model.fit(rows[:, :-1], rows[:, 1:], batch_size=64, epochs=12, verbose=0)
    prompts = np.random.default_rng(1).integers(1, 6, (50, 3))
    assert np.mean(model.generate(prompts)[:, 3:] == prompts) > 0.98


def test_two_directions_see_the_next_token():
    """To tag a token by its right neighbour takes a look ahead."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).integers(1, 5, (512, 7))
    y = np.concatenate([x[:, 1:], np.full((512, 1), -1)], axis=1)
    model = kerastf.create_model(
        "rnn", vocab_size=5, dim=16, units=16, num_layers=1, cell="simple", bidirectional=True,
        head={"name": "tagger", "num_classes": 5},
    )  # fmt: skip
    model.compile(keras.optimizers.AdamW(2e-2))
    model.fit(x, y, epochs=8, verbose=0)
    assert model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"] > 0.99


def test_gradients_through_padding_are_finite():
    model = kerastf.create_model("rnn", **TINY, pad_id=0, bidirectional=True, head="features")
    tokens = ops.array([[1, 2, 0, 0], [0, 0, 0, 0]])
    for gradient in compat.gradients(lambda: ops.sum(model(tokens)), model.trainable_variables):
        assert np.all(np.isfinite(gradient))
