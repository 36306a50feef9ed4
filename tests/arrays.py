"""Arrays of normal numbers, the same for the same seed."""

import numpy as np


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]
