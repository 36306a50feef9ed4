"""Checks of models: what the blocks promise must hold of the whole, and it must train and generate."""

import keras
import numpy as np
from keras import ops

from kerastf import config
from kerastf.testing.generic import TOLERANCE
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.sequences import _require_no_leak
from kerastf.testing.subjects import LENGTH, difference, numpy

# Logits may be thousands large (a model without norms). Above 10 the last digits of float32 are more than TOLERANCE.
ROUNDING = 8 * float(np.finfo("float32").eps)


def _decodable(subject, model):
    if not hasattr(model, "step"):
        raise NotAsked("it does not decode")


def _answers_everywhere(model):
    if keras.tree.is_nested(model.output) or len(model.output.shape) < 3:
        raise NotAsked(f"its head `{model.head.registry_entry.id}` has no answer for every position")


@check("causal", ("model",), "no output sees a later token")
def causal(subject):
    model = subject.make()
    _decodable(subject, model)
    inputs = subject.inputs()

    def run(tokens):
        return numpy(subject.call(model, {**inputs, subject.written: tokens}))

    _require_no_leak(inputs[subject.written], run, False, 3, subject.options["vocab_size"])


@check("padding", ("model",), "padding never changes real positions")
def padding(subject):
    if "pad_id" not in config.options_of(subject.cls):
        raise NotAsked("it has no padding")
    model = subject.make(pad_id=0)
    inputs = subject.inputs()
    padded = {name: np.pad(a, [(0, 0), (0, 3)] + [(0, 0)] * (a.ndim - 2)) for name, a in inputs.items()}
    pairs = [keras.tree.flatten(subject.raw(model, given)) for given in (padded, inputs)]
    for long, short in zip(*pairs, strict=True):
        gap = difference(long if len(short.shape) < 3 else long[:, : short.shape[1]], short)
        if gap > TOLERANCE:
            raise Broken(f"padding on the right changed real positions by {gap:.2g}")
    for name in inputs:  # a row of nothing but padding has no right answer, but it must not spoil the batch
        empty = {**inputs, name: np.zeros_like(inputs[name])}
        if not np.all(np.isfinite(numpy(subject.call(model, empty)))):
            raise Broken(f"a {name} that is all padding gives an output that is not finite")


@check("source", ("model",), "the output depends on the source")
def source(subject):
    if "source" not in subject.inputs():
        raise NotAsked("it has no source")
    model = subject.make()
    inputs = subject.inputs()
    other = {**inputs, "source": np.roll(inputs["source"], 1, axis=0)}
    if difference(subject.call(model, inputs), subject.call(model, other)) < TOLERANCE:
        raise Broken("another source gives the same output")


@check("steps", ("model",), "step by step equals the whole")
def steps(subject):
    _decodable(subject, subject.cls)
    model = subject.make(pad_id=0)
    _answers_everywhere(model)
    inputs = subject.inputs()
    if "source" in inputs:  # of different lengths
        inputs["source"] = inputs["source"] * (np.arange(LENGTH + 1) < np.array([[LENGTH + 1], [3], [1]]))
    tokens = inputs[subject.written]
    want = numpy(subject.call(model, inputs))
    bound = max(TOLERANCE, ROUNDING * float(np.max(np.abs(want))))
    for prompt in (1, 3):
        state = model.init_state(tokens.shape[0], LENGTH, **subject.context(inputs))
        logits, state = model.step(ops.convert_to_tensor(tokens[:, :prompt]), state, 0)
        for t in range(prompt, LENGTH + 1):
            gap = difference(logits, want[:, t - 1])
            if gap > bound:
                raise Broken(f"after {t} tokens the step's logits differ from the whole's by {gap:.2g}")
            if t < LENGTH:
                token = ops.convert_to_tensor(tokens[:, t : t + 1])
                logits, state = model.step(token, state, ops.array(t, dtype="int32"))


@check("generate", ("model",), "generate chooses what the whole model finds likeliest, for ragged prompts and sources")
def generate(subject):
    _decodable(subject, subject.cls)
    if subject.cls.writes != "tokens":
        raise NotAsked(f"it writes {subject.cls.writes}, not tokens")
    model = subject.make(pad_id=0)
    if "decode" not in model.head.supports:  # `generate` refuses such a head
        raise NotAsked(f"its head `{model.head.registry_entry.id}` does not decode")
    inputs = subject.inputs()
    longest = subject.options.get("max_length", 12)
    rows = [row[:n].tolist() for row, n in zip(next(iter(inputs.values())), (1, 4, 2), strict=True)]
    if "source" in inputs:
        start, end = (subject.options[n] for n in ("start_id", "end_id"))
        prompts, sources = [[start]] * 3, rows
        written = [[start, *row] for row in model.generate(rows, max_length=longest - 1)]
        written = [[*row, end] if len(row) < longest else row for row in written]  # a text ends before its end token
    else:
        end, prompts, sources = None, rows, None
        written = model.generate(rows, max_length=longest).tolist()
    for number, (row, prompt) in enumerate(zip(written, prompts, strict=True)):
        given = len(prompt)
        ends = len(row) == longest or (len(row) < longest and row[-1] == end)
        if row[:given] != prompt or end in row[given:-1] or not ends:
            raise Broken(f"row {number}: after {prompt} generate gives {row}, which is no whole row of {longest}")
        want = prompt + _likeliest(model, row, sources and sources[number])[given - 1 : -1]
        if row != want:
            raise Broken(f"row {number}: generate gives {row}, and without a state the likeliest were {want}")


def _likeliest(model, row, source):
    """The likeliest token after each of a row's, by one call of the whole model, which no later token may sway."""
    tokens = ops.array([row], dtype="int32")
    logits = numpy(model(tokens if source is None else {"source": ops.array([source]), "target": tokens}))[0].copy()
    logits[:, 0] = -np.inf  # padding is never chosen
    return np.argmax(logits, axis=-1).tolist()


@check("fit", ("model",), "compile and fit need no further argument, and the loss falls")
def fit(subject):
    model = subject.make()
    inputs = subject.inputs(batch=8)
    targets = model.example_targets(inputs, np.random.default_rng(3))
    if targets is None:
        raise NotAsked("its head has no loss of its own")
    model.compile("adamw")
    x = inputs if len(inputs) > 1 else next(iter(inputs.values()))
    # Measured without dropout, whose noise is larger than what a few steps gain.
    before = model.evaluate(x, targets, batch_size=8, verbose=0, return_dict=True)["loss"]
    model.fit(x, targets, epochs=16, batch_size=8, verbose=0)
    after = model.evaluate(x, targets, batch_size=8, verbose=0, return_dict=True)["loss"]
    if not np.isfinite(after) or after >= before:
        raise Broken(f"over 16 steps on one batch the loss went from {before:.4g} to {after:.4g}")
