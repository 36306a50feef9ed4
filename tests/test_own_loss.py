"""A family may have a loss and metrics of its own, and may write something else than tokens."""

import keras
import numpy as np
import pytest

import kerastf
from kerastf import cli
from kerastf.blocks.losses import TokenCrossEntropy
from kerastf.models.gpt import GPT
from kerastf.testing import check_model

OPTIONS = {"vocab_size": 9, "max_length": 8, "dim": 8, "num_layers": 1, "num_heads": 2}


class Twice(TokenCrossEntropy):
    """Twice the cross-entropy."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return 2 * super().__call__(y_true, y_pred, sample_weight)


@pytest.fixture
def family():
    @kerastf.register("model", "painter")
    class Painter(GPT):
        __doc__ = GPT.__doc__
        writes = "images"

        def default_loss(self):
            return Twice()

        def default_metrics(self):
            return [keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="once")]

    return Painter


def test_compile_takes_the_familys_loss_and_metrics(family):
    model = family(**OPTIONS)
    model.compile("adam")
    tokens = np.arange(16).reshape(2, 8) % 9
    found = model.evaluate(tokens, tokens, verbose=0, return_dict=True)
    assert abs(found["loss"] - 2 * found["once"]) < 1e-5
    kept = model.get_compile_config()
    assert kept["loss"] is None and kept["metrics"] is None  # a loaded model asks the family again


def test_the_contract_does_not_compare_images_with_tokens(family):
    report = str(check_model("painter", only=["generate"], **OPTIONS))
    assert "skip  generate  it writes images, not tokens" in report


def test_the_command_says_what_to_do(family, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("kerastf.checkpoint.load_model", lambda *args, **kwargs: family(**OPTIONS))
    assert cli.main(["generate", str(tmp_path / "model.keras"), "--prompt", "a cat"]) != 0
    assert (
        "This model writes images, and the command shows text: use model.generate in Python." in capsys.readouterr().err
    )
