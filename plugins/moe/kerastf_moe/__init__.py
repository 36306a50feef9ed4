"""A mixture of experts. Shapes: B batch, T time, C channels, M hidden, E experts, K choices, S slots of an expert."""

import math

import keras
from keras import ops

from kerastf import functional, register, replicas


@register("feedforward", "top_k", supports=("causal",))
class TopK(keras.layers.Layer):
    """A mixture of experts: a router lets each position choose `k` of several feed-forwards.

    `p = softmax(x W_r)` and `y = sum_{e in top k of p} p_e (W2_e act(W1_e x + b1_e) + b2_e)`. The router runs in
    float32.

    In training each expert has `S = ceil(capacity_factor k T / E)` slots in every row. They go to the positions in
    their order, and all choices of a position come before those of the next; so which choices are dropped depends on
    earlier positions of the same row only. A choice that finds no slot left adds nothing to the sum. In inference
    nothing is dropped: a position's output depends on that position alone. (Giving all first choices the
    precedence over all second ones, or sharing slots between rows, would let later positions or other rows decide.)

    In training the block adds `balance E sum_e f_e P_e` to the loss: `f_e` is the share of all choices that fell on
    expert e before any was dropped, and `P_e` the mean of `p_e`, both over the whole batch, of all replicas together.
    It is `balance` where the router has no preference. `evaluate` shows the loss without it.

    A feed-forward is told nothing of padding, so padding is routed too: it counts in the balance, and on the left of a
    row it takes slots.

    Args:
        num_experts: How many experts E there are.
        k: How many of them a position chooses.
        mlp_dim: Width M of an expert's hidden layer; `4 * C` by default.
        capacity_factor: How many slots there are in training for each choice; None for as many as are asked for,
            at the cost of running every expert on every position.
        balance: Weight of the balancing loss; 0 for none.
        activation: Name of a Keras activation, or `"gelu_tanh"` for the tanh form of GELU.
        dropout: Fraction dropped from the output, in `[0, 1)`.
        bias: Whether the experts' linear maps have biases.
        initializer_std: Deviation of the router and of the first kernels at the start.
        output_std: Deviation of the second kernels at the start; `initializer_std` by default.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Float tensor of shape `(B, T, C)`.
        training: Whether dropout, the capacity and the balancing loss are active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    Examples:
        >>> block = TopK(num_experts=4, k=2, mlp_dim=16)
        >>> tuple(block(keras.ops.ones((2, 5, 8))).shape)
        (2, 5, 8)

    References:
        - [Shazeer et al., 2017](https://arxiv.org/abs/1701.06538)
        - [Fedus et al., 2021](https://arxiv.org/abs/2101.03961), section 2.2, for capacity and balance
    """

    def __init__(
        self, num_experts: int = 8, *, k: int = 2, mlp_dim: int | None = None, capacity_factor: float | None = 1.25,
        balance: float = 0.01, activation: str = "gelu", dropout: float = 0.0, bias: bool = True,
        initializer_std: float = 0.02, output_std: float | None = None, **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        if num_experts < 1:
            raise ValueError(f"`num_experts` must be at least 1. Received: num_experts={num_experts}")
        if not 1 <= k <= num_experts:
            raise ValueError(f"`k` must be in [1, num_experts]. Received: k={k}, num_experts={num_experts}")
        if mlp_dim is not None and mlp_dim < 1:
            raise ValueError(f"`mlp_dim` must be at least 1. Received: mlp_dim={mlp_dim}")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(
                "`capacity_factor` must be above 0, or None to drop nothing. "
                f"Received: capacity_factor={capacity_factor}"
            )
        if balance < 0:
            raise ValueError(f"`balance` must be at least 0. Received: balance={balance}")
        if not 0 <= dropout < 1:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
        self.supports_masking = True
        self.num_experts = num_experts
        self.k = k
        self.mlp_dim = mlp_dim
        self.capacity_factor = capacity_factor
        self.balance = balance
        self.activation = activation
        self.dropout = dropout
        self.bias = bias
        self.initializer_std = initializer_std
        self.output_std = output_std
        self.activate = functional.activation_of(activation)

    def build(self, x_shape):
        dim, experts = x_shape[-1], self.num_experts
        hidden = self.mlp_dim or 4 * dim
        std = self.initializer_std if self.output_std is None else self.output_std
        self.router = self._kernel("router", (dim, experts), self.initializer_std, autocast=False)
        self.expand = self._kernel("expand", (experts, dim, hidden), self.initializer_std)
        self.contract = self._kernel("contract", (experts, hidden, dim), std)
        if self.bias:
            self.expand_bias = self.add_weight(shape=(experts, hidden), initializer="zeros", name="expand_bias")
            self.contract_bias = self.add_weight(shape=(experts, dim), initializer="zeros", name="contract_bias")
        self.drop = keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name="drop")

    def _kernel(self, name, shape, std, **kwargs):
        initializer = keras.initializers.RandomNormal(stddev=std)
        return self.add_weight(shape=shape, initializer=initializer, name=name, **kwargs)

    def call(self, x, training=None):
        probabilities = self.route(x)  # (B, T, E)
        gates, experts = ops.top_k(probabilities, self.k)  # (B, T, K) each
        if training and self.balance:
            self.add_loss(self.balance * balancing_loss(probabilities, experts))
        limited = training and self.capacity_factor is not None
        y = self._dispatched(x, gates, experts) if limited else self._everywhere(x, gates, experts)  # (B, T, C)
        return self.drop(y, training=training)

    def route(self, x):
        """The probabilities `(B, T, E)` of the experts, in float32."""
        scores = ops.matmul(ops.cast(x, "float32"), ops.cast(self.router, "float32"))  # (B, T, E)
        return ops.ones_like(scores) if self.num_experts == 1 else ops.softmax(scores)  # Keras warns of one alone

    def _everywhere(self, x, gates, experts):
        """Every expert at every position, weighted by the gates: two large matrix products, and nothing is dropped."""
        gates = ops.sum(ops.one_hot(experts, self.num_experts) * gates[..., None], axis=2)  # (B, T, E)
        gates = ops.cast(gates, self.compute_dtype)
        h = ops.einsum("btc,ecm->btem", x, self.expand)
        h = self.activate(h + self.expand_bias if self.bias else h)  # (B, T, E, M)
        y = ops.einsum("btem,emc->btc", h * gates[..., None], self.contract)
        return y + ops.matmul(gates, self.contract_bias) if self.bias else y  # (B, T, C)

    def _dispatched(self, x, gates, experts):
        """Each expert at the positions that have one of its slots. Slots that nobody has are computed, and not read."""
        slots = self.capacity(ops.shape(x)[1])
        position, slot, kept = assign_slots(experts, self.num_experts, slots)  # (B, E S), (B, T K) twice
        h = ops.reshape(functional.pick(x, position), (-1, self.num_experts, slots, x.shape[-1]))  # (B, E, S, C)
        h = ops.einsum("besc,ecm->besm", h, self.expand)
        h = self.activate(h + self.expand_bias[:, None] if self.bias else h)  # (B, E, S, M)
        h = ops.einsum("besm,emc->besc", h, self.contract)
        h = h + self.contract_bias[:, None] if self.bias else h  # (B, E, S, C)
        h = ops.reshape(h, (-1, self.num_experts * slots, x.shape[-1]))  # (B, E S, C)
        h = ops.reshape(functional.pick(h, slot), (*ops.shape(gates), x.shape[-1]))  # (B, T, K, C)
        gates = gates * ops.reshape(ops.cast(kept, "float32"), ops.shape(gates))  # (B, T, K)
        return ops.sum(h * ops.cast(gates, h.dtype)[..., None], axis=2)  # (B, T, C)

    def capacity(self, length):
        """How many slots S an expert has for a row of `length` positions; never more than there are positions."""
        share, rounding = self.capacity_factor * self.k / self.num_experts, 1e-3  # which must not make one slot more
        if isinstance(length, int):
            return max(1, min(length, math.ceil(share * length - rounding)))
        wanted = ops.cast(ops.ceil(share * ops.cast(length, "float32") - rounding), "int32")
        return ops.maximum(1, ops.minimum(ops.cast(length, "int32"), wanted))

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, x_shape):
        return x_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_experts": self.num_experts,
            "k": self.k,
            "mlp_dim": self.mlp_dim,
            "capacity_factor": self.capacity_factor,
            "balance": self.balance,
            "activation": self.activation,
            "dropout": self.dropout,
            "bias": self.bias,
            "initializer_std": self.initializer_std,
            "output_std": self.output_std,
        }


def balancing_loss(probabilities, experts):
    """`E sum_e f_e P_e`: f the share of the choices, P the mean probability. Only P has a gradient.

    Args:
        probabilities: Of the router, `(B, T, E)`.
        experts: What was chosen, `(B, T, K)`.

    Returns:
        A scalar: 1 where all probabilities are equal, E where all go to one expert for certain. Of several replicas,
        the mean of their scalars is that of the whole batch.
    """
    count = probabilities.shape[-1]
    chosen = ops.sum(ops.one_hot(experts, count, dtype="float32"), axis=(0, 1, 2))  # (E,)
    chosen = replicas.total(chosen)
    share = chosen / ops.sum(chosen)
    positions = replicas.total(ops.sum(ops.ones_like(probabilities[..., 0])))
    mean = ops.sum(probabilities, axis=(0, 1)) / positions  # (E,), this replica's part
    # Keras takes the mean of what the replicas add; the parts must be added up.
    return replicas.number() * count * ops.sum(ops.stop_gradient(share) * mean)


def assign_slots(experts, count, slots):
    """Gives the slots of each expert to the choices in their order.

    Args:
        experts: What was chosen, `(B, T, K)`.
        count: How many experts E there are.
        slots: How many slots S each has.

    Returns:
        The position that each slot reads, `(B, E S)`; the slot of each choice, `(B, T K)`; and whether the choice has
        got it, `(B, T K)`. A slot that nobody got reads some position.
    """
    k = experts.shape[-1]
    experts = ops.reshape(ops.cast(experts, "int32"), (-1, ops.shape(experts)[1] * k))  # (B, T K)
    total = ops.shape(experts)[1]
    asked = ops.cumsum(ops.one_hot(experts, count, dtype="int32"), axis=1)  # (B, T K, E): so far, this one included
    rank = ops.take_along_axis(asked, experts[..., None], axis=2)[..., 0] - 1  # (B, T K): how many came before
    slot = experts * slots + ops.minimum(rank, slots - 1)
    # Sorted by expert and then by order, an expert's choices stand together.
    order = ops.argsort(experts * total + ops.arange(total, dtype="int32"), axis=1)  # (B, T K)
    sums = asked[:, -1]  # (B, E)
    first = ops.cumsum(sums, axis=1) - sums  # (B, E)
    place = first[..., None] + ops.arange(slots, dtype="int32")  # (B, E, S)
    place = ops.reshape(ops.minimum(place, total - 1), (-1, count * slots))  # (B, E S)
    position = ops.take_along_axis(ops.cast(order, "int32"), place, axis=1) // k  # (B, E S)
    return position, slot, rank < slots
