"""kerastf's programs: the models by name, everything else by default."""

import kerastf
from peers import data
from peers.keras_loop import Training, Writing


def create(case, settings):
    """The program of a case."""
    family, sizes = case["family"], dict(case["sizes"])
    sizes.pop("masked", None)
    if family == "bert":
        sizes["head"] = "masked_language_model"
    if family == "seq2seq":  # one direction, as in the tutorial
        sizes |= {"cell": "gru", "attention": "bahdanau", "bidirectional": False}
    if family in ("transformer", "seq2seq"):
        sizes |= {"start_id": 1, "end_id": 2, "label_smoothing": 0.0}
    model = kerastf.create_model(family, **sizes, dropout=case["dropout"], dtype=case["dtype"])
    if case["kind"] == "generate":
        prompt, length = data.prompts(case), case["length"] + case["new"]
        return Writing(lambda: model.generate(prompt, max_length=length))
    model.compile("adamw")
    return Training(model, case, PAIRS[family])


def _named(*names, **renamed):
    renamed = {**{n: n for n in names}, **renamed}
    return lambda arrays: ({new: arrays[old] for new, old in renamed.items()}, arrays["labels"])


PAIRS = {
    "gpt": lambda arrays: (arrays["tokens"], arrays["labels"]),
    "bert": _named("tokens", "segments", masked_positions="positions"),
    "vit": lambda arrays: (arrays["images"], arrays["labels"]),
    "transformer": _named("source", "target"),
    "seq2seq": _named("source", "target"),
}
