"""Bias, GELU and layer norm of rows on JAX with a GPU, each with its gradient.

Shapes: N rows, C channels.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from kerastf.jax_kernels import LOG2_E, READS

PROGRAMS = 1024  # that share the rows of a gradient, each with its own sums
WRITTEN, GRADED = 1024, 512  # channels that a program of GELU looks at, and one of its gradient


@jax.custom_vjp
def add_bias(x, bias):
    """`x + bias`, where the gradient of `x` is written down once, and that of the bias is a product with ones.

    XLA would compute the gradient of `x` once for each of the three that read it, and sum columns of bfloat16 in
    bfloat16.
    """
    return x + bias


def _add_bias_backward(_, above):
    above = jax.lax.optimization_barrier(above)
    rows = above.reshape(-1, above.shape[-1])
    ones = jnp.ones((8, rows.shape[0]), above.dtype)  # of one row XLA would make a sum again
    return above, jnp.matmul(ones, rows, preferred_element_type=jnp.float32)[0].astype(above.dtype)


add_bias.defvjp(lambda x, bias: (x + bias, None), _add_bias_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def gelu(x, bias, cube, interpret=False):
    """GELU of `x + bias`, by one program; the gradients of both by another, that reads each number once.

    Args:
        x: `(N, C)`.
        bias: `(C,)`.
        cube: The factor of the cube in the tanh form; None for the exact one.
        interpret: Whether the programs are run step by step, without a GPU.
    """
    return _gelu(x, bias, cube, interpret)[0]


def _gelu(x, bias, cube, interpret):
    (count, channels), lanes = x.shape, min(WRITTEN, pallas.next_power_of_2(x.shape[1]))
    y = pallas.pallas_call(
        functools.partial(_gelu_of_row, cube=cube, lanes=lanes), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(count, pallas.cdiv(channels, lanes)), interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=2, num_stages=1),
    )(x, bias)  # fmt: skip
    return y, (x, bias)


def _gelu_backward(cube, interpret, kept, above):
    x, bias = kept
    (count, channels), lanes = x.shape, min(GRADED, pallas.next_power_of_2(x.shape[1]))
    programs = min(PROGRAMS, count)
    of_x, sums = pallas.pallas_call(
        functools.partial(_slopes_of_gelu, cube=cube, lanes=lanes, share=pallas.cdiv(count, programs)),
        out_shape=(
            jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct((programs, channels), jnp.float32)
        ),
        grid=(programs, pallas.cdiv(channels, lanes)), input_output_aliases={2: 0}, interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=4, num_stages=1),
    )(x, bias, above)  # fmt: skip
    return of_x, sums.sum(0).astype(bias.dtype)


gelu.defvjp(_gelu, _gelu_backward)


def _gelu_and_slope(x, cube):
    """Of float32. The exact form takes erf from a sum that is right to 2e-7 (Abramowitz and Stegun, 7.1.26)."""
    if cube is not None:
        square, twice = x * x, 2 * math.sqrt(2 / math.pi)
        share = 1 / (1 + jnp.exp2(x * (twice + twice * cube * square) * -LOG2_E))
        return x * share, share * (1 + (1 - share) * x * (twice + 3 * twice * cube * square))
    bell = jnp.exp2(x * x * (-0.5 * LOG2_E))
    t, terms = 1 / (1 + 0.3275911 * math.sqrt(0.5) * jnp.abs(x)), 0.0
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        terms = (terms + 0.5 * factor) * t
    share = jnp.where(x < 0, bell * terms, 1 - bell * terms)
    return x * share, share + x * bell * (1 / math.sqrt(2 * math.pi))


def _gelu_of_row(x, bias, y, *, cube, lanes):
    """The program of one row and some channels."""
    row = pallas.program_id(0)
    read, write, _ = _row_of(x.shape[1], lanes, pallas.program_id(1) * lanes)
    write(y, row, value=_gelu_and_slope(read(x, row) + read(bias), cube)[0])


def _slopes_of_gelu(x, bias, above, of_x, sums, *, cube, lanes, share):
    """The program of a share of the rows and some channels."""
    program, (count, channels) = pallas.program_id(0), x.shape
    read, write, _ = _row_of(channels, lanes, pallas.program_id(1) * lanes)
    biases = read(bias)

    def add(first, rows, total):
        parts = [(row, read(x, row), read(above, row)) for row in (first + k for k in range(rows))]
        for row, h, slope in parts:  # all are on their way before one is used
            slope *= _gelu_and_slope(h + biases, cube)[1]
            write(of_x, row, value=slope)
            total += slope
        return total

    first = program * share
    rows = jnp.clip(count - first, 0, share)
    total = jax.lax.fori_loop(0, rows // READS, lambda i, t: add(first + i * READS, READS, t), jnp.zeros((lanes,)))
    total = jax.lax.fori_loop(rows // READS * READS, rows, lambda i, t: add(first + i, 1, t), total)
    write(sums, program, value=total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def normalised(x, gain, shift, epsilon, dtype, beside=False, interpret=False):
    """Layer normalisation of rows, by one program that reads each once; its gradient is another.

    Args:
        x: `(N, C)`.
        gain, shift: Float32 `(C,)`.
        epsilon: Keeps the division finite.
        dtype: Of the result.
        beside: Whether the result is a pair, `x` and what is made of it; the gradient's program then adds both.
        interpret: Whether the programs are run step by step, without a GPU.
    """
    return _normalise(x, gain, shift, epsilon, dtype, beside, interpret)[0]


def _normalise(x, gain, shift, epsilon, dtype, beside, interpret):
    count = x.shape[0]
    y, mean, rate = pallas.pallas_call(
        functools.partial(_normal_row, epsilon=epsilon),
        out_shape=(jax.ShapeDtypeStruct(x.shape, dtype), *2 * [jax.ShapeDtypeStruct((count,), jnp.float32)]),
        grid=(count,), interpret=interpret, compiler_params=_for_rows(x),
    )(x, gain, shift)  # fmt: skip
    return ((x, y) if beside else y), (x, gain, mean, rate)


def _normalise_backward(epsilon, dtype, beside, interpret, kept, above):
    x, gain, mean, rate = kept
    passing, above = ((above[0],), above[1]) if beside else ((), above)
    programs = min(PROGRAMS, x.shape[0])
    sums = jax.ShapeDtypeStruct((programs, x.shape[1]), jnp.float32)
    of_x, of_gain, of_shift = pallas.pallas_call(
        functools.partial(_slopes_of_rows, share=pallas.cdiv(x.shape[0], programs)),
        out_shape=(jax.ShapeDtypeStruct(x.shape, x.dtype), sums, sums),
        grid=(programs,), interpret=interpret, compiler_params=_for_rows(x),
    )(x, above, gain, mean, rate, *passing)  # fmt: skip
    return of_x, of_gain.sum(0), of_shift.sum(0)


normalised.defvjp(_normalise, _normalise_backward)


def _for_rows(x):
    """Threads for one row: 32 numbers each."""
    return triton.CompilerParams(num_warps=max(1, pallas.next_power_of_2(x.shape[1]) // 1024), num_stages=1)


def _row_of(channels, lanes=None, first=0):
    """How a program reads and writes a row of so many channels, in float32, and which of its lanes are channels.

    Args:
        channels: How many there are in all.
        lanes: How many the program looks at, a power of 2; all by default.
        first: Where these begin, a multiple of `lanes`.
    """
    lanes = lanes or pallas.next_power_of_2(channels)
    there = first + jnp.arange(lanes) < channels
    bounds = {"mask": there} if channels % lanes else {}
    other = {"other": 0.0} if bounds else {}

    def read(rows, *at):
        return triton.load(rows.at[(*at, pallas.ds(first, lanes))], **bounds, **other).astype(jnp.float32)

    def write(rows, *at, value):
        triton.store(rows.at[(*at, pallas.ds(first, lanes))], value.astype(rows.dtype), **bounds)

    return read, write, there


def _normal_row(x, gain, shift, y, mean, rate, *, epsilon):
    """The program of one row."""
    row, channels = pallas.program_id(0), x.shape[1]
    read, write, there = _row_of(channels)
    h = read(x, row)
    middle = jnp.sum(h) / channels
    centred = jnp.where(there, h - middle, 0.0)
    factor = jax.lax.rsqrt(jnp.sum(centred * centred) / channels + epsilon)
    write(y, row, value=centred * factor * read(gain) + read(shift))
    mean[row], rate[row] = middle, factor


def _slopes_of_rows(x, above, gain, mean, rate, *others, share):
    """The program of a share of the rows. The others are what passes the norm by, if anything, and what is written."""
    *passing, of_x, of_gain, of_shift = others
    program, (count, channels) = pallas.program_id(0), x.shape
    read, write, there = _row_of(channels)
    gains = read(gain)

    def add(row, sums):
        slope = read(above, row)
        normal = jnp.where(there, (read(x, row) - mean[row]) * rate[row], 0.0)
        inner = slope * gains
        along = jnp.sum(inner) / channels, jnp.sum(inner * normal) / channels
        slope_of_x = rate[row] * (inner - along[0] - normal * along[1])
        write(of_x, row, value=sum((read(other, row) for other in passing), start=slope_of_x))
        return sums[0] + slope * normal, sums[1] + slope

    start = jnp.zeros_like(gains), jnp.zeros_like(gains)
    last = jnp.minimum((program + 1) * share, count)
    sums = jax.lax.fori_loop(program * share, last, add, start)
    write(of_gain, program, value=sums[0])
    write(of_shift, program, value=sums[1])
