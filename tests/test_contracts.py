"""One test per contract over every built-in, and over every model. The blocks of plugins/ are proved by their own tests."""

import keras
import pytest
import tensorflow as tf

from kerastf import compat, registry
from kerastf.testing import check_block, check_model, generic, matrix, report, subject

BLOCKS = [e for e in registry.entries() if e.kind != "model" and not e.namespace]
MODELS = registry.entries("model")
DECODING = [
    e.id for e in BLOCKS if e.kind == "attention" and {"causal", "decode"} <= set(e.manifest.get("supports", ()))
]


def name(entry):
    return f"{entry.kind}:{entry.id}"


@pytest.mark.parametrize("entry", BLOCKS, ids=name)
def test_block(entry):
    check_block(entry.kind, entry.id)


@pytest.mark.parametrize("entry", [e for e in BLOCKS if e.kind not in ("sampler", "converter")], ids=name)
def test_block_under_xla(entry):
    check_block(entry.kind, entry.id, level="full", only=["xla"])


@pytest.mark.parametrize("entry", MODELS, ids=name)
def test_model(entry):
    check_model(entry.id)


@pytest.mark.parametrize("entry", MODELS, ids=name)
def test_model_under_xla(entry):
    check_model(entry.id, level="full", only=["xla"])


LAYERS = [(e.kind, e.id, {}) for e in (*BLOCKS, *MODELS) if e.kind not in ("sampler", "converter") and not e.namespace]
TURNED = [("attention", "multi_head", {"num_heads": 4, "position": position}) for position in ("rotary", "alibi")]


@pytest.mark.parametrize("kind, id, options", LAYERS + TURNED, ids=str)
def test_every_part_computes_in_the_precision_of_the_whole(kind, id, options):
    # One that does not casts all that goes through it, and the backend's fast attention no longer takes it.
    whole = subject(kind, id, options).make(dtype="mixed_bfloat16")
    parts = [p for p in compat.parts_of(whole) if not isinstance(p, keras.layers.InputLayer)]
    assert {p.path: p.compute_dtype for p in parts if p.compute_dtype != "bfloat16"} == {}


@pytest.mark.parametrize(
    "attention", [a if a in ("bahdanau", "window") else pytest.param(a, marks=pytest.mark.slow) for a in DECODING]
)
def test_gpt_decodes_with(attention):
    check_model("gpt", attention=attention, only=["causal", "padding", "steps", "generate"])


OPTIONS = [
    ("attention", "multi_head", {"num_heads": 4, "num_kv_heads": 2}),
    ("attention", "multi_head", {"num_heads": 4, "num_kv_heads": 1, "position": "rotary"}),
    ("attention", "multi_head", {"num_heads": 3, "head_dim": 6, "position": "alibi", "bias": False}),
    ("attention", "window", {"num_heads": 4, "window": 4, "num_kv_heads": 2, "position": "rotary"}),
    ("attention", "window", {"num_heads": 2, "window": 100, "position": "alibi"}),
    ("attention", "window", {"num_heads": 2, "window": 1}),
    ("attention", "cosine", {"num_heads": 4, "num_kv_heads": 2, "position": {"name": "rotary", "base": 100.0}}),
    ("attention", "bahdanau", {"units": 5, "position": "alibi"}),
    ("attention", "luong", {"score": "dot"}),
    ("norm", "layer", {"bias": False}),
    ("feedforward", "mlp", {"mlp_dim": 5, "activation": "relu", "dropout": 0.3, "bias": False}),
    ("feedforward", "gated", {"activation": "silu"}),
    ("position", "sinusoidal", {"layout": "concatenated", "scale": 0.1}),
    ("position", "sinusoidal_2d", {"prefix": 2, "scale": 0.1}),
    ("position", "relative_2d", {"prefix": 1}),
    ("attention", "multi_head", {"num_heads": 4, "position": {"name": "relative_2d", "grid": [2, 4]}}),
    ("embedding", "patch", {"patch_size": [2, 3]}),
    ("head", "language_model", {"bias": True, "tied": False}),
    ("head", "classifier", {"pooling": "last", "dropout": 0.2}),
    ("head", "classifier", {"pooling": "first"}),
]


@pytest.mark.parametrize("kind, id, options", OPTIONS, ids=lambda v: str(v))
def test_block_with_options(kind, id, options):
    check_block(kind, id, **options)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"norm_order": "post"}, marks=pytest.mark.slow),
        {"position": "rotary", "norm": "rms", "feedforward": "gated", "attention": {"name": "multi_head", "num_kv_heads": 1}},
        {"position": "alibi", "attention": ["multi_head", {"name": "window", "window": 3}]},
        {"position": "sinusoidal", "attention": {"default": "multi_head", "1": "bahdanau"}, "head": {"name": "language_model", "tied": False}},
    ],
    ids=["post_norm", "modern", "mixed", "untied"],
)  # fmt: skip
def test_gpt_with_slots(options):
    check_model("gpt", only=["config", "gradients", "save", "padding", "steps", "generate"], **options)


@pytest.mark.slow  # tests/test_matrix.py tries some of it
def test_the_matrix_refuses_with_a_reason_and_never_crashes():
    found = dict(matrix("attention", only=["shapes"]))
    assert {f"{family}.{slot}" for family, slot, _ in found} >= {
        "gpt.attention",
        "transformer.cross_attention",
        "seq2seq.attention",
    }
    refused = {key: outcome for key, outcome in found.items() if outcome != "ok"}
    reasons = ("does not support cross", "sees the past only")
    assert all(any(reason in outcome for reason in reasons) for outcome in refused.values()), refused
    assert {block for _, _, block in refused} == {"window", "ssm/selective"}


def test_everything_loads_in_a_fresh_process():
    subjects = [subject(e.kind, e.id) for e in registry.entries() if e.kind not in ("sampler", "cell", "converter")]
    found = generic.load_in_fresh_process(subjects)
    assert len(found) == len(subjects)
    assert max(found.values()) < 1e-6, found


def test_checks_round_no_product_on_a_gpu_either():
    rounds, seen = tf.config.experimental.tensor_float_32_execution_enabled, []
    report.run_check(report.Check("look", (), "quick", "", lambda subject: seen.append(rounds())), None)
    assert seen == [False] and rounds()  # as TensorFlow begins

    def broken(subject):
        raise report.Broken("as planted")

    assert report.run_check(report.Check("break", (), "quick", "", broken), None).outcome == "FAIL" and rounds()
