"""What is measured: every case as plain values, so that it can be sent to another process. Imports no framework."""

from fnmatch import fnmatchcase

# A contestant is a program (a module of this folder) with settings of its own.
CONTESTANTS = {
    "kerastf": {"program": "ours", "backend": "tensorflow", "label": "kerastf"},
    "kerastf_jax": {"program": "ours", "backend": "jax", "label": "kerastf on JAX"},
    "kerashub": {"program": "hub", "backend": "tensorflow", "jit": False, "label": "KerasHub"},
    "kerashub_jit": {"program": "hub", "backend": "tensorflow", "jit": True, "label": "KerasHub, jit"},
    "kerashub_jax": {"program": "hub", "backend": "jax", "jit": True, "label": "KerasHub on JAX"},
    "transformers": {"program": "huggingface", "label": "transformers, SDPA"},
    "torch": {"program": "plain_torch", "label": "plain PyTorch"},
    "nanogpt": {"program": "plain_torch", "published": True, "label": "PyTorch as nanoGPT"},
    "timm": {"program": "torch_images", "label": "timm"},
    "tutorial": {"program": "tutorial", "backend": "tensorflow", "jit": False, "label": "tutorial loop"},
    "tutorial_jit": {"program": "tutorial", "backend": "tensorflow", "jit": True, "label": "tutorial loop, jit"},
}
OURS = ("kerastf", "kerastf_jax")
HUB = ("kerashub", "kerashub_jit", "kerashub_jax")
OPTIONAL = ("kerastf_jax", "kerashub_jax")  # take part on a CPU only when they are asked for

NANO = {"num_layers": 3, "num_heads": 3, "dim": 48, "vocab_size": 65, "max_length": 128}
MINI = {"num_layers": 6, "num_heads": 6, "dim": 192, "vocab_size": 65, "max_length": 256}
GPT2 = {"num_layers": 12, "num_heads": 12, "dim": 768, "vocab_size": 50257, "max_length": 1024}
BERT = {"num_layers": 12, "num_heads": 12, "dim": 768, "vocab_size": 30522, "max_length": 512, "masked": 20}
VIT = {"num_layers": 12, "num_heads": 12, "dim": 768, "image_size": 224, "patch_size": 16, "num_classes": 1000}
BASE = {"num_layers": 6, "num_heads": 8, "dim": 512, "mlp_dim": 2048, "vocab_size": 8000, "max_length": 256}
BAHDANAU = {"dim": 256, "units": 256, "vocab_size": 5000, "max_length": 16}


def _case(kind, family, sizes, batch, length, steps, contestants, **more):
    tokens = batch * more.get("new", length)  # of one step or call
    base = {"dropout": 0.1, "dtype": "float32", "gpu": False, "only": None, "tokens": tokens}
    return {
        **base, "kind": kind, "family": family, "sizes": sizes, "batch": batch, "length": length, "steps": steps,
        "contestants": contestants, **more,
    }  # fmt: skip


def _cases():
    gpts, writers = (*OURS, *HUB, "transformers", "torch"), (*OURS, *HUB, "transformers")
    found = {}
    sizes = {"gpt.nano": (NANO, 64, 128, 20), "gpt.mini": (MINI, 16, 256, 8), "gpt2": (GPT2, 2, 256, 2)}
    for name, (model, batch, length, steps) in sizes.items():
        for suffix, dropout in (("", 0.1), (":dropout0", 0.0)):
            case = _case("train", "gpt", model, batch, length, steps, gpts, dropout=dropout)
            found[f"train:{name}{suffix}"] = case
    found["train:bert.base"] = _case("train", "bert", BERT, 2, 128, 2, writers)
    found["train:vit.b16"] = _case("train", "vit", VIT, 2, 197, 2, writers, dropout=0.0)
    for name in ("gpt2", "bert.base", "vit.b16"):  # for processors with units for it
        found[f"train:{name}:bfloat16"] = {**found[f"train:{name}"], "dtype": "mixed_bfloat16"}
    found["train:transformer.base"] = _case("train", "transformer", BASE, 4, 64, 4, gpts)
    recurrent = (*OURS, "tutorial", "tutorial_jit")
    found["train:seq2seq"] = _case("train", "seq2seq", BAHDANAU, 64, 16, 10, recurrent)
    for name, model, steps in (("gpt.mini", MINI, 3), ("gpt2", GPT2, 1)):
        for batch in (1, 8):
            case = _case("generate", "gpt", model, batch, 16, steps, writers, new=128, dropout=0.0)
            found[f"generate:{name}:batch{batch}"] = case
    for name in ("gpt.nano", "gpt2"):
        model, batch, length, _ = sizes[name]
        found[f"startup:{name}"] = _case("startup", "gpt", model, batch, length, 1, gpts)
    found["memory:gpt2"] = _case("memory", "gpt", GPT2, 1, 1024, 2, gpts)
    for length in (1024, 2048, 4096, 8192):
        model = {**GPT2, "max_length": 8192}
        found[f"growth:T{length}"] = _case("memory", "gpt", model, 8192 // length, length, 1, gpts, only=["kerastf"])
    for vocab_size in (8000, 50257, 200000):
        model = {**GPT2, "max_length": 8192, "vocab_size": vocab_size}
        found[f"growth:V{vocab_size}"] = _case("memory", "gpt", model, 8, 1024, 1, gpts, only=["kerastf"])
    big = {**GPT2, "vocab_size": 50304}
    gpu = {"gpu": True, "dtype": "mixed_bfloat16", "dropout": 0.0}
    trainers = ("kerastf_jax", "kerashub_jax", "transformers", "torch", "nanogpt")
    found["gpu:train:gpt2"] = _case("train", "gpt", big, 32, 1024, 20, trainers, **gpu)
    painters = ("kerastf_jax", "kerashub_jax", "timm")
    found["gpu:train:vit.b16"] = _case("train", "vit", VIT, 128, 197, 10, painters, **gpu)
    for batch in (1, 8):
        speakers = ("kerastf_jax", "kerashub_jax", "transformers")
        found[f"gpu:generate:gpt2:batch{batch}"] = _case("generate", "gpt", big, batch, 16, 3, speakers, new=256, **gpu)
    return found


CASES = _cases()


def choose(patterns, gpu=False):
    """The cases whose names fit a pattern, by name; without patterns, all of the CPU or all of the GPU."""
    if not patterns:
        return {name: case for name, case in CASES.items() if case["gpu"] == gpu}
    found = {}
    for pattern in patterns:
        fitting = {n: c for n, c in CASES.items() if fnmatchcase(n, pattern)}
        if not fitting:
            raise ValueError(f"There is no case like `{pattern}`. There are: {', '.join(CASES)}")
        found.update(fitting)
    return found


def contestants_of(case, asked):
    """Who takes part in a case: those asked for that can, or the usual ones."""
    if asked:
        return [c for c in case["contestants"] if c in asked]
    return case["only"] or [c for c in case["contestants"] if case["gpu"] or c not in OPTIONAL]
