"""A model that nobody holds any more is gone, with its weights and its optimizer's."""

import gc
import weakref

import keras
import numpy as np
import pytest

import kerastf

SIZES = {"dim": 16, "num_layers": 2, "num_heads": 2, "dropout": 0.1}
TOKENS = np.arange(32).reshape(4, 8) % 11
BATCHES = {
    "gpt": ({**SIZES, "vocab_size": 11, "max_length": 8}, TOKENS, TOKENS),
    "rnn": ({"vocab_size": 11, "dim": 16, "units": 16, "cell": "lstm"}, TOKENS, TOKENS),
    "seq2seq": ({"vocab_size": 11, "source_vocab_size": 11, "dim": 8, "units": 8}, None, TOKENS),
    "vit": (
        {**SIZES, "image_size": 8, "patch_size": 4, "num_classes": 3}, np.ones((4, 8, 8, 3), "float32"), np.arange(4) % 3
    ),
}  # fmt: skip


def used(family, options, x, y):
    """What a model holds, after all that people do with one."""
    model = kerastf.create_model(family, **options)
    x = {"source": TOKENS, "target": TOKENS} if x is None else x
    model.compile("adamw")
    model.fit(x, y, verbose=0, batch_size=2)
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    if family in ("gpt", "rnn"):
        model.generate([[1, 2]], max_length=6)
    held = [*model._flatten_layers(), *model.variables, *model.optimizer.variables]
    if keras.backend.backend() == "tensorflow":
        held += [v.value for v in (*model.variables, *model.optimizer.variables)]
    return [weakref.ref(x) for x in held]


@pytest.mark.parametrize("family", BATCHES)
def test_nothing_is_left_of_a_model(family):
    left = used(family, *BATCHES[family])
    keras.backend.clear_session()
    gc.collect()
    assert not [r() for r in left if r() is not None]
