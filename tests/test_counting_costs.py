"""What a cost says: activations, parameters, the table; for every family, block and backend; and mistakes."""

import json
import os
import subprocess
import sys
import threading

import keras
import pytest
from counted import SIZES

import kerastf
from kerastf import registry
from kerastf.errors import InputError

# --- activations, parameters, the table


def test_activation_memory_by_hand():
    batch, length, width, heads, vocabulary = 2, 16, 32, 4, 100
    cost = kerastf.cost("gpt", vocab_size=vocabulary, max_length=length, dim=width, num_layers=1, num_heads=heads,
                        batch_size=batch)  # fmt: skip
    wide = batch * length * width
    # Embedding, position; norm, qkv, weights, output, sum; norm, two of the feed-forward, sum; norm, logits.
    # The feed-forward's gelu is no layer: its output is part of the first map's.
    tensors = 2 * wide + (wide + 3 * wide + batch * heads * length**2 + wide) + (wide + 4 * wide + wide) + wide + wide
    found = {row.path: row.activation_bytes for row in cost.layers}
    assert cost.activation_bytes == 4 * (tensors + batch * length * vocabulary), found


def test_half_the_bytes_in_bfloat16():
    full, half = (kerastf.cost("gpt", **SIZES["gpt"], dtype=d) for d in ("float32", "bfloat16"))
    assert full.flops == half.flops
    assert 0.49 < half.activation_bytes / full.activation_bytes < 0.75


def test_batches_are_proportional():
    one, four = (kerastf.cost("gpt", **SIZES["gpt"], batch_size=n) for n in (1, 4))
    assert four.flops == 4 * one.flops and four.activation_bytes == 4 * one.activation_bytes
    assert four.parameters == one.parameters


def test_the_table_adds_up():
    cost = kerastf.cost("gpt", **SIZES["gpt"])
    for depth in (1, 2, 9):
        rows = cost.down_to(depth)
        assert sum(r.flops for r in rows) == cost.flops
        assert sum(r.parameters for r in rows) == cost.parameters
        assert sum(r.activation_bytes for r in rows) == cost.activation_bytes
        assert max(r.path.count("/") for r in rows) < depth
    assert [r.path for r in cost.down_to(1)] == ["embedding", "position", "layer_0", "layer_1", "norm", "head"]
    assert "layer_1/attention/qkv" in cost.table(3)


# --- every family, block and backend


@pytest.mark.parametrize("entry", registry.entries("model"), ids=lambda e: e.id)
def test_every_family(entry):
    example = entry.manifest["example"]
    cost = kerastf.cost(entry.id, length=6, **example)
    assert cost.parameters == kerastf.count_parameters(entry.id, **example)
    assert cost.flops > 0 and cost.activation_bytes > 0 and not cost.missed
    model = kerastf.create_model(entry.id, **example)
    before = [len(layer._inbound_nodes) for layer in model.layers]
    assert kerastf.cost(model, length=6).layers == cost.layers  # allocated or not
    assert [len(layer._inbound_nodes) for layer in model.layers] == before  # and no trace is left in it
    json.dumps(cost.summary())


BLOCKS = [
    (slot, e.id) for slot in ("attention", "norm", "feedforward", "position") for e in registry.entries(slot)
    if not e.id.endswith("_2d")
]  # fmt: skip


@pytest.mark.parametrize("slot, id", BLOCKS)
def test_every_block_can_be_followed(slot, id):
    example = registry.find(slot, id).manifest.get("example", {})
    options = {k: v for k, v in example.items() if k not in ("num_heads", "max_length")}
    cost = kerastf.cost("gpt", **SIZES["gpt"], **{slot: {"name": id, **options}}, length=7)
    assert not cost.missed and cost.flops > 0


@pytest.mark.peers
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_other_backends_count_the_same(backend):
    pytest.importorskip(backend)
    code = (
        "import json, kerastf; from kerastf import registry;"
        "found = [kerastf.cost(e.id, length=6, **e.manifest['example']) for e in registry.entries('model')];"
        "print(json.dumps([[c.flops, c.activation_bytes, c.missed] for c in found]))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "KERAS_BACKEND": backend},
                          capture_output=True, text=True, check=True)  # fmt: skip
    ours = [kerastf.cost(e.id, length=6, **e.manifest["example"]) for e in registry.entries("model")]
    assert json.loads(done.stdout.splitlines()[-1]) == [[c.flops, c.activation_bytes, c.missed] for c in ours]


# --- time, threads, mistakes


def test_large_ones_take_seconds():
    import time

    start = time.process_time()
    cost = kerastf.cost("gpt.gpt2_xl")
    assert cost.parameters == 1_557_611_200 and cost.inputs == {"tokens": (1, 1024)}
    assert time.process_time() - start < 30  # three where it is measured alone


def test_threads_do_not_disturb_each_other():
    found = []
    threads = [threading.Thread(target=lambda: found.append(kerastf.flops("gpt", **SIZES["gpt"]))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [kerastf.flops("gpt", **SIZES["gpt"])] * 3
    assert "__jax_array__" in vars(keras.KerasTensor) and "__array_ufunc__" not in vars(keras.KerasTensor)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: kerastf.cost("gpt", **SIZES["gpt"], length=65), "The model has 64 positions"),
        (lambda: kerastf.flops("gpt", **SIZES["gpt"], length=0), "`length` must be at least 1. Received: length=0"),
        (lambda: kerastf.cost("gpt", **SIZES["gpt"], batch_size=-1), "`batch_size` must be at least 1. Received: batch_size=-1"),
        (lambda: kerastf.cost(keras.Sequential([keras.layers.Dense(2)], name="open")), "The model does not say what its input is. Give `inputs`. Received: model='open'"),
        (lambda: kerastf.cost(keras.Sequential([keras.layers.Dense(2)]), dim=3), "Options are for a model given by its id. Received: dim"),
        (lambda: kerastf.cost(keras.Sequential([keras.Input((None, 3)), keras.layers.Dense(2)])), "Every size of an input must be known. Received: shape (1, None, 3)"),
    ],
)  # fmt: skip
def test_mistakes(call, message):
    with pytest.raises(InputError) as caught:
        call()
    assert message in str(caught.value)
