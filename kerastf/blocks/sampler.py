"""Samplers: how the next token is chosen from the scores. The choice is keras-nlp's; the loop around it is ours.

A sampler has `compute_probabilities(logits)`, `get_next_token(probabilities)` and `variables`, its random state.
Shapes: B batch, V vocabulary.
"""

import math

from keras_nlp import samplers

from kerastf.registry import register


def _check(temperature, seed):
    if not 0 < temperature < math.inf:
        raise ValueError(f"`temperature` must be a positive number. Received: temperature={temperature}")
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"`seed` must be at least 0 and below 2**32. Received: seed={seed}")


@register("sampler", "greedy")
class Greedy(samplers.GreedySampler):
    """The most likely token: `argmax_v p_v`.

    Examples:
        >>> import keras
        >>> int(Greedy().get_next_token(keras.ops.array([[0.1, 0.7, 0.2]]))[0])
        1
    """

    def __init__(self):
        super().__init__()

    def get_config(self):
        return {}


@register("sampler", "random")
class Random(samplers.RandomSampler):
    """A token drawn from `softmax(logits / temperature)`.

    Args:
        temperature: Below 1 the likely becomes likelier; above 1 the choice is freer.
        seed: The same seed draws the same tokens; None draws others each time.

    Examples:
        >>> import keras
        >>> int(Random(seed=1).get_next_token(keras.ops.array([[0.0, 1.0, 0.0]]))[0])
        1
    """

    def __init__(self, *, temperature: float = 1.0, seed: int | None = None):
        _check(temperature, seed)
        super().__init__(temperature=temperature, seed=seed)


@register("sampler", "top_k")
class TopK(samplers.TopKSampler):
    """A token drawn from the `k` most likely.

    Args:
        k: How many tokens are in the draw.
        temperature: Below 1 the likely becomes likelier; above 1 the choice is freer.
        seed: The same seed draws the same tokens; None draws others each time.

    Examples:
        >>> import keras
        >>> int(TopK(k=1).get_next_token(keras.ops.array([[0.1, 0.7, 0.2]]))[0])
        1
    """

    def __init__(self, k: int = 5, *, temperature: float = 1.0, seed: int | None = None):
        _check(temperature, seed)
        if k < 1:
            raise ValueError(f"`k` must be at least 1. Received: k={k}")
        super().__init__(k=k, temperature=temperature, seed=seed)

    def get_next_token(self, probabilities):
        if self.k < probabilities.shape[-1]:
            return super().get_next_token(probabilities)
        return samplers.RandomSampler.get_next_token(self, probabilities)  # there are no more


@register("sampler", "top_p")
class TopP(samplers.TopPSampler):
    """A token drawn from the smallest set of likely tokens whose probabilities add up to `p`.

    Args:
        p: The probability that the set holds, in `(0, 1]`.
        k: At most this many tokens are in the draw; None for no such bound.
        temperature: Below 1 the likely becomes likelier; above 1 the choice is freer.
        seed: The same seed draws the same tokens; None draws others each time.

    Examples:
        >>> import keras
        >>> int(TopP(p=0.5).get_next_token(keras.ops.array([[0.1, 0.7, 0.2]]))[0])
        1

    References:
        - [Holtzman et al., 2019](https://arxiv.org/abs/1904.09751)
    """

    def __init__(
        self, p: float = 0.9, *, k: int | None = None, temperature: float = 1.0, seed: int | None = None
    ):  # fmt: skip
        _check(temperature, seed)
        if not 0 < p <= 1:
            raise ValueError(f"`p` must be in (0, 1]. Received: p={p}")
        super().__init__(p=p, k=k, temperature=temperature, seed=seed)
