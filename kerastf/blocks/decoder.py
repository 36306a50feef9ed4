"""The recurrent decoder with attention. Shapes: B batch, S source, T target, C channels, U units, E context width."""

import keras
from keras import ops

from kerastf.blocks.dropout import Dropout
from kerastf.config import create_block


class _Loop:
    """The decoder's step as a cell for `keras.layers.RNN`. It holds the memory for the duration of one run."""

    def __init__(self, decoder):
        self.decoder = decoder
        self.compute_dtype = decoder.compute_dtype
        self.memory = None
        self.of_context = None  # the context's part of the lowest cell's input, where inputs come with theirs
        self.choose = None  # features to the next embedding, where the decoder may read its own output

    @property
    def output_size(self):
        return self.decoder.dim if self.choose else self.decoder.joined

    @property
    def state_size(self):
        own = [self.decoder.dim] if self.choose else []
        return [*self.decoder.state_sizes, *own]

    def call(self, x, states):
        decoder = self.decoder
        if self.choose:
            x, coin = x[:, : decoder.dim], x[:, decoder.dim :]
            x = ops.where(coin > 0.5, x, states[-1])  # heads: the truth; tails: what the decoder said itself
        joined, after = decoder.look(x, list(states[: len(decoder.state_sizes)]), self.memory, self.of_context)
        if not self.choose:
            return joined, after  # one product mixes all steps
        features = decoder.mix(joined)
        return features, [*after, self.choose(features)]

    __call__ = call


class AttentionDecoder(keras.layers.Layer):
    """Writes a sequence with stacked cells that look at a context.

    `c_t = attention(s_{t-1}, h)`, `s_t = cell(s_{t-1}, [y_{t-1}; c_t])` and `o_t = tanh(W [s_t; c_t])`. Without input
    feeding the cells read `y_{t-1}` alone, and `c_t = attention(s_t, h)` for all positions at once.

    Args:
        cells: One cell per layer: names, or dicts with name and options.
        attention: The attention block, likewise.
        dim: Width C of embeddings and outputs.
        input_feeding: Whether the context is fed to the cells.
        dropout: Fraction dropped from the outputs, in `[0, 1)`.
        **kwargs: Passed to `keras.layers.Layer` (`name`, `dtype`, ...).

    Call arguments:
        x: Embeddings of the previous tokens, `(B, T, C)`.
        context: What the encoder made of the source, `(B, S, E)`.
        states: The cells' first states, one list of `(B, U)` tensors, layer by layer.
        context_mask: Boolean `(B, S)`, True = keep.
        training: Whether dropout is active.

    Returns:
        Float tensor of shape `(B, T, C)`.

    References:
        - [Bahdanau et al., 2014](https://arxiv.org/abs/1409.0473)
        - [Luong et al., 2015](https://arxiv.org/abs/1508.04025) for the form without input feeding
    """

    def __init__(
        self, cells: list, attention: str | dict, *, dim: int, input_feeding: bool = True, dropout: float = 0.0,
        **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        self.specs = {"cells": cells, "attention": attention}
        self.dim = dim
        self.input_feeding = input_feeding
        self.dropout = dropout
        self.cells = [
            create_block("cell", spec, name=f"cell_{i}", dtype=self.dtype_policy) for i, spec in enumerate(cells)
        ]
        self.attention = create_block("attention", attention, name="attention", dtype=self.dtype_policy)
        self.mix = keras.layers.Dense(dim, activation="tanh", dtype=self.dtype_policy, name="mix")
        self.drop = Dropout(dropout, dtype=self.dtype_policy, name="drop")
        self.counts = [len(keras.tree.flatten(cell.state_size)) for cell in self.cells]
        sizes = [n for cell in self.cells for n in keras.tree.flatten(cell.state_size)]
        # The last output of the top cell is state too: with input feeding it asks the next question.
        self.state_sizes = [*sizes, self.units]

    @property
    def units(self):
        """Width U of the top cell's output."""
        return self.cells[-1].output_size

    def build(self, x_shape, context_shape=None, states_shape=None, context_mask_shape=None):
        batch = x_shape[0]
        query_shape = (batch, x_shape[1], self.units)
        self.attention.build(query_shape, context_shape)
        width = self.attention.compute_output_shape(query_shape, context_shape)[-1]  # E
        below = self.dim + (width if self.input_feeding else 0)
        for cell in self.cells:
            cell.build((batch, below))
            below = cell.output_size
        self.joined = self.units + width
        self.mix.build((batch, x_shape[1], self.joined))

    def call(self, x, context, states, context_mask=None, training=None):
        memory = self.remember(context, context_mask)
        features = self._run(x, [*states, self._top(states)], memory)
        return self.drop(features, training=training)  # (B, T, C)

    def sample(self, x, coins, choose, first, context, states, context_mask=None, training=None):
        """As `call`, but where a coin says so a step reads what the decoder itself said last.

        Args:
            x: Embeddings of the true previous tokens, `(B, T, C)`.
            coins: 1 where the truth is read, 0 where its own output is, `(B, T)`.
            choose: From the features `(B, C)` of a step to the embedding `(B, C)` of the token it would choose.
            first: What stands for its own output before the first step, `(B, C)`.
            context: As for `call`.
            states: As for `call`.
            context_mask: As for `call`.
            training: As for `call`.
        """
        memory = self.remember(context, context_mask)
        x = ops.concatenate([x, ops.cast(coins, x.dtype)[..., None]], axis=-1)  # (B, T, C + 1)
        features = self._run(x, [*states, self._top(states), first], memory, choose)
        return self.drop(features, training=training)  # (B, T, C)

    def remember(self, context, context_mask=None):
        """What the attention needs of the context, computed once."""
        if context_mask is None:
            context_mask = ops.ones(ops.shape(context)[:2], dtype="bool")
        return self.attention.init_state(None, None, context=context, context_mask=context_mask)

    def _top(self, states):
        return states[-self.counts[-1]]  # the first state of the top cell is its output

    def _run(self, x, states, memory, choose=None):
        if not self.input_feeding and choose is None:
            outputs = x
            for cell, own in zip(self.cells, self._by_cell(states), strict=True):
                loop = keras.layers.RNN(cell, return_sequences=True, dtype=self.dtype_policy)
                outputs = loop.call(outputs, initial_state=own)  # (B, T, U)
            return self.mix(self._joined(outputs, memory))  # (B, T, C)
        cell = _Loop(self)
        cell.memory, cell.choose = memory, choose
        if choose is None and hasattr(self.cells[0], "parts"):
            of_x, cell.of_context = self.cells[0].parts([self.dim, self.joined - self.units])
            x = of_x(x)  # (B, T, G U)
        loop = keras.layers.RNN(cell, return_sequences=True, dtype=self.dtype_policy)
        found = loop.call(x, initial_state=states)  # (B, T, U + E), or (B, T, C) with `choose`
        return found if choose else self.mix(found)  # (B, T, C)

    def _by_cell(self, states):
        states, found = list(states), []
        for count in self.counts:
            found.append(states[:count])
            states = states[count:]
        return found

    def _joined(self, outputs, memory):
        """`[s; c]` for outputs `(B, T, U)` of the top cell that ask for their own context."""
        context, _ = self.attention.step(outputs, memory, 0)  # (B, T, E)
        return ops.concatenate([outputs, ops.cast(context, outputs.dtype)], axis=-1)  # (B, T, U + E)

    def advance(self, x, states, memory):
        """One step: the previous token's embedding `(B, C)` to features `(B, C)`, and the states after it."""
        joined, states = self.look(x, states, memory)
        return self.mix(joined), states

    def look(self, x, states, memory, of_context=None):
        """As `advance`, but output and context `(B, U + E)`, not mixed yet.

        With `of_context`, the context's part of what the lowest cell's `project` gives, `x` is the embedding's.
        """
        states = [ops.cast(s, self.compute_dtype) for s in states]
        h, context = x, None
        if self.input_feeding:
            context, _ = self.attention.step(states[-1][:, None], memory, 0)  # (B, 1, E)
            context = ops.cast(ops.squeeze(context, 1), x.dtype)
            if x.shape[0] is not None:  # one row plus unknown many would be unknown many
                context = ops.reshape(context, (x.shape[0], context.shape[-1]))
            h = x + of_context(context) if of_context else ops.concatenate([x, context], axis=-1)  # (B, G U or C + E)
        after = []
        for i, (cell, own) in enumerate(zip(self.cells, self._by_cell(states), strict=True)):
            h, new = (cell.advance if of_context and i == 0 else cell)(h, own)  # (B, U)
            after += keras.tree.flatten(new)
        if context is None:
            joined = ops.squeeze(self._joined(h[:, None], memory), 1)
        else:
            joined = ops.concatenate([h, context], axis=-1)  # (B, U + E)
        return joined, [*after, h]

    def init_state(self, context, states, context_mask=None):
        """The decoding state before the first token."""
        return {"memory": self.remember(context, context_mask), "states": [*states, self._top(states)]}

    def step(self, x, state, index=None):
        """The next tokens' embeddings `(B, T, C)` to features `(B, T, C)` and the next state."""
        outputs, states = [], state["states"]
        for t in range(x.shape[1]):
            features, states = self.advance(x[:, t], states, state["memory"])
            outputs.append(features)
        return ops.stack(outputs, axis=1), {"memory": state["memory"], "states": states}

    def alignment(self, x, context, states, context_mask=None):
        """The attention weights `(B, H, T, S)` of every step."""
        memory, states, found = self.remember(context, context_mask), [*states, self._top(states)], []
        for t in range(x.shape[1]):
            asking = states[-1]
            _, states = self.advance(x[:, t], states, memory)
            asking = asking if self.input_feeding else states[-1]
            found.append(self.attention.attention_weights(asking[:, None], context, mask=context_mask))  # (B, H, 1, S)
        return ops.concatenate(found, axis=2)

    def compute_output_shape(self, x_shape, context_shape=None, states_shape=None, context_mask_shape=None):
        return (*x_shape[:-1], self.dim)

    def get_config(self):
        return {
            **super().get_config(),
            **self.specs,
            "dim": self.dim,
            "input_feeding": self.input_feeding,
            "dropout": self.dropout,
        }
