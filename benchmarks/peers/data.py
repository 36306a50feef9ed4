"""Random data for a case, the same for every contestant. Shapes: N rows, T time, S source, M masked positions."""

import numpy as np


def arrays(case, steps):
    """By name: arrays with one row per example, enough for so many steps. `labels` is what is to be predicted."""
    rng = np.random.default_rng(0)
    rows, length, sizes = case["batch"] * steps, case["length"], case["sizes"]

    def tokens(*shape):
        return rng.integers(4, sizes["vocab_size"], (rows, *shape)).astype("int32")

    if case["family"] == "gpt":
        drawn = tokens(length + 1)
        return {"tokens": drawn[:, :-1].copy(), "labels": drawn[:, 1:].copy()}  # (N, T) each
    if case["family"] == "bert":
        order = np.argsort(rng.random((rows, length)), axis=1)[:, : sizes["masked"]]
        return {
            "tokens": tokens(length),  # (N, T)
            "segments": np.zeros((rows, length), "int32"),
            "positions": np.sort(order, axis=1).astype("int32"),  # (N, M)
            "labels": tokens(sizes["masked"]),  # (N, M)
        }
    if case["family"] == "vit":
        side = sizes["image_size"]
        images = rng.standard_normal((rows, side, side, 3), dtype="float32")
        return {"images": images, "labels": rng.integers(0, sizes["num_classes"], (rows,)).astype("int32")}
    return {"source": tokens(length), "target": tokens(length), "labels": tokens(length)}  # (N, S), (N, T), (N, T)


def prompts(case):
    """Prompts `(B, T)` for generation."""
    shape = (case["batch"], case["length"])
    return np.random.default_rng(0).integers(4, case["sizes"]["vocab_size"], shape).astype("int32")
