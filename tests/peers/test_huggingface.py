"""GPT beside Hugging Face's GPT2LMHeadModel with the same weights. `make test-peers`."""

import numpy as np
import pytest
from keras import ops

import kerastf
from kerastf import compat

pytestmark = pytest.mark.peers


def copy_weights(theirs, model):
    """Random weights of theirs into ours; their linear maps are stored as ours are, inputs first."""
    state = {k.removeprefix("transformer."): v.detach().numpy() for k, v in theirs.state_dict().items()}
    names = {"embedding/matrix": "wte.weight", "position/table": "wpe.weight", "norm/gain": "ln_f.weight"}
    names["norm/shift"] = "ln_f.bias"
    parts = {
        "attention_norm/gain": "ln_1.weight", "attention_norm/shift": "ln_1.bias",
        "attention/qkv/kernel": "attn.c_attn.weight", "attention/qkv/bias": "attn.c_attn.bias",
        "attention/output/kernel": "attn.c_proj.weight", "attention/output/bias": "attn.c_proj.bias",
        "feedforward_norm/gain": "ln_2.weight", "feedforward_norm/shift": "ln_2.bias",
        "feedforward/expand/kernel": "mlp.c_fc.weight", "feedforward/expand/bias": "mlp.c_fc.bias",
        "feedforward/contract/kernel": "mlp.c_proj.weight", "feedforward/contract/bias": "mlp.c_proj.bias",
    }  # fmt: skip
    for i in range(model.options["num_layers"]):
        names.update({f"layer_{i}/{ours}": f"h.{i}.{other}" for ours, other in parts.items()})
    assert {w.path for w in model.weights} == set(names)
    for weight in model.weights:
        weight.assign(state[names[weight.path]])
    return names


@pytest.mark.parametrize("activation, theirs_name", [("gelu_tanh", "gelu_new"), ("gelu", "gelu"), ("relu", "relu")])
def test_logits_and_gradients(activation, theirs_name):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=97, n_positions=32, n_embd=48, n_layer=3, n_head=4, activation_function=theirs_name,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.2,
        )
    )  # fmt: skip
    model = kerastf.create_model(
        "gpt", vocab_size=97, max_length=32, dim=48, num_layers=3, num_heads=4, dropout=0.0, activation=activation
    )
    names = copy_weights(theirs, model)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 97, (2, 4, 20))

    logits = theirs(torch.tensor(tokens)).logits
    gap = np.max(np.abs(logits.detach().numpy() - ops.convert_to_numpy(model(ops.array(tokens)))))
    print(f"\nlargest difference of logits: {gap:.2e}")
    assert gap < 1e-4

    torch.nn.functional.cross_entropy(logits.reshape(-1, 97), torch.tensor(targets).reshape(-1)).backward()
    wanted = {n.removeprefix("transformer."): p.grad.numpy() for n, p in theirs.named_parameters()}
    loss = model.head.default_loss()
    found = compat.gradients(lambda: loss(ops.array(targets), model(ops.array(tokens))), model.trainable_variables)
    worst = 0.0
    for variable, gradient in zip(model.trainable_variables, found, strict=True):
        want = wanted[names[variable.path]]
        worst = max(worst, np.linalg.norm(gradient - want) / np.linalg.norm(want))
    print(f"largest relative difference of gradients: {worst:.2e}")
    assert worst < 1e-3


def test_greedy_generation_is_the_same():
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(2)
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=97, n_positions=64, n_embd=48, n_layer=2, n_head=4, initializer_range=0.4)
    )
    theirs.eval()
    model = kerastf.create_model("gpt", vocab_size=97, max_length=64, dim=48, num_layers=2, num_heads=4)
    copy_weights(theirs, model)
    prompt = np.random.default_rng(0).integers(1, 97, (3, 9))
    want = theirs.generate(
        torch.tensor(prompt), attention_mask=torch.ones(3, 9, dtype=torch.long), max_length=40, do_sample=False,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    assert model.generate(prompt, max_length=40).tolist() == want.tolist()


def test_published_size():
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = sum(p.numel() for p in GPT2LMHeadModel(GPT2Config()).parameters())
    assert kerastf.count_parameters("gpt.gpt2") == theirs == 124_439_808
