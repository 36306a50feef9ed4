"""Cross-entropies of rows of logits on JAX with a GPU.

Shapes: N rows, V classes.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from kerastf.jax_kernels import LOG2_E, LOWEST, READS

LANES = 2048  # classes that a program reads at once, `READS` times before it brings its sums up to date


def cross_entropies(logits, labels, classes, *, interpret=False):
    """As `kernels.cross_entropies`, by one program for each row.

    Args:
        logits: `(N, V)`. The slopes take their place.
        labels: Integers `(N,)` in `[0, classes)`.
        classes: How many of the V columns count; the slopes of the others are 0.
        interpret: Whether the program is run step by step, without a GPU.
    """
    count, width = logits.shape
    lanes = min(LANES, pallas.next_power_of_2(width))
    return pallas.pallas_call(
        functools.partial(_cross_entropy, classes=classes, width=width, lanes=lanes),
        out_shape=(
            jax.ShapeDtypeStruct((count,), jnp.float32), jax.ShapeDtypeStruct(logits.shape, logits.dtype),
            jax.ShapeDtypeStruct((count,), jnp.int32),
        ),
        grid=(count,), input_output_aliases={0: 1}, interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=16, num_stages=1),
    )(logits, labels)  # fmt: skip


def _cross_entropy(logits, labels, losses, slopes, chosen, *, classes, width, lanes):
    """The program of one row. Each lane keeps the highest logit that it saw, where, and its sum of exponentials.

    Whole groups of reads go without a mask: one that ends at an odd number of classes would have each number read by
    itself.
    """
    row = pallas.program_id(0)
    label = labels[row]
    of_label = logits[row, label].astype(jnp.float32)
    own = jnp.arange(lanes)
    groups = classes // (lanes * READS)  # whole ones

    def over(group, rest, carry):
        """What is carried through the groups, and then through what is left, one read at a time."""
        carry = jax.lax.fori_loop(0, groups, group, carry)
        return jax.lax.fori_loop(groups * READS, pallas.cdiv(width, lanes), rest, carry)

    def power(x, base):
        return jnp.exp2(x * LOG2_E - base * LOG2_E)  # one operation before it, where a difference first needs two

    def read(i, whole=True):
        at = i * lanes + own
        bounds = {} if whole else {"mask": at < width, "other": LOWEST}
        x = triton.load(logits.at[row, pallas.ds(i * lanes, lanes)], **bounds).astype(jnp.float32)
        return at, x if whole else jnp.where(at < classes, x, LOWEST)

    def look(parts, carry):
        highest, total, where = carry
        old = highest
        for at, x in parts:
            where = jnp.where(x > highest, at, where)
            highest = jnp.maximum(highest, x)
        total = total * power(old, highest)
        return highest, sum((power(x, highest) for _, x in parts), start=total), where

    highest, total, where = over(
        lambda i, carry: look([read(i * READS + k) for k in range(READS)], carry),
        lambda i, carry: look([read(i, whole=False)], carry),
        (jnp.full((lanes,), LOWEST), jnp.zeros((lanes,)), jnp.zeros((lanes,), jnp.int32)),
    )
    top = jnp.max(highest)
    total = jnp.where(highest > LOWEST, total * jnp.exp(highest - top), 0.0)  # nothing from lanes that saw no class
    logarithm = top + jnp.log(jnp.sum(total))
    losses[row] = logarithm - of_label
    chosen[row] = jnp.min(jnp.where(highest == top, where, classes))  # the first, where several are as high

    def write(i, at, x, **bounds):
        slope = power(x, logarithm) - (at == label)  # 0 where nothing counts
        triton.store(slopes.at[row, pallas.ds(i * lanes, lanes)], slope.astype(slopes.dtype), **bounds)

    def write_group(i, _):
        parts = [(i * READS + k, *read(i * READS + k)) for k in range(READS)]  # all are on their way before one is used
        for part in parts:
            write(*part)

    def write_rest(i, _):
        at, x = read(i, whole=False)
        write(i, at, x, mask=at < width)

    over(write_group, write_rest, None)
