"""Attention on JAX with a GPU: of whole sequences by cuDNN, of one query by a program of its own.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, D per head.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas
from jax.experimental.pallas import triton

from kerastf.jax_kernels import LOWEST

KEYS = 256  # keys that a program reads at once at most,
NUMBERS = 2**14  # and numbers of them, which its threads can hold


def attention(query, key, value, mask, causal):
    """Attention by cuDNN, as `kernels.flash` is asked for it; None where it cannot serve."""
    length, keys, width = query.shape[1], key.shape[1], query.shape[-1]
    fits = query.dtype in (jnp.bfloat16, jnp.float16) and width % 8 == 0 and width <= 128
    if not fits or (causal and mask is not None):
        return None
    more, extra = length % 2, keys % 2  # the kernel takes even lengths only
    query = jnp.pad(query, [(0, 0), (0, more), (0, 0), (0, 0)])
    key, value = (jnp.pad(x, [(0, 0), (0, extra), (0, 0), (0, 0)]) for x in (key, value))
    known = {}
    if mask is not None:  # one of keys alone is not taken; a query that is padding must see something
        mask = jnp.broadcast_to(mask, (query.shape[0], 1, length, keys))
        mask = jnp.pad(mask, [(0, 0), (0, 0), (0, more), (0, 0)], constant_values=True)
        known = {"mask": jnp.pad(mask, [(0, 0), (0, 0), (0, 0), (0, extra)])}
    elif extra and not causal:
        known = {"key_value_seq_lengths": jnp.full((query.shape[0],), keys, jnp.int32)}
    mean = jax.nn.dot_product_attention(
        query, key, value, scale=1.0, is_causal=causal, implementation="cudnn", **known
    )  # fmt: skip
    return mean[:, :length]


def attention_of_one(query, key, value, keys, values, last, *, scale=1.0, interpret=False):
    """Attention of one query per row, as `kernels.attention_of_one`, by one program where XLA needs six.

    Args:
        query: `(B, 1, H, D)`.
        key, value: Those of the query's own position, `(B, 1, K, D)`.
        keys, values: Those before it, `(B K, S, D)`, which the new ones are written into.
        last: Integers `(B,)`: the query's position.
        scale: A number that the scores are multiplied by.
        interpret: Whether the program is run step by step, without a GPU.

    Returns:
        What the queries see, `(B, 1, H, D)`, and `keys` and `values`.
    """
    rows, _, heads, width = query.shape
    # If all three were cut out of one row, XLA sees that this is it, and cuts nothing.
    joined = jnp.concatenate([x.reshape(rows, 1, -1) for x in (query, key, value)], axis=2)
    kept = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (keys, values)]
    mean, keys, values = pallas.pallas_call(
        functools.partial(_attend, heads=heads, shared=key.shape[2], scale=scale),
        out_shape=(jax.ShapeDtypeStruct((rows, heads, width), values.dtype), *kept),
        grid=(rows, heads), input_output_aliases={1: 1, 2: 2}, interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=8, num_stages=2),
    )(joined[:, 0], keys, values, last)  # fmt: skip
    return mean[:, None], keys, values


def _attend(joined, keys, values, last, mean, new_keys, new_values, *, heads, shared, scale):
    """The program of one row and head: the sums of a softmax are brought up to date with every few keys.

    It begins with the query's own key, which it does not read back: another program may be about to write it.
    """
    row, head = pallas.program_id(0), pallas.program_id(1)
    width, times = keys.shape[2], heads // shared
    size = min(KEYS, max(16, NUMBERS // width))
    newest, group = jnp.clip(last[row], 0, keys.shape[1] - 1), head // times
    own = row * shared + group  # row of what is kept
    asked, key, value = (
        joined[row, pallas.ds(place * width, width)].astype(jnp.float32)
        for place in (head, heads + group, heads + shared + group)
    )  # (D,)
    asked = asked * scale

    @pallas.when(head % times == 0)
    def _():
        new_keys[own, newest, :] = key.astype(keys.dtype)
        new_values[own, newest, :] = value.astype(values.dtype)

    def look(i, carry):
        top, total, found = carry
        there = i * size + jnp.arange(size) < newest

        def read(x):
            x = x.at[own, pallas.ds(i * size, size), :]
            return triton.load(x, mask=there[:, None], other=0.0).astype(jnp.float32)

        scores = jnp.where(there, jnp.sum(read(keys) * asked, axis=1), LOWEST)  # (size,)
        highest = jnp.maximum(top, jnp.max(scores))
        shares, kept = jnp.exp(scores - highest), jnp.exp(top - highest)
        more = jnp.sum(shares[:, None] * read(values), axis=0)  # (D,)
        return highest, total * kept + jnp.sum(shares), found * kept + more

    start = jnp.sum(key * asked), jnp.float32(1.0), value
    _, total, found = jax.lax.fori_loop(0, pallas.cdiv(newest, size), look, start)
    mean[row, head, :] = (found / total).astype(mean.dtype)
