"""Bugs planted in blocks whose kind has checks of its own: positions, embeddings, samplers, heads, cells."""

import keras
import pytest
from bugs import failures, planted
from keras import ops

import kerastf
from kerastf import registry
from kerastf.blocks.cell import GRU, LSTM
from kerastf.blocks.embedding import Token
from kerastf.blocks.head import Classifier
from kerastf.blocks.masked import MaskedLanguageModel
from kerastf.blocks.norm import LayerNorm
from kerastf.blocks.position import Learned
from kerastf.blocks.sampler import Random
from kerastf.testing import ContractError, check_block


def test_position_that_ignores_the_index():
    @planted("position", Learned, supports=("embeddings",))
    class AtZero:
        def call(self, x, index=0):
            return Learned.call(self, x)

    assert failures(lambda: check_block("position", AtZero, only=["offset"], max_length=16)) == ["offset"]


def test_embedding_that_is_not_a_function_of_its_config():
    @planted("embedding", Token, supports=("tied",))
    class Doubles:
        def get_config(self):
            return {**Token.get_config(self), "dim": 2 * self.dim}

    assert failures(lambda: check_block("embedding", Doubles, only=["config"], vocab_size=5, dim=4)) == ["config"]


@pytest.mark.parametrize(
    "check, method",
    [
        ("tokens", lambda self, p: ops.zeros((ops.shape(p)[0],), dtype="int32") + 99),
        ("seed", lambda self, p: ops.cast(keras.random.randint((ops.shape(p)[0],), 0, 10), "int32")),
    ],
)
def test_sampler(check, method):
    cls = kerastf.register("sampler", "planted")(
        type("Planted", (Random,), {"get_next_token": method, "__module__": __name__})
    )
    assert failures(lambda: check_block("sampler", cls, only=[check])) == [check]


def test_sampler_without_a_distribution_or_config():
    cls = kerastf.register("sampler", "planted_b")(
        type("PlantedB", (Random,), {
            "compute_probabilities": lambda self, x: x, "get_config": lambda self: {"temperature": self.temperature * 2},
            "__module__": __name__,
        })
    )  # fmt: skip
    assert failures(lambda: check_block("sampler", cls, only=["distribution", "config"])) == ["config", "distribution"]


# --- heads


def test_head_whose_loss_does_not_take_its_targets():
    @kerastf.register("head", "planted_head")
    class OneHot(Classifier):
        __doc__ = Classifier.__doc__

        def default_loss(self):
            return keras.losses.CategoricalCrossentropy(from_logits=True)

    assert failures(lambda: check_block("head", "planted_head", only=["loss"], num_classes=3)) == ["loss"]


def test_head_with_targets_and_no_loss():
    @kerastf.register("head", "planted_silent_head")
    class Silent(Classifier):
        __doc__ = Classifier.__doc__

        def default_loss(self):
            return None

    found = failures(lambda: check_block("head", "planted_silent_head", only=["loss"], num_classes=3))
    assert found == ["loss"]


def _with_the_mean(self, features, mask=None, positions=None):
    return MaskedLanguageModel.call(self, features - ops.mean(features, axis=1, keepdims=True), mask, positions)


def _with_the_place(self, features, mask=None, positions=None):
    logits = MaskedLanguageModel.call(self, features, mask, positions)
    return logits if positions is None else logits + ops.cast(positions, "float32")[..., None]


@pytest.mark.parametrize(
    "base, options, body",
    [
        (Classifier, {"num_classes": 3}, {"reads": "first"}),  # it takes the mean
        (Classifier, {"num_classes": 3, "pooling": "first"}, {"reads": "second"}),
        (MaskedLanguageModel, {"vocab_size": 9}, {"call": _with_the_mean}),
        (MaskedLanguageModel, {"vocab_size": 9}, {"call": _with_the_place}),
    ],
)
def test_head_that_reads_more_than_it_says(base, options, body):
    made = planted("head", base, supports=base.supports)(type("Reads", (), body))
    assert failures(lambda: check_block("head", made, only=["reads"], **options)) == ["reads"]


@pytest.mark.parametrize(
    "id, options",
    [
        ("classifier", {"num_classes": 3, "pooling": "first"}),
        ("masked_language_model", {"vocab_size": 9}),
        ("pretraining", {"vocab_size": 9}),
    ],
)
def test_heads_that_read_what_they_say(id, options):
    assert "1 checks passed" in str(check_block("head", id, only=["reads"], **options))


# --- cells


def test_cells_have_a_contract():
    @kerastf.register("cell", "keras_gru")
    class Cell(keras.layers.GRUCell):
        """A cell.

        Args:
            units: Width.
        """

        def __init__(self, units: int = 4, **kwargs):
            super().__init__(units, **kwargs)

        def get_config(self):
            return {"name": self.name, "units": self.units}

    report = check_block("cell", "keras_gru")
    assert report.ok and registry.find("cell", "keras_gru").id == "local/keras_gru"

    @kerastf.register("cell", "lossy")
    class Lossy(Cell):
        __doc__ = Cell.__doc__

        def call(self, x, states, training=False):
            return ops.stop_gradient(super().call(x, states)[0]), states

    assert failures(lambda: check_block("cell", "lossy", only=["gradients"])) == ["gradients"]


def test_cells_whose_states_are_wrong():
    @planted("cell", GRU, supports=())
    class Grows:
        def advance(self, projected, states):
            h, _ = GRU.advance(self, projected, states)
            return h, [h, h]

    @planted("cell", LSTM, supports=())
    class Narrow:
        def get_initial_state(self, batch_size=None):
            return [ops.zeros((batch_size, self.units)), ops.zeros((batch_size, 1))]

    @planted("cell", GRU, supports=())
    class Wide:
        def __init__(self, units: int, **kwargs):
            GRU.__init__(self, units, **kwargs)
            self.output_size = units + 1

    @planted("cell", GRU, supports=())
    class Unbiased:
        def call(self, x, states, training=None):
            return self.advance(self.project(x) - self.bias, states)

    @planted("cell", GRU, supports=())
    class Half:
        advance = property()

        def call(self, x, states, training=None):
            return GRU.advance(self, self.project(x), states)

    @planted("cell", GRU, supports=())
    class Promotes:
        def advance(self, projected, states):
            h = ops.cast(GRU.advance(self, projected, states)[0], "float32")
            return h, [h]

    @planted("cell", GRU, supports=())
    class Doubles:
        def project(self, x):
            return 2 * GRU.project(self, x)

    words = {
        Grows: "the states have shapes", Narrow: "before a step the states have shapes", Wide: "output_size says 5",
        Doubles: "the sum of parts differs from project", Unbiased: "differ from call", Half: "it has only one of them", Promotes: "under mixed_bfloat16 a state",
    }  # fmt: skip
    for cls, text in words.items():
        with pytest.raises(ContractError, match=text) as caught:
            check_block("cell", cls, only=["states"], units=4)
        assert caught.value.report.failed == ["states"]


def test_cell_that_a_keras_loop_runs_differently():
    @planted("cell", GRU, supports=())
    class Counts:
        def call(self, x, states, training=None):
            self.count = getattr(self, "count", 0) + 1
            h, _ = GRU.call(self, x, states)
            return h * self.count, [h]

    with pytest.raises(ContractError, match="keras.layers.RNN gives another result"):
        check_block("cell", Counts, only=["states"], units=4)


def test_cells_whose_kernel_would_learn_something_else():
    @planted("cell", LSTM, supports=())
    class Halves:
        adds_recurrence = True

        def advance(self, projected, states):
            return LSTM.advance(self, projected - self.recur(states[0]) / 2, states)

        def call(self, x, states, training=None):
            return self.advance(self.project(x), states)

    @planted("cell", GRU, supports=())
    class Forgets:
        adds_recurrence = True

        def advance(self, projected, states):
            return GRU.advance(self, projected[..., : 3 * self.units], states)

        def slope_of_recurrence(self, above):
            return above[..., : 3 * self.units]

    @planted("cell", LSTM, supports=())
    class Moved:
        adds_recurrence = True

        def advance(self, projected, states):
            h, (_, c) = LSTM.advance(self, projected, states)
            return h, [h + 1, c]

    words = {Halves: "slope_of_recurrence", Forgets: "slope_of_recurrence", Moved: "differs from its first state"}
    for cls, text in words.items():
        with pytest.raises(ContractError, match=text) as caught:
            check_block("cell", cls, only=["learns"], units=4)
        assert caught.value.report.failed == ["learns"]


def test_norms_that_are_something_else_beside_their_input():
    @planted("norm", LayerNorm)
    class Other:
        def beside(self, x):
            return x, 2 * self(x)

    @planted("norm", LayerNorm)
    class Silent:
        def beside(self, x):
            return ops.stop_gradient(x), self(x)

    words = {Other: "what it gives differs", Silent: "the gradient of x differs"}
    for cls, text in words.items():
        with pytest.raises(ContractError, match=text) as caught:
            check_block("norm", cls, only=["beside"])
        assert caught.value.report.failed == ["beside"]
