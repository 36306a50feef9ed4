"""ELMo's parts beside PyTorch with the same weights: the character CNN, and the projected LSTM. `make test-peers`."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf.blocks.recurrent import Recurrent
from kerastf.testing.subjects import shake

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_character_cnn(activation):
    import torch
    from torch.nn import functional

    filters = [[1, 4], [2, 8], [5, 6]]
    block = kerastf.create_block(
        "embedding", "character_cnn", dim=7, filters=filters, character_dim=5, num_highway=2, max_characters=12,
        activation=activation,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 262, (3, 4, 12))
    block(tokens)
    shake(block, 1)

    def tensor(variable):
        return torch.tensor(ops.convert_to_numpy(variable))

    table = torch.cat([torch.zeros(1, 5), tensor(block.matrix)])
    x = functional.embedding(torch.tensor(tokens.reshape(-1, 12)), table).transpose(1, 2)  # (B T, D, W)
    found = []
    for layer in block.convolutions:
        y = functional.conv1d(x, tensor(layer.kernel).permute(2, 1, 0), tensor(layer.bias))
        found.append(functional.max_pool1d(getattr(torch, activation)(y), y.shape[2]).squeeze(2))
    y = torch.cat(found, 1)
    for layer in block.highways:
        gate = functional.linear(y, tensor(layer.gate.kernel).T, tensor(layer.gate.bias)).sigmoid()
        new = functional.linear(y, tensor(layer.transform.kernel).T, tensor(layer.transform.bias)).relu()
        y = torch.lerp(y, new, gate)
    y = functional.linear(y, tensor(block.project.kernel).T, tensor(block.project.bias)).reshape(3, 4, 7)
    gap = np.abs(ops.convert_to_numpy(block(tokens)) - y.numpy()).max()
    print(f"\nlargest difference: {gap:.1e}")
    assert gap < 1e-5


@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # it says which of its kernels it takes
def test_the_projected_lstm():
    """PyTorch has the projection, without bounds."""
    import torch

    torch.manual_seed(0)
    theirs = torch.nn.LSTM(5, 9, proj_size=4, batch_first=True)
    layer = Recurrent({"name": "projected_lstm", "units": 9, "projection": 4})
    x = np.random.default_rng(0).normal(size=(3, 7, 5)).astype("float32")
    layer(x)
    layer.cell.kernel.assign(theirs.weight_ih_l0.detach().numpy().T)
    layer.cell.recurrent_kernel.assign(theirs.weight_hh_l0.detach().numpy().T)
    layer.cell.bias.assign((theirs.bias_ih_l0 + theirs.bias_hh_l0).detach().numpy())
    layer.cell.projection_kernel.assign(theirs.weight_hr_l0.detach().numpy().T)
    want = theirs(torch.tensor(x))[0].detach().numpy()
    gap = np.abs(ops.convert_to_numpy(layer(x)) - want).max()
    print(f"\nlargest difference: {gap:.1e}")
    assert gap < 1e-5
