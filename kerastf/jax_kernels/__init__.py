"""What `kernels` does on JAX with a GPU, and imports only there: programs of Pallas, and cuDNN."""

import math

READS = 4  # rows or groups of numbers that are on their way before one is used
LOG2_E = math.log2(math.e)
LOWEST = -1e30  # minus infinity would make sums of nothing undefined
