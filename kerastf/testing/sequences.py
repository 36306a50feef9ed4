"""Checks of blocks and models that read sequences: the future, padding, and decoding step by step."""

import keras
import numpy as np
from keras import ops, tree

from kerastf import compat
from kerastf.testing.generic import TOLERANCE
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.subjects import LENGTH, SEQUENCE_KINDS, difference, numpy


def _call(subject, layer, x, **kwargs):
    """A whole-sequence call; `causal` and `mask` only where the kind has them."""
    if subject.kind == "attention":
        return numpy(layer(ops.convert_to_tensor(x), **kwargs))
    return numpy(layer(ops.convert_to_tensor(x)))


def _need(subject, flag):
    if flag not in subject.supports:
        raise NotAsked(f"it does not declare support for {flag}")


@check("causal", SEQUENCE_KINDS, "no output sees a later input")
def causal(subject):
    _need(subject, "causal")
    layer = subject.make()
    x = subject.inputs()["x"]
    _require_no_leak(x, lambda x: _call(subject, layer, x, causal=True), axis_noise=True)


def _require_no_leak(x, run, axis_noise, low=None, high=None):
    before = run(x)
    rng = np.random.default_rng(3)
    for t in range(x.shape[1] - 1):
        changed = x.copy()
        tail = changed[:, t + 1 :]
        changed[:, t + 1 :] = rng.normal(size=tail.shape) if axis_noise else rng.integers(low, high, tail.shape)
        gap = difference(run(changed)[:, : t + 1], before[:, : t + 1])
        if gap > TOLERANCE:
            raise Broken(f"outputs up to {t} changed by {gap:.2g} when inputs after {t} did: it sees the future")


def _directions(subject):
    """The values of `causal` that an attention takes."""
    both_sides = [] if "causal_only" in subject.supports else [False]
    return both_sides + ([True] if "causal" in subject.supports else [])


@check("padding", ("attention",), "masked positions never change the others; both mask shapes agree")
def padding(subject):
    layer = subject.make()
    x = subject.inputs()["x"]
    rng = np.random.default_rng(4)
    padded = np.concatenate([x, 10 * rng.normal(size=(x.shape[0], 3, x.shape[2])).astype("float32")], axis=1)
    mask = np.arange(padded.shape[1]) < LENGTH
    mask = np.broadcast_to(mask, padded.shape[:2])
    full = np.broadcast_to(mask[:, None], (*padded.shape[:2], padded.shape[1]))
    for flag in _directions(subject):
        want = _call(subject, layer, x, causal=flag)
        for name, m in (("(B, S)", mask), ("(B, T, S)", full)):
            got = _call(subject, layer, padded, causal=flag, mask=ops.convert_to_tensor(m))[:, :LENGTH]
            gap = difference(got, want)
            if gap > TOLERANCE:
                raise Broken(f"with a mask of shape {name}, padding changed real positions by {gap:.2g}")
    nothing = ops.zeros(padded.shape[:2], dtype="bool")
    if not np.all(np.isfinite(_call(subject, layer, padded, mask=nothing))):
        raise Broken("a row that is all padding gives an output that is not finite")


@check("cross", ("attention",), "a context is attended to, masked and not")
def cross(subject):
    _need(subject, "cross")
    layer = subject.make(with_context=True)
    x, context = subject.inputs()["x"], subject.context()
    want = numpy(layer(ops.convert_to_tensor(x), ops.convert_to_tensor(context)))
    if difference(want, layer(ops.convert_to_tensor(x), ops.convert_to_tensor(context[::-1].copy()))) < TOLERANCE:
        raise Broken("the output does not depend on the context")
    longer = np.concatenate([context, 10 * subject.context(length=2, seed=8)], axis=1)
    mask = np.broadcast_to(np.arange(longer.shape[1]) < context.shape[1], longer.shape[:2])
    got = layer(ops.convert_to_tensor(x), ops.convert_to_tensor(longer), mask=ops.convert_to_tensor(mask))
    gap = difference(got, want)
    if gap > TOLERANCE:
        raise Broken(f"masked positions of the context changed the output by {gap:.2g}")


@check("positions", ("attention",), "some positions alone attend as they do among all")
def positions(subject):
    _need(subject, "positions")
    layer = subject.make()
    x = subject.inputs()["x"]
    asked = np.array([[LENGTH - 1, 0], [2, 2], [0, 3]], dtype="int32")  # (B, M)
    rng = np.random.default_rng(5)
    full = np.logical_or(rng.random((*x.shape[:2], LENGTH)) < 0.5, np.eye(LENGTH, dtype=bool))
    hidden = np.arange(LENGTH) < np.array([[LENGTH], [LENGTH - 1], [LENGTH - 2]])
    for flag in _directions(subject):
        for name, mask in (("no mask", None), ("a mask (B, S)", hidden), ("a mask (B, T, S)", full)):
            known = {"causal": flag, "mask": None if mask is None else ops.convert_to_tensor(mask)}
            want = np.take_along_axis(_call(subject, layer, x, **known), asked[..., None], axis=1)
            gap = difference(_call(subject, layer, x, positions=ops.convert_to_tensor(asked), **known), want)
            if gap > TOLERANCE:
                raise Broken(
                    f"with {name} and causal={flag}, positions alone differ from the same among all by {gap:.2g}"
                )
    symbols = keras.KerasTensor(x.shape), keras.KerasTensor(asked.shape, dtype="int32")
    promised = layer(symbols[0], causal=bool(_directions(subject)[-1]), positions=symbols[1]).shape
    if tuple(promised) != (*asked.shape, want.shape[-1]):
        raise Broken(f"a symbolic call with positions of shape {asked.shape} gives {tuple(promised)}")


@check("steps", SEQUENCE_KINDS, "step by step equals the whole, for tokens, prompts and ragged rows")
def steps(subject):
    _need(subject, "decode" if subject.kind == "attention" else "causal")
    layer = subject.make()
    x = subject.inputs(length=LENGTH + 2)["x"]
    want = _call(subject, layer, x, causal=True)
    total = x.shape[1]
    if subject.kind != "attention" and not hasattr(layer, "step"):
        alone = np.concatenate([_call(subject, layer, x[:, t : t + 1]) for t in range(total)], axis=1)
        gap = difference(alone, want)
        if gap > TOLERANCE:
            raise Broken(
                f"a position alone differs from the same position in a sequence by {gap:.2g}: it looks at others, so "
                f"decoding needs init_state and step"
            )
        return

    def run(sizes, wrap):
        state, at, outputs = layer.init_state(x.shape[0], total), 0, []
        _require_batch_first(state, layer.init_state(1, total), x.shape[0])
        for size in sizes:
            output, state = layer.step(ops.convert_to_tensor(x[:, at : at + size]), state, wrap(at))
            outputs.append(numpy(output))
            at += size
        return np.concatenate(outputs, axis=1)

    scalar = lambda at: ops.array(at, dtype="int32")  # noqa: E731
    rows = lambda at: ops.full((x.shape[0],), at, dtype="int32")  # noqa: E731
    for what, sizes, wrap in (
        ("one token at a time", [1] * total, scalar),
        ("one token at a time, one index per row", [1] * total, rows),
        ("a prompt, then tokens", [4] + [1] * (total - 4), lambda at: at if at == 0 else scalar(at)),
        ("a prompt in two pieces", [3, total - 3], scalar),
    ):
        gap = difference(run(sizes, wrap), want)
        if gap > TOLERANCE:
            raise Broken(f"{what}: the steps differ from the whole by {gap:.2g}")
    _ragged_rows(layer, x, want)


def _require_batch_first(state, single, batch):
    """The first axis of each leaf is as many times that of a `single` row's state as there are rows."""
    for leaf, one in zip(tree.flatten(state), tree.flatten(single), strict=True):
        if not leaf.shape or leaf.shape[0] != batch * one.shape[0]:
            raise Broken(f"a leaf of the state has shape {tuple(leaf.shape)}: the batch must come first")


def _ragged_rows(layer, x, want):
    """Rows at different positions in one batch: each row's state is made alone, then joined along the batch."""
    offsets, states = [1 + row for row in range(x.shape[0])], []
    for row, offset in enumerate(offsets):
        state = layer.init_state(1, x.shape[1])
        states.append(layer.step(ops.convert_to_tensor(x[row : row + 1, :offset]), state, 0)[1])
    state = tree.map_structure(lambda *leaves: ops.concatenate(leaves, axis=0), *states)
    for more in range(2):
        token = np.stack([x[row, offset + more] for row, offset in enumerate(offsets)])[:, None]
        index = ops.array([offset + more for offset in offsets], dtype="int32")
        output, state = layer.step(ops.convert_to_tensor(token), state, index)
        wanted = np.stack([want[row, offset + more] for row, offset in enumerate(offsets)])[:, None]
        gap = difference(output, wanted)
        if gap > TOLERANCE:
            raise Broken(f"rows at different positions: the step differs from the whole by {gap:.2g}")


@check("cross_steps", ("attention",), "step by step equals the whole with a context")
def cross_steps(subject):
    _need(subject, "cross")
    _need(subject, "decode")
    layer = subject.make(with_context=True)
    x, context = subject.inputs()["x"], ops.convert_to_tensor(subject.context())
    mask = ops.convert_to_tensor(np.arange(5) < np.array([[5], [3], [1]]))
    want = numpy(layer(ops.convert_to_tensor(x), context, mask=mask))
    state = layer.init_state(x.shape[0], x.shape[1], context=context, context_mask=mask)
    single = layer.init_state(1, x.shape[1], context=context[:1], context_mask=mask[:1])
    _require_batch_first(state, single, x.shape[0])
    for t in range(x.shape[1]):
        output, state = layer.step(ops.convert_to_tensor(x[:, t : t + 1]), state, ops.array(t, dtype="int32"))
        gap = difference(output, want[:, t : t + 1])
        if gap > TOLERANCE:
            raise Broken(f"step {t} with a context differs from the whole by {gap:.2g}")


@check("weights", ("attention",), "the attention weights are a distribution over what may be seen")
def weights(subject):
    _need(subject, "weights")
    layer = subject.make()
    x = ops.convert_to_tensor(subject.inputs()["x"])
    found = numpy(layer.attention_weights(x, causal=True))
    if found.ndim != 4 or found.shape[0] != x.shape[0] or found.shape[2:] != (LENGTH, LENGTH):
        raise Broken(f"attention_weights gives shape {found.shape}; (B, H, T, S) is asked for")
    if np.min(found) < 0 or np.max(np.abs(found.sum(-1) - 1)) > 1e-5:
        raise Broken("the weights are not distributions over the keys")
    if np.any(found * np.triu(np.ones((LENGTH, LENGTH)), 1)):
        raise Broken("with causal=True, a weight on a later position is not zero")


@check("beside", ("norm",), "handed on beside its input, it is the same norm, in its gradients, too")
def beside(subject):
    layer = subject.make()
    if not hasattr(layer, "beside"):
        raise NotAsked("it has no beside")
    x = keras.Variable(subject.inputs()["x"], name="x")
    rng = np.random.default_rng(5)
    of_x, of_norm = (ops.convert_to_tensor(rng.normal(size=x.shape), dtype="float32") for _ in range(2))

    def found(pair):
        def total():
            handed_on, y = pair(x.value)
            return ops.sum(handed_on * of_x) + ops.sum(y * of_norm)

        return [*pair(x.value), *compat.gradients(total, [x, *layer.trainable_variables])]

    want = found(lambda x: (x, layer(x)))
    names = [
        "x",
        "what it gives",
        "the gradient of x",
        *(f"the gradient of {v.name}" for v in layer.trainable_variables),
    ]
    for name, a, b in zip(names, found(layer.beside), want, strict=True):
        if difference(a, b) > 10 * TOLERANCE:
            raise Broken(f"beside gives another result than a call: {name} differs by {difference(a, b):.2g}")


@check("offset", ("position",), "an index shifts the positions")
def offset(subject):
    if "embeddings" not in subject.supports:
        raise NotAsked("the attention gives it its positions")
    layer = subject.make()
    x = subject.inputs()["x"]
    whole = numpy(layer(ops.convert_to_tensor(x)))
    for index in (2, ops.array(2, dtype="int32"), ops.full((x.shape[0],), 2, dtype="int32")):
        gap = difference(layer(ops.convert_to_tensor(x[:, 2:]), index=index), whole[:, 2:])
        if gap > TOLERANCE:
            raise Broken(f"positions from index 2 on differ from those of the whole by {gap:.2g}")
