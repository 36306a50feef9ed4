"""Tiny recurrent networks: their cells and sizes."""

CELLS = ("simple", "lstm", "gru")
TINY = {"vocab_size": 11, "max_length": 16, "dim": 6, "units": 5, "num_layers": 2}
