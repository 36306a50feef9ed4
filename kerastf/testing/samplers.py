"""The contract of samplers. Shapes: B batch, V vocabulary."""

import numpy as np
from keras import ops

from kerastf.config import block_from
from kerastf.testing.report import Broken, check
from kerastf.testing.subjects import Subject, numpy

SAMPLER = ("sampler",)


def _logits():
    return ops.convert_to_tensor(np.random.default_rng(2).normal(size=(64, 10)).astype("float32"))


def _draw(subject: Subject, seed):
    sampler = block_from("sampler", {"name": subject.id, **subject.options}, {"seed": seed})
    return numpy(sampler.get_next_token(sampler.compute_probabilities(_logits())))


@check("config", SAMPLER, "get_config makes the same sampler again")
def config_round_trip(subject):
    sampler = subject.new()
    again = subject.cls(**sampler.get_config())
    if again.get_config() != sampler.get_config():
        raise Broken(f"{sampler.get_config()} became {again.get_config()}")


@check("distribution", SAMPLER, "compute_probabilities gives distributions")
def distribution(subject):
    chances = numpy(subject.new().compute_probabilities(_logits()))
    if chances.shape != (64, 10) or np.min(chances) < 0 or np.max(np.abs(chances.sum(-1) - 1)) > 1e-5:
        raise Broken("compute_probabilities does not give a distribution per row")


@check("tokens", SAMPLER, "get_next_token gives one possible token per row")
def tokens(subject):
    chosen = _draw(subject, seed=3)
    if chosen.shape != (64,) or chosen.min() < 0 or chosen.max() >= 10:
        raise Broken(f"get_next_token gives shape {chosen.shape} and values {chosen.min()} to {chosen.max()}")
    certain = ops.one_hot(ops.arange(10), 10)
    if not np.array_equal(numpy(subject.new().get_next_token(certain)), np.arange(10)):
        raise Broken("a token of probability 1 was not chosen")


@check("seed", SAMPLER, "the same seed chooses the same tokens")
def seed(subject):
    if not np.array_equal(_draw(subject, seed=3), _draw(subject, seed=3)):
        raise Broken("two samplers of the same seed chose differently")
