"""Bugs planted in models: each check of their contract catches its own."""

import keras
import numpy as np
import pytest
from bugs import failures
from keras import ops

import kerastf
from kerastf.models.gpt import GPT
from kerastf.models.seq2seq import Seq2Seq
from kerastf.models.transformer import Transformer
from kerastf.testing import check_model

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
