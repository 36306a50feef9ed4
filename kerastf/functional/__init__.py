"""Stateless tensor functions on `keras.ops`, shared by the blocks; plugins may use them too."""

from kerastf.functional.activations import activation_of, add_bias, gelu, gelu_tanh, plain_activations
from kerastf.functional.attend import (
    NEGATIVE,
    additive_scores,
    attention,
    dot_scores,
    drop,
    heads_apart,
    heads_as_rows,
    join_masks,
    mean_by,
    positions,
    rollout,
    visible,
    weigh,
)
from kerastf.functional.images import pair, patch_grid, patches, resize_grid
from kerastf.functional.losses import logistic_losses, logistic_slope
from kerastf.functional.norms import normalise
from kerastf.functional.sequences import (
    last_kept,
    mean_kept,
    near,
    pick,
    place,
    rotate,
    sinusoids,
    slopes,
    write,
)

__all__ = [
    "NEGATIVE", "activation_of", "add_bias", "additive_scores", "attention", "dot_scores", "drop", "gelu", "gelu_tanh",
    "heads_apart", "heads_as_rows", "join_masks", "last_kept", "logistic_losses", "logistic_slope", "mean_by",
    "mean_kept", "near", "normalise", "pair", "patch_grid", "patches", "pick", "place", "plain_activations",
    "positions", "resize_grid", "rollout", "rotate", "sinusoids", "slopes", "visible", "weigh", "write",
]  # fmt: skip
