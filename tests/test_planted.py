"""Each check is proved by a bug that it must catch. A bug is the smallest change to a block that keeps the contract."""

from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import registry
from kerastf.blocks.attention import MultiHead
from kerastf.blocks.cell import GRU, LSTM
from kerastf.blocks.embedding import Token
from kerastf.blocks.head import Classifier
from kerastf.blocks.norm import RMSNorm
from kerastf.blocks.position import Learned
from kerastf.blocks.sampler import Random
from kerastf.models.gpt import GPT
from kerastf.models.seq2seq import Seq2Seq
from kerastf.models.transformer import Transformer
from kerastf.testing import CHECKS, ContractError, check_block, check_model

ATTENTION = {"num_heads": 4}
ALL = ("causal", "cross", "decode", "rotation", "bias", "weights")


def planted(kind, base, supports=ALL):
    """A registered subclass of a sound block, whose body is the bug."""

    def decorate(cls):
        made = type(
            cls.__name__, (base,), {k: v for k, v in vars(cls).items() if not k.startswith("__") or k == "__init__"}
        )
        made.__doc__, made.__module__, made.__qualname__ = base.__doc__, __name__, f"planted.{cls.__name__}"
        return kerastf.register(kind, supports=supports)(made)

    return decorate


def failures(run):
    with pytest.raises(ContractError) as caught:
        run()
    return caught.value.report.failed


def attention_failures(cls, only):
    return failures(lambda: check_block("attention", cls, only=only, level="full", **ATTENTION))


def test_a_sound_subclass_passes():
    @planted("attention", MultiHead)
    class Sound:
        pass

    check_block("attention", Sound, **ATTENTION)


def test_leak_of_the_future():
    @planted("attention", MultiHead)
    class Leaks:
        def call(self, query, context=None, *, mask=None, causal=False, training=None):
            return MultiHead.call(self, query, context, mask=mask, causal=False, training=training)

    assert "causal" in attention_failures(Leaks, ["causal"])


def test_state_that_disagrees_with_the_full_pass():
    @planted("attention", MultiHead)
    class Forgets:
        def step(self, query, state, index):
            output, new = MultiHead.step(self, query, state, index)
            return output, {**new, "value": state["value"]}

    assert attention_failures(Forgets, ["steps"]) == ["steps"]


def test_state_that_is_not_batch_first():
    @planted("attention", MultiHead)
    class TimeFirst:
        def init_state(self, batch_size, max_length, context=None, context_mask=None):
            state = MultiHead.init_state(self, batch_size, max_length, context, context_mask)
            return {k: ops.swapaxes(v, 0, 1) for k, v in state.items()}

    assert attention_failures(TimeFirst, ["steps"]) == ["steps"]


def test_state_whose_rows_do_not_stand_together():
    """As many entries as heads and rows, but in the order of the heads: beams would take each other's keys."""

    def turned(state, first):
        def turn(x):
            rows = ops.reshape(x, (first, -1, *x.shape[1:]))
            return ops.reshape(ops.swapaxes(rows, 0, 1), x.shape)

        return {k: turn(v) for k, v in state.items()}

    @planted("attention", MultiHead)
    class HeadsFirst:
        def step(self, query, state, index):
            output, new = MultiHead.step(self, query, turned(state, self.num_heads), index)
            return output, turned(new, query.shape[0])

    assert attention_failures(HeadsFirst, ["steps"]) == ["steps"]


def test_step_that_ignores_the_index_of_a_row():
    @planted("attention", MultiHead)
    class OneIndex:
        def step(self, query, state, index):
            index = index if isinstance(index, int) or not index.shape else index[0]
            return MultiHead.step(self, query, state, index)

    assert attention_failures(OneIndex, ["steps"]) == ["steps"]


def test_padding_mask_that_is_ignored():
    @planted("attention", MultiHead)
    class Unmasked:
        def call(self, query, context=None, *, mask=None, causal=False, training=None):
            return MultiHead.call(self, query, context, causal=causal, training=training)

    assert attention_failures(Unmasked, ["padding", "cross"]) == ["padding", "cross"]


def test_context_mask_that_is_lost_in_decoding():
    @planted("attention", MultiHead)
    class Unmasked:
        def init_state(self, batch_size, max_length, context=None, context_mask=None):
            return MultiHead.init_state(self, batch_size, max_length, context)

    assert attention_failures(Unmasked, ["cross_steps"]) == ["cross_steps"]


def test_weights_that_do_not_add_up():
    @planted("attention", MultiHead)
    class Heavy:
        def attention_weights(self, query, context=None, *, mask=None, causal=False):
            return 2 * MultiHead.attention_weights(self, query, context, mask=mask, causal=causal)

    assert attention_failures(Heavy, ["weights"]) == ["weights"]


def test_constructor_argument_missing_from_the_config():
    @planted("attention", MultiHead)
    class Forgetful:
        def get_config(self):
            return {k: v for k, v in MultiHead.get_config(self).items() if k != "num_kv_heads"}

    assert attention_failures(Forgetful, ["documented"]) == ["documented"]
    found = failures(lambda: check_block("attention", Forgetful, only=["config"], num_heads=4, num_kv_heads=2))
    assert found == ["config"]


def test_argument_that_the_docstring_does_not_mention():
    cls = planted("attention", MultiHead)(type("Silent", (), {}))
    cls.__doc__ = "Attends.\n\nArgs:\n    num_heads: How many.\n"
    assert attention_failures(cls, ["documented"]) == ["documented"]


def test_config_that_is_not_json():
    @planted("attention", MultiHead)
    class Numpy:
        def get_config(self):
            return {**MultiHead.get_config(self), "dropout": np.float32(0)}

    assert attention_failures(Numpy, ["config"]) == ["config"]


def test_nan_in_mixed_precision():
    @planted("attention", MultiHead)
    class Overflows:
        def scores_of(self, q, k):
            scores = MultiHead.scores_of(self, q, k) * 1e4
            return scores - ops.cast(ops.max(scores), scores.dtype)

    assert attention_failures(Overflows, ["precision"]) == ["precision"]


def test_shape_that_is_promised_wrongly():
    @planted("attention", MultiHead)
    class Promises:
        def compute_output_shape(self, query_shape, context_shape=None):
            return (*query_shape[:-1], 2 * query_shape[-1])

    assert attention_failures(Promises, ["shapes"]) == ["shapes"]


def test_weight_without_a_gradient():
    @planted("norm", RMSNorm, supports=("causal",))
    class Idle:
        def build(self, x_shape):
            RMSNorm.build(self, x_shape)
            self.unused = self.add_weight(shape=(3,), name="unused")

    assert failures(lambda: check_block("norm", Idle, only=["gradients"])) == ["gradients"]


def test_gradient_that_is_stopped():
    @planted("norm", RMSNorm, supports=("causal",))
    class Stopped:
        def call(self, x):
            return ops.stop_gradient(RMSNorm.call(self, x))

    assert failures(lambda: check_block("norm", Stopped, only=["gradients"])) == ["gradients"]


def test_length_that_is_fixed_at_build():
    @planted("norm", RMSNorm, supports=("causal",))
    class Fixed:
        def build(self, x_shape):
            RMSNorm.build(self, x_shape)
            self.table = self.add_weight(shape=(x_shape[1], 1), name="table")

        def call(self, x):
            return RMSNorm.call(self, x) + self.table

    assert failures(lambda: check_block("norm", Fixed, only=["length"])) == ["length"]


def test_norm_over_time_leaks_and_mixes():
    @planted("norm", RMSNorm, supports=("causal",))
    class OverTime:
        def call(self, x):
            return x - ops.mean(x, axis=1, keepdims=True)

    assert failures(lambda: check_block("norm", OverTime, only=["causal"])) == ["causal"]


def test_look_back_without_a_state():
    @planted("norm", RMSNorm, supports=("causal",))
    class LooksBack:
        def call(self, x):
            return RMSNorm.call(self, x) + ops.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]

    assert failures(lambda: check_block("norm", LooksBack, only=["steps", "causal"])) == ["steps"]


def test_norm_over_the_batch():
    @planted("norm", RMSNorm, supports=("causal",))
    class OverBatch:
        def call(self, x):
            return RMSNorm.call(self, x - ops.mean(x, axis=0, keepdims=True))

    assert failures(lambda: check_block("norm", OverBatch, only=["batch"])) == ["batch"]


def test_randomness_in_inference():
    @planted("norm", RMSNorm, supports=("causal",))
    class Noisy:
        def call(self, x):
            return RMSNorm.call(self, x) + keras.random.normal(ops.shape(x))

    assert failures(lambda: check_block("norm", Noisy, only=["seed"])) == ["seed"]


def test_python_state_that_a_graph_freezes():
    @planted("norm", RMSNorm, supports=("causal",))
    class Counts:
        def call(self, x):
            import tensorflow as tf

            return RMSNorm.call(self, x) * (1.0 if tf.executing_eagerly() else 2.0)

    assert failures(lambda: check_block("norm", Counts, only=["graph", "xla"], level="full")) == ["graph", "xla"]


def test_mask_that_is_handed_on():
    @planted("norm", RMSNorm, supports=("causal",))
    class Hands:
        def compute_mask(self, inputs, previous_mask=None):
            return ops.ones(ops.shape(inputs)[:2], dtype="bool")

    @planted("norm", RMSNorm, supports=("causal",))
    class Silent:
        def __init__(self, *, epsilon: float = 1e-5, **kwargs):
            RMSNorm.__init__(self, epsilon=epsilon, **kwargs)
            self.supports_masking = False

    for cls in (Hands, Silent):
        assert failures(lambda cls=cls: check_block("norm", cls, only=["mask_rules"])) == ["mask_rules"]


def test_weight_that_is_not_saved():
    @planted("norm", RMSNorm, supports=("causal",))
    class Unsaved:
        def save_own_variables(self, store):
            pass

        def load_own_variables(self, store):
            pass

    assert failures(lambda: check_block("norm", Unsaved, only=["save"])) == ["save"]


def test_class_that_a_new_process_cannot_find(install):
    install(
        "kerastf-hidden", {"norm": {"hidden": "Hidden"}},
        code="""
        import keras, sys
        from kerastf import register
        from kerastf.blocks.norm import RMSNorm

        @register("norm", "hidden", supports=("causal",))
        class Hidden(keras.layers.Layer):
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                if "pytest" not in sys.modules:
                    raise ValueError("only at home")
            def call(self, x):
                return x
        """,
    )  # fmt: skip
    found = failures(lambda: check_block("norm", "hidden/hidden", only=["fresh_process"], level="full"))
    assert found == ["fresh_process"]


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


# --- models

TINY = {"vocab_size": 13, "max_length": 12, "dim": 16, "num_layers": 1, "num_heads": 2}


def model_failures(only, base=GPT, sizes=TINY, **body):
    made = type("Planted", (base,), {**body, "__doc__": base.__doc__, "__module__": __name__})
    kerastf.register("model", "planted")(made)
    return failures(lambda: check_model("planted", only=only, **sizes))


def test_model_that_leaks():
    def build(self, *args, **kwargs):
        GPT.__init__(self, *args, **kwargs)
        for layer in self.blocks:
            layer.causal = False

    found = model_failures(["causal", "generate", "steps"], __init__=_with_signature(build))
    assert found == ["causal", "steps", "generate"]


TRANSLATOR = {"vocab_size": 13, "max_length": 12, "dim": 16, "units": 12, "start_id": 1, "end_id": 2}
SPOILT = {
    "short": lambda row: row[:-1], "long": lambda row: [*row, 5], "other": lambda row: [*row[:-1], row[-1] % 12 + 1],
    "goes on": lambda row: [2, *row],
}  # fmt: skip


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("base, sizes", [(GPT, TINY), (Seq2Seq, TRANSLATOR)], ids=["gpt", "seq2seq"])
def test_model_that_writes_something_else(base, sizes, spoilt):
    def generate(self, *args, **kwargs):
        rows = base.generate(self, *args, **kwargs)
        spoil = [SPOILT[spoilt](list(row)) for row in rows]
        return np.array(spoil) if isinstance(rows, np.ndarray) else spoil

    assert model_failures(["generate"], base, sizes, generate=generate) == ["generate"]


def test_model_that_attends_to_padding():
    def step_down(self, tokens, training=None, mask=None):
        return GPT.call(self, tokens, training=training) + ops.cast(ops.shape(tokens)[1], "float32")

    assert model_failures(["padding"], call=step_down) == ["padding"]


def test_model_whose_steps_start_at_the_wrong_place():
    def step(self, tokens, state, index):
        return GPT.step(self, tokens, state, index + 1)

    assert model_failures(["steps"], step=step) == ["steps"]


@pytest.mark.parametrize("off", [0.0, 1e-5])
def test_model_with_large_logits(off):
    # Rounding of large numbers is forgiven, and no more than that.
    def call(self, tokens, training=None, mask=None):
        return GPT.call(self, tokens, training=training) * 1e4

    def step(self, tokens, state, index):
        logits, state = GPT.step(self, tokens, state, index)
        return logits * 1e4 * (1 + off), state

    if off:
        assert model_failures(["steps"], call=call, step=step) == ["steps"]
    else:
        with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
            model_failures(["steps"], call=call, step=step)


def test_model_that_does_not_learn():
    def compile(self, optimizer="adamw", **kwargs):
        GPT.compile(self, keras.optimizers.SGD(0.0), **kwargs)

    assert model_failures(["fit"], compile=compile) == ["fit"]


def test_translator_that_ignores_its_source():
    class Deaf(Transformer):
        __doc__ = Transformer.__doc__

        def call(self, inputs, training=None, mask=None):
            return super().call({**inputs, "source": ops.zeros_like(inputs["source"])}, training=training)

    kerastf.register("model", "deaf")(Deaf)
    options = {**TINY, "start_id": 1, "end_id": 2}
    assert failures(lambda: check_model("deaf", only=["source"], **options)) == ["source"]


def _with_signature(function):
    import functools

    wrapped = functools.wraps(GPT.__init__)(function)
    return wrapped


def test_every_check_has_a_planted_bug():
    """The names of all checks appear in these files, in `only` lists that fail."""
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_planted*.py"))
    missing = [c.name for c in CHECKS if f'"{c.name}"' not in text]
    assert not missing


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


def test_an_exception_without_a_word_is_still_a_verdict():
    @planted("norm", RMSNorm)
    class Silent:
        def call(self, x):
            raise NotImplementedError

    with pytest.raises(ContractError, match="FAIL  length  raised NotImplementedError: ") as caught:
        check_block("norm", Silent, only=["length"])
    assert caught.value.report.failed == ["length"]
