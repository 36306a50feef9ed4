"""Models whose costs are counted, by their sizes."""

SIZES = {
    "gpt": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4},
    "bert": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4},
    "vit": {"image_size": 64, "patch_size": 8, "dim": 128, "num_layers": 2, "num_heads": 4, "num_classes": 10},
    "transformer": {"vocab_size": 1000, "max_length": 64, "dim": 128, "num_layers": 2, "num_heads": 4, "start_id": 1, "end_id": 2},
    "conv_s2s": {"vocab_size": 1000, "max_length": 64, "dim": 128, "channels": 128, "num_layers": 2, "start_id": 1, "end_id": 2},
    "conv_lm": {"vocab_size": 1000, "max_length": 64, "dim": 128, "channels": 128, "num_layers": 2},
    "word2vec": {"vocab_size": 1000, "dim": 64, "counts": [1] * 1000},
}  # fmt: skip
