"""Each check is proved by a bug that it must catch. A bug is the smallest change to a block that keeps the contract."""

from pathlib import Path

import keras
import numpy as np
import pytest
from bugs import failures, planted
from keras import ops

from kerastf.blocks.attention import MultiHead
from kerastf.blocks.norm import RMSNorm
from kerastf.testing import CHECKS, ContractError, check_block

ATTENTION = {"num_heads": 4}


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


def test_positions_that_attend_as_if_they_were_the_first():
    @planted("attention", MultiHead, supports=MultiHead.supports)
    class FromZero:
        def call(self, query, context=None, *, mask=None, causal=False, positions=None, training=None):
            found = MultiHead.call(self, query, context, mask=mask, causal=causal, training=training)
            return found if positions is None else found[:, : positions.shape[1]]

    assert attention_failures(FromZero, ["positions"]) == ["positions"]


def test_positions_whose_shape_is_not_promised():
    @planted("attention", MultiHead, supports=MultiHead.supports)
    class Promises:
        def compute_output_shape(self, query_shape, context_shape=None):
            return query_shape

    assert attention_failures(Promises, ["positions"]) == ["positions"]


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


def test_norm_over_the_batch_in_training_alone():
    @planted("norm", RMSNorm, supports=("causal",))
    class OverBatchInTraining:
        def call(self, x, training=None):
            return RMSNorm.call(self, x - ops.mean(x, axis=0, keepdims=True) if training else x)

    assert failures(lambda: check_block("norm", OverBatchInTraining, only=["batch"])) == ["batch"]


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


def test_an_exception_without_a_word_is_still_a_verdict():
    @planted("norm", RMSNorm)
    class Silent:
        def call(self, x):
            raise NotImplementedError

    with pytest.raises(ContractError, match="FAIL  length  raised NotImplementedError: ") as caught:
        check_block("norm", Silent, only=["length"])
    assert caught.value.report.failed == ["length"]


def test_every_check_has_a_planted_bug():
    """The names of all checks appear in these files, in `only` lists that fail."""
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_planted*.py"))
    missing = [c.name for c in CHECKS if f'"{c.name}"' not in text]
    assert not missing
