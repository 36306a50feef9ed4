"""Generation: one compiled loop with static shapes, for any model that has `init_state` and `step`.

Shapes: B batch, L length of the buffer, W beams, V vocabulary. Rows may have prompts of different lengths: the loop
starts at the shortest and takes a row's own tokens for as long as its prompt goes on, so it needs nothing of a block
but its state. A row is frozen at its end token. Padding is never chosen: it fills what comes after the end.
"""

import keras
import numpy as np
from keras import ops

from kerastf import compat, halves
from kerastf.config import block_from
from kerastf.errors import InputError
from kerastf.functional import NEGATIVE

KEPT = 32  # compiled loops of one model


def generate(model, prompts, *, max_length, sampler="greedy", seed=None, end_id=None, pad_id=None, context=None):
    """Continues each prompt token by token.

    Args:
        model: Has `init_state(batch_size, max_length)` and `step(tokens, state, index) -> (logits, state)`.
        prompts: A list of lists of tokens, none empty.
        max_length: Length at which a row ends, its prompt included.
        sampler: Name of a sampler, or a dict with its name and options.
        seed: For samplers that draw: the same seed gives the same tokens.
        end_id: A row is frozen once it has chosen this token; None never stops a row.
        pad_id: What fills a row after its end; by default the end token.
        context: By name: arrays, batch first, that `init_state` takes too (the source of a translation).

    Returns:
        Tokens `(B, L)` and the length of each row `(B,)`, as NumPy arrays.
    """
    count, context = len(prompts), context or {}
    if count < compat.fewest_rows():
        more = compat.fewest_rows() - count  # rows that are done before they begin
        prompts = [*prompts, *prompts[:1] * more]
        context = {name: np.concatenate([array, *[array[:1]] * more]) for name, array in context.items()}
    tokens, lengths, prefill = _buffer(model, prompts, max_length, pad_id, end_id)
    chooser = block_from("sampler", sampler, {"seed": seed})
    settings = {k: v for k, v in chooser.get_config().items() if k != "seed"}
    shapes = tuple((k, v.shape) for k, v in context.items())
    chooses = type(chooser), repr(sorted(settings.items()))
    key = ("generate", tokens.shape, count, shapes, prefill, end_id, pad_id, *chooses)

    def build():
        return _compiled(_sampling_loop(model, chooser, count, prefill, end_id, pad_id), model)

    function = _cached(model, key, build)
    seeds = [v.value for v in chooser.variables]
    out, ends = function(*_tensors(tokens, lengths, max_length, context), seeds)
    return ops.convert_to_numpy(out)[:count, :max_length], ops.convert_to_numpy(ends)[:count]


def searches(num_beams, sampler, seed, beams_asked=False):
    """Whether a user's settings ask for `beam_search` rather than `generate`.

    Args:
        num_beams: How many continuations are kept.
        sampler: As for `generate`.
        seed: As for `generate`.
        beams_asked: Whether the beams themselves are wanted, even if there is one.

    Raises:
        InputError: There is less than one beam, or a search is asked to sample.
    """
    if num_beams < 1:
        raise InputError(f"`num_beams` must be at least 1. Received: num_beams={num_beams}")
    if num_beams == 1 and not beams_asked:
        return False
    if sampler != "greedy" or seed is not None:
        raise InputError(
            f"Beam search does not sample: give num_beams or a sampler. Received: num_beams={num_beams}, "
            f"sampler={sampler!r}, seed={seed}"
        )
    return True


def beam_search(
    model, prompts, *, max_length, num_beams, length_penalty=1.0, end_id=None, pad_id=None, context=None
):  # fmt: skip
    """Keeps the `num_beams` most likely continuations of each prompt at every step, and the greedy one beside them.

    The greedy continuation may fall out of the beams early and still end up best; because it rides along, the search
    never returns a lower score than greedy decoding. A continuation's score is its log-probability divided by its
    length to the power `length_penalty`; the prompt does not count.

    Args:
        model: As for `generate`.
        prompts: A list of lists of tokens, none empty.
        max_length: Length at which a row ends, its prompt included.
        num_beams: How many continuations are kept.
        length_penalty: 0 prefers short ones, 1 compares by mean log-probability.
        end_id: A continuation is frozen once it has chosen this token.
        pad_id: What fills a row after its end; by default the end token.
        context: As for `generate`.

    Returns:
        Tokens `(B, W, L)`, lengths `(B, W)` and scores `(B, W)`, best first, as NumPy arrays.
    """
    tokens, lengths, prefill = _buffer(model, prompts, max_length, pad_id, end_id)
    context = context or {}
    shapes = tuple((k, v.shape) for k, v in context.items())
    key = ("beam", tokens.shape, shapes, prefill, end_id, pad_id, num_beams, length_penalty)

    def build():
        loop = _beam_loop(model, num_beams, length_penalty, prefill, end_id, pad_id)
        return _compiled(loop, model)

    function = _cached(model, key, build)
    out, ends, scores = function(*_tensors(tokens, lengths, max_length, context))
    return (
        ops.convert_to_numpy(out)[:, :, :max_length],
        ops.convert_to_numpy(ends),
        ops.convert_to_numpy(scores),
    )


def next_tokens(sampler, scores):
    """The tokens `(B,)` that a sampler chooses by the scores `(B, V)` of all.

    Why not by probabilities if it is greedy: softmax goes through all scores twice, and leaves the highest where it is.
    """
    from kerastf.blocks.sampler import Greedy  # this imports keras-nlp, as who made a sampler has done

    if type(sampler) is Greedy:
        return ops.argmax(scores, axis=-1)
    return sampler.get_next_token(sampler.compute_probabilities(scores))


def reordered(state, rows):
    """The state of a batch with its rows in another order.

    Args:
        state: Nested tensors. The first axis of each is the batch, or holds several entries for each row, one row's
            beside each other.
        rows: Integers `(B,)`: where each row comes from.
    """

    def take(leaf):
        each = ops.reshape(leaf, (rows.shape[0], -1, *leaf.shape[1:]))  # (B, entries of a row, ...)
        return ops.reshape(ops.take(each, rows, axis=0), leaf.shape)

    return keras.tree.map_structure(take, state)


def _tensors(tokens, lengths, max_length, context):
    limit = ops.array(max_length, dtype="int32")
    return ops.array(tokens), ops.array(lengths), limit, {k: ops.convert_to_tensor(v) for k, v in context.items()}


def _compiled(loop, model):
    def run(*arguments):
        with compat.rounded(model):
            return loop(*arguments)

    return compat.compiled(run, model)


def _cached(model, key, build):
    """Compiled functions live and die with their model: the last used, and none that knows other weights."""
    functions = vars(model).setdefault("_decoding_functions", {})
    key = (*key, *(id(v) for v in getattr(model, "weights", ())))  # LoRA adds some, and metrics are none
    functions[key] = functions.pop(key, None) or build()  # the last one now
    for old in list(functions)[:-KEPT]:
        del functions[old]
    return functions[key]


def _filler(pad_id, end_id):
    return pad_id if pad_id is not None else end_id if end_id is not None else 0


def _buffer(model, prompts, max_length, pad_id, end_id):
    """Prompts in one array of a bucketed width, their lengths, and how many positions all rows share."""
    lengths = np.array([len(p) for p in prompts], dtype="int32")
    if len(prompts) == 0 or lengths.min() == 0:
        raise InputError(f"Each prompt needs at least one token. Received: prompts of lengths {lengths.tolist()}")
    if max_length < lengths.max():
        raise InputError(
            f"`max_length` counts the prompt too. Received: max_length={max_length}, a prompt of {lengths.max()} tokens"
        )
    limit = getattr(model, "max_length", None)
    if limit is not None and max_length > limit:
        raise InputError(f"This model has {limit} positions. Received: max_length={max_length}")
    width = _width(max_length)
    width = width if limit is None else min(width, limit)
    tokens = np.full((len(prompts), width), _filler(pad_id, end_id), dtype="int32")
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = prompt
    return tokens, lengths, _prefill(int(lengths.min()))


def _width(length):
    """A length that takes few values, so few compilations; what is kept of all of it is read for each token."""
    step = max(32, (1 << (length - 1).bit_length()) // 8)
    return -(-length // step) * step


def _prefill(shortest):
    """How much of the prompts goes in one pass; few values, so few compilations. The loop takes the rest."""
    return shortest // 64 * 64 if shortest >= 64 else 1 << (shortest.bit_length() - 1)


def _without_padding(scores, pad_id, end_id):
    """Scores `(.., V)` that leave padding no chance; where it doubles as the end token, it stays."""
    if pad_id is None or pad_id == end_id:
        return scores
    return ops.where(ops.arange(scores.shape[-1]) == pad_id, ops.cast(NEGATIVE, scores.dtype), scores)


def _sampling_loop(model, sampler, count, prefill, end_id, pad_id):
    filler = _filler(pad_id, end_id)

    def run(tokens, lengths, limit, context, seeds):
        batch, width = tokens.shape
        state = model.init_state(batch, width, **context)
        store = {}
        with halves.read(store, making=True):
            logits, state = model.step(tokens[:, :prefill], state, 0)  # (B, V)
        ends = ops.broadcast_to(limit, (batch,))
        done = ops.arange(batch) >= count

        def unfinished(index, tokens, logits, state, done, ends, seeds):
            return ops.logical_and(index < limit, ops.logical_not(ops.all(done)))

        def advance(index, tokens, logits, state, done, ends, seeds):
            with keras.StatelessScope(zip(sampler.variables, seeds, strict=True)) as scope:
                scores = _without_padding(ops.cast(logits, "float32"), pad_id, end_id)
                chosen = next_tokens(sampler, scores)  # (B,)
            seeds = [scope.get_current_value(v) for v in sampler.variables]
            given = index < lengths
            chosen = ops.where(done, filler, ops.cast(chosen, "int32"))
            chosen = ops.where(given, ops.take(tokens, index, axis=1), chosen)
            tokens = ops.slice_update(tokens, (0, index), chosen[:, None])
            if end_id is not None:
                ended = ops.logical_and(ops.logical_not(ops.logical_or(given, done)), chosen == end_id)
                ends = ops.where(ended, index + 1, ends)
                done = ops.logical_or(done, ended)
            with halves.read(store, making=False):
                logits, state = model.step(chosen[:, None], state, index)
            return index + 1, tokens, logits, state, done, ends, seeds

        start = (ops.array(prefill, dtype="int32"), tokens, logits, state, done, ends, seeds)
        _, tokens, _, _, _, ends, _ = ops.while_loop(unfinished, advance, start)
        return tokens, ends

    return run


def _beam_loop(model, search, length_penalty, prefill, end_id, pad_id):
    filler = _filler(pad_id, end_id)
    beams = search + (search > 1)  # W: the searched ones, then the greedy one; a single beam is greedy itself

    def run(tokens, lengths, limit, context):
        batch, width = tokens.shape
        rows = ops.arange(batch * beams, dtype="int32") // beams * beams  # first row of each row's group, (B W,)
        tokens = ops.repeat(tokens, beams, axis=0)  # (B W, L)
        lengths = ops.repeat(lengths[:, None], beams, axis=1)  # (B, W)
        context = {name: ops.repeat(value, beams, axis=0) for name, value in context.items()}
        state = model.init_state(batch * beams, width, **context)
        store = {}
        with halves.read(store, making=True):
            logits, state = model.step(tokens[:, :prefill], state, 0)  # (B W, V)
        vocab = logits.shape[-1]
        # All beams of a row start alike, so only the first may be extended at first, and the greedy one by itself.
        number = ops.arange(beams)
        alive = ops.logical_or(number == 0, number >= search)
        scores = ops.where(alive, 0.0, NEGATIVE) * ops.ones((batch, 1))  # (B, W)
        done = ops.zeros((batch, beams), dtype="bool")
        ends = ops.broadcast_to(limit, (batch, beams))
        frozen = ops.where(ops.arange(vocab) == filler, 0.0, NEGATIVE)  # a finished beam goes on with padding, free

        def unfinished(index, tokens, logits, state, scores, done, ends):
            return ops.logical_and(index < limit, ops.logical_not(ops.all(done)))

        def advance(index, tokens, logits, state, scores, done, ends):
            logs = _without_padding(ops.log_softmax(ops.cast(logits, "float32"), axis=-1), pad_id, end_id)
            logs = ops.where(done[..., None], frozen, ops.reshape(logs, (batch, beams, vocab)))  # (B, W, V)
            total = scores[..., None] + logs
            best, flat = ops.top_k(ops.reshape(total[:, :search], (batch, search * vocab)), search)
            own, greedy = ops.top_k(total[:, search:], 1)  # the greedy beam extends itself alone
            best = ops.concatenate([best, own[..., 0]], axis=1)  # (B, W)
            flat = ops.concatenate([flat, search * vocab + greedy[..., 0]], axis=1)
            given = index < lengths  # (B, W), alike within a row
            parent = ops.where(given, ops.arange(beams, dtype="int32"), ops.cast(flat // vocab, "int32"))
            old = ops.reshape(ops.take(tokens, index, axis=1), (batch, beams))
            chosen = ops.where(given, old, ops.cast(flat % vocab, "int32"))
            scores = ops.where(given, scores, ops.maximum(best, NEGATIVE))
            done = ops.take_along_axis(done, parent, axis=1)
            ends = ops.take_along_axis(ends, parent, axis=1)
            if end_id is not None:
                ended = ops.logical_and(ops.logical_not(ops.logical_or(given, done)), chosen == end_id)
                ends = ops.where(ended, index + 1, ends)
                done = ops.logical_or(done, ended)
            source = rows + ops.reshape(parent, (-1,))  # (B W,)
            tokens = ops.take(tokens, source, axis=0)
            chosen = ops.reshape(chosen, (-1, 1))
            tokens = ops.slice_update(tokens, (0, index), chosen)
            state = reordered(state, source)
            with halves.read(store, making=False):
                logits, state = model.step(chosen, state, index)
            return index + 1, tokens, logits, state, scores, done, ends

        start = (ops.array(prefill, dtype="int32"), tokens, logits, state, scores, done, ends)
        _, tokens, _, _, scores, _, ends = ops.while_loop(unfinished, advance, start)
        made = ops.cast(ops.maximum(ends - lengths, 1), "float32")
        scores = scores / made**length_penalty
        tokens = ops.reshape(tokens, (batch, beams, width))
        if beams > search:  # the greedy one counts only where the search did not find it too
            same = ops.all(tokens[:, :search] == tokens[:, search:], axis=-1)  # (B, W - 1)
            twice = ops.logical_and(ops.any(same, axis=1)[:, None], number >= search)
            scores = ops.where(twice, NEGATIVE, scores)
        order = ops.argsort(-scores, axis=1)[:, :search]  # best first
        tokens = ops.take_along_axis(tokens, order[..., None], axis=1)
        return tokens, ops.take_along_axis(ends, order, axis=1), ops.take_along_axis(scores, order, axis=1)

    return run
