"""Selective state spaces.

Shapes: B batch, T time, C channels, I inner channels, N state per channel, R rank of delta, W kernel size, M chunks,
L chunk length.
"""

import math

import keras
from keras import ops

from kerastf import register


@register("attention", "selective", supports=("causal", "causal_only", "decode"))
class Selective(keras.layers.Layer):
    """A selective state space in the place of attention: a recurrence whose forgetting depends on the input.

    `x, z = u W_in`, `x = silu(conv(x))` with a causal convolution of each channel by itself,
    `delta_t = softplus(x_t W_R W_delta + b)`, `B_t = x_t W_B`, `C_t = x_t W_C`, then for each inner channel a state of
    N numbers: `h_t = exp(delta_t A) h_{t-1} + delta_t B_t x_t` with `A < 0`, and
    `y_t = rms(silu(z_t) (C_t h_t + D x_t)) W_out`.

    Whole sequences run in chunks: within a chunk, pairs of steps are joined into one, pairs of pairs, and so on;
    between chunks the state is carried. Decays are only ever multiplied, never divided by, so all stays finite.

    The norm before the output projection is that of Mamba-2. Without it the output grows with the fifth power of the
    input.

    A position that the mask leaves out adds nothing to the state and lets nothing fade; the convolution reads zero in
    its place, as before the start. So padding may stand on either side.

    Args:
        state_dim: How many numbers N of state a channel has.
        expansion: How many inner channels there are for each of the C.
        kernel_size: How many positions W the convolution sees, its own included.
        rank: Rank R of the projection to delta; a sixteenth of C by default.
        chunk: Length L of the pieces, a power of two.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        initializer_std: Deviation of the kernels at the start.
        output_std: Deviation of the output kernel at the start; `initializer_std` by default.
        epsilon: Of the norm.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        query: Float tensor of shape `(B, T, C)`.
        context: Must be None: a recurrence reads its own sequence.
        mask: Boolean, True = keep: `(B, T)`, or `(B, T, T)` in full, which costs one sweep for each position.
        causal: Must be True: position `t` sees positions `<= t` only.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = Selective(state_dim=4)
        >>> tuple(block(keras.ops.ones((2, 5, 32))).shape)
        (2, 5, 32)

    References:
        - [Gu & Dao, 2023](https://arxiv.org/abs/2312.00752)
        - [Gu et al., 2022](https://arxiv.org/abs/2206.11893) for the first values of A
        - [Dao & Gu, 2024](https://arxiv.org/abs/2405.21060), section 7, for the norm
    """

    def __init__(
        self, state_dim: int = 16, *, expansion: int = 2, kernel_size: int = 4, rank: int | None = None,
        chunk: int = 16, dropout: float = 0.0, initializer_std: float = 0.02, output_std: float | None = None,
        epsilon: float = 1e-5, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        for name, value in (
            ("state_dim", state_dim), ("expansion", expansion), ("kernel_size", kernel_size), ("rank", rank),
        ):  # fmt: skip
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        if chunk < 1 or chunk & (chunk - 1):
            raise ValueError(f"`chunk` must be a power of two. Received: chunk={chunk}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.state_dim = state_dim
        self.expansion = expansion
        self.kernel_size = kernel_size
        self.rank = rank
        self.chunk = chunk
        self.dropout = dropout
        self.initializer_std = initializer_std
        self.output_std = output_std
        self.epsilon = epsilon

    def build(self, query_shape, context_shape=None):
        if context_shape is not None:
            raise ValueError("A state space reads its own sequence; it takes no `context`. Use 'multi_head' for that.")
        dim = query_shape[-1]
        inner, rank = self.expansion * dim, self.rank or math.ceil(dim / 16)
        std = self.initializer_std if self.output_std is None else self.output_std
        self.inner = inner
        self.cuts = (rank, rank + self.state_dim)
        self.input_projection = self._dense(2 * inner, dim, self.initializer_std, "input")
        self.selection = self._dense(rank + 2 * self.state_dim, inner, self.initializer_std, "selection")
        self.output_projection = self._dense(dim, inner, std, "output")
        self.kernel = self._weight("kernel", (self.kernel_size, inner), _within(self.kernel_size**-0.5), autocast=True)
        self.kernel_bias = self._weight("kernel_bias", (inner,), "zeros", autocast=True)
        self.delta_kernel = self._weight("delta_kernel", (rank, inner), _within(rank**-0.5))
        self.delta_bias = self._weight("delta_bias", (inner,), _first_deltas)
        self.log_decay = self._weight("log_decay", (self.state_dim, inner), _first_log_decays)
        self.skip = self._weight("skip", (inner,), "ones")
        self.gain = self._weight("gain", (inner,), "ones")
        self.drop = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name="drop")

    def _dense(self, units, width, std, name):
        initializer = keras.initializers.RandomNormal(stddev=std)
        dense = keras.layers.Dense(
            units, use_bias=False, kernel_initializer=initializer, dtype=self.dtype_policy, name=name
        )
        dense.build((None, None, width))
        return dense

    def _weight(self, name, shape, initializer, autocast=False):
        return self.add_weight(shape=shape, initializer=initializer, autocast=autocast, name=name)

    # --- whole sequences

    def call(self, query, context=None, *, mask=None, causal=True, training=None):
        if context is not None:
            raise ValueError("A state space reads its own sequence. Received: a `context`")
        if not causal:
            raise ValueError("A state space sees the past only: write causal=True. Received: causal=False")
        x, z = ops.split(self.input_projection(query), 2, axis=-1)  # (B, T, I) each
        if mask is not None and len(mask.shape) == 3:
            y = self._sweep_for_each(x, mask)  # (B, T, I)
        else:
            y, _ = self._sweep(x, self._start(ops.shape(x)[0]), mask)  # (B, T, I)
        return self.drop(self._output(y, z), training=training)  # (B, T, C)

    def _sweep(self, x, state, mask=None):
        """The recurrence over `(B, T, I)` from a state on: its outputs in float32, and the state after it."""
        keep = None if mask is None else ops.cast(mask, x.dtype)[..., None]  # (B, T, 1)
        x = x if keep is None else x * keep
        x, tail = self._convolved(x, state["tail"])  # (B, T, I)
        selected = ops.cast(self.selection(x), "float32")  # (B, T, R + 2N)
        delta, write, read = ops.split(selected, self.cuts, axis=-1)  # (B, T, R), (B, T, N) twice
        delta = ops.softplus(ops.matmul(delta, ops.cast(self.delta_kernel, "float32")) + self.delta_bias)  # (B, T, I)
        delta = delta if keep is None else delta * ops.cast(keep, "float32")
        x = ops.cast(x, "float32")
        decay = ops.exp(delta[:, :, None] * -ops.exp(self.log_decay))  # (B, T, N, I), in (0, 1]
        added = ops.matmul(write[..., None], (delta * x)[:, :, None])  # (B, T, N, I)
        states, last = recurrence(decay, added, state["state"], self.chunk)
        y = ops.matmul(read[:, :, None], states)[:, :, 0] + self.skip * x  # (B, T, I)
        return y, {"tail": tail, "state": last}

    def _convolved(self, x, tail):
        """The convolution, and the last inputs, which the next positions will see."""
        length = ops.shape(x)[1]
        x = ops.concatenate([tail, x], axis=1)  # (B, W - 1 + T, I)
        total = sum(x[:, w : w + length] * self.kernel[w] for w in range(self.kernel_size))  # (B, T, I)
        return ops.silu(total + self.kernel_bias), x[:, length:]  # (B, T, I), (B, W - 1, I)

    def _sweep_for_each(self, x, mask):
        """For each position a sweep with its own mask, of which that position is read."""
        batch, length = ops.shape(x)[0], ops.shape(x)[1]
        x = ops.repeat(x, length, axis=0)  # (B T, T, I)
        mask = ops.reshape(mask, (-1, length))  # (B T, T)
        y, _ = self._sweep(x, self._start(batch * length), mask)
        own = ops.reshape(y, (batch, length, length, self.inner)) * ops.eye(length)[:, :, None]
        return ops.sum(own, axis=2)  # (B, T, I)

    def _output(self, y, z):
        y = y * ops.silu(ops.cast(z, "float32"))  # (B, T, I)
        scale = ops.rsqrt(ops.mean(ops.square(y), axis=-1, keepdims=True) + self.epsilon)
        return self.output_projection(ops.cast(y * scale * self.gain, self.compute_dtype))  # (B, T, C)

    # --- step by step

    def _start(self, batch_size):
        return {
            "tail": ops.zeros((batch_size, self.kernel_size - 1, self.inner), dtype=self.compute_dtype),
            "state": ops.zeros((batch_size, self.state_dim, self.inner), dtype="float32"),
        }

    def init_state(self, batch_size, max_length, context=None, context_mask=None):
        """The last inputs of the convolution and the state, of a size that does not depend on the length."""
        return self._start(batch_size)

    def step(self, query, state, index):
        """One token or a whole prompt; the index is not needed, because the state knows no positions."""
        x, z = ops.split(self.input_projection(query), 2, axis=-1)  # (B, T, I) each
        y, state = self._sweep(x, state)
        return self._output(y, z), state

    # --- shapes and configuration

    def compute_mask(self, query, previous_mask=None):
        return None

    def compute_output_shape(self, query_shape, context_shape=None):
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "state_dim": self.state_dim,
            "expansion": self.expansion,
            "kernel_size": self.kernel_size,
            "rank": self.rank,
            "chunk": self.chunk,
            "dropout": self.dropout,
            "initializer_std": self.initializer_std,
            "output_std": self.output_std,
            "epsilon": self.epsilon,
        }


def recurrence(decay, added, first, chunk):
    """All states of `h_t = decay_t h_{t-1} + added_t`, and the last one.

    Args:
        decay: `(B, T, N, I)`, in `[0, 1]`.
        added: `(B, T, N, I)`.
        first: The state before, `(B, N, I)`.
        chunk: Length L of the pieces that are computed at once, a power of two.

    Returns:
        The states `(B, T, N, I)`, and the last `(B, N, I)`.
    """
    length = ops.shape(decay)[1]
    chunk = min(chunk, _power_of_two(length)) if isinstance(length, int) else chunk
    decay, added = _pieces(decay, added, chunk)  # (B, M, L, N, I) each
    decay, added = _joined(decay, added)
    before, last = _carried(decay[:, :, -1], added[:, :, -1], first)  # (B, M, N, I), (B, N, I)
    states = decay * before[:, :, None] + added  # (B, M, L, N, I)
    return ops.reshape(states, (-1, ops.shape(states)[1] * chunk, *states.shape[3:]))[:, :length], last


def _power_of_two(number):
    """The smallest power of two that is not below the number."""
    return 1 << (number - 1).bit_length()


def _pieces(decay, added, size):
    """Cuts the time into chunks. What fills up the last one neither fades nor adds."""
    length = ops.shape(decay)[1]
    missing = [(0, 0), (0, -length % size), (0, 0), (0, 0)]
    shape = (-1, (length + size - 1) // size, size, *decay.shape[2:])  # (B, M, L, N, I)
    return ops.reshape(ops.pad(decay, missing, constant_values=1.0), shape), ops.reshape(ops.pad(added, missing), shape)


def _joined(decay, added):
    """Of each step of a chunk, what it and all before it in the chunk do together: `(B, M, L, N, I)` twice.

    Two steps are one: `h -> d2 (d1 h + a1) + a2 = (d1 d2) h + (d2 a1 + a2)`. Pairs are joined, the half as many are
    done likewise, and what lies between them follows.
    """
    size = decay.shape[2]
    if size == 1:
        return decay, added
    whole = ops.shape(decay)
    pairs = (*whole[:2], size // 2, 2, *whole[3:])
    d1, d2 = ops.unstack(ops.reshape(decay, pairs), 2, axis=3)  # (B, M, L/2, N, I) each
    a1, a2 = ops.unstack(ops.reshape(added, pairs), 2, axis=3)
    d2, a2 = _joined(d1 * d2, d2 * a1 + a2)  # after each second step
    later = [(0, 0), (0, 0), (1, 0), (0, 0), (0, 0)]
    d0, a0 = ops.pad(d2[:, :, :-1], later, constant_values=1.0), ops.pad(a2[:, :, :-1], later)
    d1, a1 = d0 * d1, d1 * a0 + a1  # after each first step
    return ops.reshape(ops.stack([d1, d2], axis=3), whole), ops.reshape(ops.stack([a1, a2], axis=3), whole)


def _carried(decay, added, first):
    """The state before each chunk `(B, M, N, I)`, and the one after the last `(B, N, I)`."""
    count = ops.shape(decay)[1]
    if isinstance(count, int):  # as within chunks: XLA cannot differentiate a loop of Keras
        decay, added = (x[:, 0] for x in _joined(*_pieces(decay, added, _power_of_two(count))))
        states = decay[:, :count] * first[:, None] + added[:, :count]  # (B, M, N, I): after each chunk
        return ops.concatenate([first[:, None], states[:, :-1]], axis=1), states[:, -1]

    def advance(state, chunk):
        return chunk[0] * state + chunk[1], state

    # One tensor: where the length is not known, Keras's scan takes no two.
    last, before = ops.scan(advance, first, ops.transpose(ops.stack([decay, added]), (2, 0, 1, 3, 4)))
    return ops.moveaxis(before, 0, 1), last


def _within(bound):
    return keras.initializers.RandomUniform(-bound, bound)


def _first_deltas(shape, dtype=None):
    """Biases for which delta is between 0.001 and 0.1, evenly spread on a logarithmic scale."""
    delta = ops.exp(keras.random.uniform(shape, math.log(0.001), math.log(0.1), dtype=dtype))
    return delta + ops.log(-ops.expm1(-delta))  # the inverse of softplus


def _first_log_decays(shape, dtype=None):
    """`A = -1, -2, ..., -N` in every channel."""
    return ops.log(ops.arange(1, shape[0] + 1, dtype=dtype))[:, None] * ops.ones(shape, dtype=dtype)
