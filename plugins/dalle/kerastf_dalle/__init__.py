"""DALL-E for kerastf: a discrete VAE, a causal Transformer that draws from captions, and pictures to try it on."""

from kerastf_dalle.dalle import DALLE
from kerastf_dalle.dvae import DVAE
from kerastf_dalle.gumbel import GumbelCodes, gumbel_softmax, temperature_at
from kerastf_dalle.losses import CodePerplexity, PartsCrossEntropy, Reconstruction, kl_to_uniform
from kerastf_dalle.position import Learned2D

__all__ = [
    "DALLE", "DVAE", "CodePerplexity", "GumbelCodes", "Learned2D", "PartsCrossEntropy", "Reconstruction",
    "gumbel_softmax", "kl_to_uniform", "temperature_at",
]  # fmt: skip
