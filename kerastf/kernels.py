"""The backends' own kernels where they do in one pass what `keras.ops` does in many, each with its reason.

Shapes: B batch, T queries, S keys, H heads, K key/value heads, D per head, E per value; N rows, V classes.
"""

import contextvars
import math

import keras
from keras import ops

from kerastf import compat, tracing

_portable = contextvars.ContextVar("portable", default=False)


def portable():
    """Within the block, nothing is used that only this machine's JAX can run.

    Why: JAX refuses to export cuDNN's attention, and programs of Pallas.
    """
    return compat.switched(_portable, True)


def _jax_on_gpu():
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "gpu"


def _by_programs():
    """Whether `jax_kernels` may run programs of its own: on one GPU; XLA cannot spread them over several."""
    return _jax_on_gpu() and keras.distribution.distribution() is None and not _portable.get()


def add_bias(x, bias):
    """`x + bias` for `x` `(.., C)` and a bias `(C,)`.

    Why: see `jax_kernels.rows`; it takes 3 to 5 % off a training step there. TensorFlow adds as fast either way, but
    finds the gradient as `summed_rows` does only if it is told that this is a bias.
    """
    if keras.backend.is_keras_tensor(x):
        return x + bias
    if _as_bias(x):
        import tensorflow as tf

        if not _by_product(x):
            return tf.nn.bias_add(x, bias)

        def added(x, bias):
            return tf.nn.bias_add(x, bias), lambda above: (above, summed_rows(above))

        return compat.custom_gradient(added)(x, bias)
    if not _jax_on_gpu():
        return x + bias
    from kerastf.jax_kernels import rows

    return rows.add_bias(x, bias)


def summed_rows(x):
    """The sum over all axes but the last: `(.., C)` to `(C,)`.

    Why: TensorFlow's kernel for the gradient of a bias takes half the time of its sum on a CPU; oneDNN's product with
    ones takes 0.65 to 0.9 of that.
    """
    if not _as_bias(x):
        return ops.sum(x, axis=list(range(len(x.shape) - 1)))
    import tensorflow as tf

    if _by_product(x):
        rows = tf.reshape(x, (-1, x.shape[-1]))
        number = rows.shape[0] or tf.shape(rows)[0]
        return tf.squeeze(tf.matmul(tf.ones((1, number)), rows), 0)
    return tf.raw_ops.BiasAddGrad(out_backprop=x)


def _by_product(x):
    """Whether oneDNN sums rows of float32: in `fit` on an x86 CPU."""
    return x.dtype == "float32" and tracing.one_dnn() and tracing.trains_on_cpu()


def _as_bias(x):
    """Whether TensorFlow knows the gradient of a bias for such a tensor. In bfloat16 it rounds after each row."""
    fits = keras.backend.backend() == "tensorflow" and len(x.shape) > 1
    return fits and keras.backend.standardize_dtype(x.dtype) in ("float16", "float32")


MANY = 2**20  # numbers from which on a program of its own is worth its start


def biased_gelu(x, bias, cube):
    """GELU of `x + bias`, in half precision on JAX with a GPU; None elsewhere.

    Why: XLA's programs for GELU and its gradient take a third longer, and that of the bias reads all numbers again; 2 %
    of a step of GPT-2.

    Args:
        x: `(.., C)`.
        bias: `(C,)`.
        cube: The factor of the cube in the tanh form; None for the exact one.
    """
    if not _by_programs() or keras.backend.is_keras_tensor(x) or not is_half(x) or math.prod(x.shape) < MANY:
        return None
    from kerastf.jax_kernels import rows

    return ops.reshape(rows.gelu(ops.reshape(x, (-1, x.shape[-1])), bias, cube), x.shape)


def tied(tensors, other):
    """The tensors, on TensorFlow to be had only when `other` is there, on JAX written down.

    Why: what a gradient computes again from tied tensors is not merged with what the forward pass computed. XLA would
    rather compute small tensors again, and with them the large ones that they come from.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.optimization_barrier(list(tensors))
    if keras.backend.backend() != "tensorflow":
        return list(tensors)
    import tensorflow as tf

    with tf.control_dependencies([other]):
        return [tf.identity(t) for t in tensors]


def fold(function, initial, rows, shapes):
    """`ops.scan` with outputs of any shape: `function(total, row) -> (total, outputs)`. TensorFlow and JAX.

    Why: Keras's own wants outputs shaped like the carried tensors. Its `map` on TensorFlow goes through ten rows at the
    same time, each with memory of its own.

    Args:
        function: Takes a tuple of carried tensors, and a tuple of one row each; returns two such tuples.
        initial: What is carried at first.
        rows: Tensors, cut along their first axis.
        shapes: Shape and dtype of each output.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.lax.scan(function, tuple(initial), tuple(rows))
    import tensorflow as tf

    count = ops.shape(rows[0])[0]

    def advance(i, total, arrays):
        total, outputs = function(total, tuple(row[i] for row in rows))
        return i + 1, total, tuple(array.write(i, x) for array, x in zip(arrays, outputs, strict=True))

    arrays = tuple(tf.TensorArray(dtype, count, element_shape=shape) for shape, dtype in shapes)
    start = (tf.constant(0), tuple(initial), arrays)
    _, total, arrays = tf.while_loop(lambda i, *_: i < count, advance, start, parallel_iterations=1)
    return total, tuple(array.stack() for array in arrays)


def flash(query, key, value, mask, bias, causal, rate):
    """Attention by the backend's own fused kernel, on JAX with a GPU and on PyTorch; None where it cannot serve.

    Why: Keras's function has no dropout on PyTorch, and falls back to a slow form without a word on JAX.

    Args:
        query: `(B, T, H, D)`, scaled.
        key, value: `(B, S, K, D)`, `(B, S, K, E)`.
        mask: Boolean `(B or 1, 1, T or 1, S)`, or None.
        bias: `(H, T, S)` or `(B, H, T, S)`, or None.
        causal: Whether query `t` sees keys `<= t` only.
        rate: Which share of the weights is dropped.
    """
    if keras.backend.backend() == "jax":
        if rate or bias is not None or not _jax_on_gpu() or _portable.get():
            return None
        from kerastf.jax_kernels import attention

        return attention.attention(query, key, value, mask, causal)
    import torch

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    if mask is not None or bias is not None:
        joined = torch.zeros((), dtype=query.dtype, device=query.device)
        joined = joined if bias is None else (bias[None] if bias.ndim == 3 else bias).to(query.dtype)
        if causal:
            seen = torch.ones((query.shape[2], key.shape[2]), dtype=torch.bool, device=query.device).tril()
            mask = seen if mask is None else mask & seen
        lowest = torch.finfo(joined.dtype).min  # minus infinity would make a row that sees nothing undefined
        mask = joined if mask is None else torch.where(mask, joined, lowest)
        causal = False
    mean = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=rate, is_causal=causal, scale=1.0,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return mean.transpose(1, 2)


def serves_one_query(query, value):
    """Whether `attention_of_one` can be asked: on JAX with a GPU, for heads whose width is a power of 2."""
    width = query.shape[3]
    fits = query.shape[1] == 1 and value.shape[3] == width and width >= 16 and not width & (width - 1)
    return fits and _by_programs()


def attention_of_one(query, key, value, state, index, scale):
    """Attention of one query per row at position `index`, a scalar or one per row, to those before it and its own.

    Why: XLA's six small programs for each layer took a quarter of the time of a token of GPT-2.

    Args:
        query: `(B, 1, H, D)`.
        key, value: Of the same position, `(B, 1, K, D)`.
        state: Keys and values so far, as `Attention.init_state` gives them.
        index: The position.
        scale: A number that the scores are multiplied by.

    Returns:
        `(B, 1, H, D)` and the next state.
    """
    from kerastf.jax_kernels import attention

    last = ops.broadcast_to(ops.cast(index, "int32"), (query.shape[0],))
    mean, keys, values = attention.attention_of_one(query, key, value, state["key"], state["value"], last, scale=scale)
    return mean, {"key": keys, "value": values}


WIDEST = 2**15  # numbers of a row that the threads of one program can hold


def normalised(x, gain, shift, *, epsilon, dtype, beside=False):
    """Layer normalisation as `functional.normalise` gives it, on JAX with a GPU; None elsewhere.

    Why: XLA needs two programs for it and three for its gradient, each of which reads the numbers again; 3 % of a step
    of GPT-2.
    """
    if not _by_programs() or keras.backend.is_keras_tensor(x) or 0 in x.shape or x.shape[-1] > WIDEST:
        return None
    from kerastf.jax_kernels import rows

    shift = ops.zeros_like(gain) if shift is None else shift
    flat = ops.reshape(x, (-1, x.shape[-1]))
    found = rows.normalised(flat, gain, shift, epsilon, dtype, beside)
    return tuple(ops.reshape(y, x.shape) for y in found) if beside else ops.reshape(found, x.shape)


def widened(x):
    """Half precision as float32 where XLA makes one program of what follows; anything else as it is.

    Why: half precision rounds after each operation; of GELU's slope that is seven times the error of rounding once, and
    takes no less time on a GPU. Without XLA, each tensor on the way would be twice as large.
    """
    one_program = keras.backend.backend() == "jax" or compat.compiling()
    return ops.cast(x, "float32") if one_program and is_half(x) else x


def is_half(x):
    """Whether a tensor is of half precision."""
    return keras.backend.standardize_dtype(x.dtype) in ("float16", "bfloat16")


def idle_classes(classes):
    """How many classes to add that count for nothing, before `cross_entropies` are asked for.

    Why: a GPU reads rows of logits faster that begin at round addresses.
    """
    return -classes % 128 if _jax_on_gpu() else 0


GROUPS = 16  # of columns from which on it pays to find the highest of each first


def cross_entropies(logits, labels, classes, *, training=True):
    """Of logits `(N, V)` and integer labels: cross-entropies `(N,)`, slopes `(N, V)`, likeliest classes `(N,)`.

    Why: one kernel of TensorFlow finds the first two; the gradient that it would find later needs the logits until
    then. On a CPU it computes one exponential after the other, which takes several times as long as softmax. Keras's
    argmax looks for negative zeros first, five passes over the logits. On JAX with a GPU XLA needs three passes over
    them.

    Args:
        logits: Float tensor.
        labels: Integers in `[0, classes)`.
        classes: How many of the V columns count; all but the idle ones.
        training: Whether the slopes are of use.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        logits = tf.cast(logits, "float32")
        if training and tracing.trains_on_cpu():
            return _in_place(logits, labels)
        chosen = tf.argmax(logits, axis=-1, output_type="int32")
        (last,) = tied((logits,), chosen)  # nobody reads the logits afterwards, so the slopes take their place
        losses, slopes = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=last, labels=labels)
        return losses, slopes, chosen
    if training and _by_programs():
        from kerastf.jax_kernels import entropy

        return entropy.cross_entropies(logits, labels, classes)
    logits = logits[:, :classes]
    logs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    true = ops.arange(logits.shape[1], dtype="int32")[None] == labels[:, None]
    losses = -ops.sum(ops.where(true, logs, 0.0), axis=-1)
    return losses, ops.exp(logs) - ops.cast(true, logs.dtype), ops.cast(ops.argmax(logits, axis=-1), "int32")


def _in_place(logits, labels):
    """As `cross_entropies`; the slopes take the place of the logits."""
    import tensorflow as tf

    count, classes = tf.unstack(tf.shape(logits))
    rows, chosen = tf.range(count), _highest(logits)

    def at(x, columns):
        return tf.gather_nd(x, tf.stack([rows, columns], axis=-1))  # (N,)

    below = at(logits, labels) - at(logits, chosen)
    (last,) = tied((logits,), below)  # nobody reads the logits any more
    shares = tf.nn.softmax(last)
    losses = -tf.math.log(at(shares, chosen)) - below  # the largest share is never lost to rounding
    (shares,) = tied((shares,), losses)
    # A scatter would copy them.
    flat = tf.reshape(shares, (-1, 1))  # (N V, 1)
    slopes = tf.raw_ops.InplaceSub(x=flat, i=rows * classes + labels, v=tf.ones_like(losses)[:, None])
    return losses, tf.ensure_shape(tf.reshape(slopes, (count, classes)), logits.shape), chosen


def _highest(logits):
    """The column of the highest number of each row `(N, V)`, the first of several.

    Why: TensorFlow looks for a place one number after the other, for the highest itself at many at a time. So it first
    finds the highest of each of some groups of columns, and looks for the place in one group alone.
    """
    import tensorflow as tf

    classes = logits.shape[1] or 1
    groups = max(n for n in range(1, math.isqrt(classes) + 1) if classes % n == 0)
    if groups < GROUPS:
        return tf.argmax(logits, axis=-1, output_type="int32")
    apart = tf.reshape(logits, (-1, groups, classes // groups))
    group = tf.argmax(tf.reduce_max(apart, axis=-1), axis=-1, output_type="int32")  # (N,)
    within = tf.argmax(tf.gather(apart, group, batch_dims=1), axis=-1, output_type="int32")
    return group * (classes // groups) + within
