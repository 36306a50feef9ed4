"""Checks of models: what the blocks promise must hold of the whole, and it must train and generate."""

import numpy as np
from keras import ops

from kerastf.testing.generic import TOLERANCE
from kerastf.testing.report import Broken, NotAsked, check
from kerastf.testing.sequences import _require_no_leak
from kerastf.testing.subjects import LENGTH, difference, numpy


def reference_generate(model, prompts, max_length, end_id=None):
    """The slow, obvious greedy loop: one row at a time, the whole sequence again for every token, no state.

    Returns:
        A list of lists of tokens.
    """
    rows = []
    for prompt in prompts:
        row = list(prompt)
        while len(row) < max_length:
            logits = numpy(model(ops.array([row], dtype="int32")))[0, -1]
            row.append(int(np.argmax(logits)))
            if row[-1] == end_id:
                break
        rows.append(row)
    return rows


def _decodable(subject, model):
    if not hasattr(model, "step"):
        raise NotAsked("it does not decode")


@check("causal", ("model",), "no output sees a later token")
def causal(subject):
    model = subject.make()
    _decodable(subject, model)
    tokens = subject.inputs()["tokens"]
    size = subject.options["vocab_size"]
    _require_no_leak(tokens, lambda t: numpy(model(ops.convert_to_tensor(t))), False, 1, size)


@check("padding", ("model",), "padding never changes real positions")
def padding(subject):
    model = subject.make(pad_id=0)
    tokens = subject.inputs()["tokens"]
    padded = np.pad(tokens, ((0, 0), (0, 3)))
    gap = difference(numpy(model(ops.convert_to_tensor(padded)))[:, :LENGTH], model(ops.convert_to_tensor(tokens)))
    if gap > TOLERANCE:
        raise Broken(f"padding on the right changed real positions by {gap:.2g}")


@check("steps", ("model",), "step by step equals the whole")
def steps(subject):
    model = subject.make()
    _decodable(subject, model)
    tokens = subject.inputs()["tokens"]
    want = numpy(model(ops.convert_to_tensor(tokens)))
    for prompt in (1, 3):
        state = model.init_state(tokens.shape[0], LENGTH)
        logits, state = model.step(ops.convert_to_tensor(tokens[:, :prompt]), state, 0)
        for t in range(prompt, LENGTH + 1):
            gap = difference(logits, want[:, t - 1])
            if gap > TOLERANCE:
                raise Broken(f"after {t} tokens the step's logits differ from the whole's by {gap:.2g}")
            if t < LENGTH:
                token = ops.convert_to_tensor(tokens[:, t : t + 1])
                logits, state = model.step(token, state, ops.array(t, dtype="int32"))


@check("generate", ("model",), "generate equals the slow loop without state, for ragged prompts")
def generate(subject):
    model = subject.make()
    _decodable(subject, model)
    tokens = subject.inputs()["tokens"]
    prompts = [row[:n].tolist() for row, n in zip(tokens, (1, 4, 2), strict=True)]
    longest = subject.options.get("max_length", 12)
    want = reference_generate(model, prompts, longest)
    got = model.generate(prompts, max_length=longest).tolist()
    for row, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            raise Broken(f"row {row}: generate gives {a}, the slow loop {b}")


@check("fit", ("model",), "compile and fit need no further argument, and the loss falls")
def fit(subject):
    model = subject.make()
    model.compile("adamw")
    tokens = subject.inputs(batch=8)["tokens"]
    history = model.fit(tokens[:, :-1], tokens[:, 1:], epochs=8, batch_size=8, verbose=0).history["loss"]
    if not np.all(np.isfinite(history)) or history[-1] >= history[0]:
        raise Broken(f"over 8 steps on one batch the loss went from {history[0]:.4g} to {history[-1]:.4g}")
