"""Recurrent stacks beside torch.nn.RNN, LSTM and GRU with the same weights. `make test-peers`."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat

pytestmark = pytest.mark.peers

VOCAB, DIM, UNITS, LAYERS = 17, 12, 10, 2


def ours_and_theirs(name):
    """Two layers in two directions, with PyTorch's random weights in both."""
    import torch

    torch.manual_seed(1)
    kind = {"simple": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[name]
    theirs = kind(DIM, UNITS, num_layers=LAYERS, bidirectional=True, batch_first=True)
    model = kerastf.create_model(
        "rnn", vocab_size=VOCAB, dim=DIM, units=UNITS, num_layers=LAYERS, bidirectional=True, cell=name, pad_id=0,
        head="features",
    )  # fmt: skip
    for i, layer in enumerate(model.blocks):
        for direction, ending in ((layer.forwards, ""), (layer.backwards, "_reverse")):
            part = {n: getattr(theirs, f"{n}_l{i}{ending}").detach().numpy() for n in NAMES}
            cell = direction.cell
            cell.kernel.assign(part["weight_ih"].T)
            cell.recurrent_kernel.assign(part["weight_hh"].T)
            bias = part["bias_ih"] + part["bias_hh"]
            if name == "gru":  # the candidate keeps both
                bias[2 * UNITS :] = part["bias_ih"][2 * UNITS :]
                cell.recurrent_bias.assign(part["bias_hh"][2 * UNITS :])
            cell.bias.assign(bias)
    return model, theirs


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@pytest.mark.parametrize("name", ["simple", "lstm", "gru"])
def test_outputs_and_gradients(name):
    import torch

    model, theirs = ours_and_theirs(name)
    tokens = np.random.default_rng(0).integers(1, VOCAB, (4, 9))
    x = torch.tensor(ops.convert_to_numpy(model.embedding(ops.array(tokens))))
    want = theirs(x)[0]
    gap = np.max(np.abs(ops.convert_to_numpy(model(ops.array(tokens))) - want.detach().numpy()))
    print(f"\n{name}: largest difference of outputs {gap:.2e}")
    assert gap < 1e-5

    target = np.random.default_rng(1).normal(size=want.shape).astype("float32")
    (want * torch.tensor(target)).sum().backward()
    kernels = [d.cell.kernel for layer in model.blocks for d in (layer.forwards, layer.backwards)]
    found = compat.gradients(lambda: ops.sum(model(ops.array(tokens)) * target), kernels)
    endings = [f"_l{i}{e}" for i in range(LAYERS) for e in ("", "_reverse")]
    worst = 0.0
    for gradient, ending in zip(found, endings, strict=True):
        other = getattr(theirs, f"weight_ih{ending}").grad.numpy().T
        worst = max(worst, np.linalg.norm(gradient - other) / np.linalg.norm(other))
    print(f"{name}: largest relative difference of gradients {worst:.2e}")
    assert worst < 1e-5


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_padding_as_a_packed_sequence(name):
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    model, theirs = ours_and_theirs(name)
    tokens = np.random.default_rng(0).integers(1, VOCAB, (3, 8))
    lengths = [8, 5, 2]
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = 0
    x = torch.tensor(ops.convert_to_numpy(model.embedding(ops.array(tokens))))
    packed = theirs(pack_padded_sequence(x, lengths, batch_first=True))[0]
    want = pad_packed_sequence(packed, batch_first=True)[0].detach().numpy()
    gap = np.max(np.abs(ops.convert_to_numpy(model(ops.array(tokens))) - want))
    print(f"\n{name}: largest difference with padding {gap:.2e}")
    assert gap < 1e-5
