"""A tiny ViT, and numbers to give it."""

import numpy as np

import kerastf
from kerastf.testing.subjects import shake

TINY = {"image_size": 8, "patch_size": 4, "dim": 16, "num_layers": 2, "num_heads": 2, "num_classes": 5}


def tiny(**options):
    model = kerastf.create_model("vit", **{**TINY, **options})
    shake(model, 1)
    return model


def some(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")
