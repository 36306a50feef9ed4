"""What can be done with the folder of a run: evaluate its model on data, and ask it about new inputs."""

from pathlib import Path

import numpy as np
from keras import ops

from kerastf.checkpoint import load_model
from kerastf.data.loading import task_options
from kerastf.data.pictures import ImageFiles
from kerastf.errors import ConfigError
from kerastf.training.assemble import load_data
from kerastf.training.folder import RunFolder
from kerastf.training.recipe import Recipe


def load_run(path, which="best"):
    """The recipe and the model of a run.

    Args:
        path: The folder of the run.
        which: `"best"` or `"last"`.
    """
    folder = RunFolder(path)
    recipe = folder.recipe()
    return recipe, load_model(folder.model_path(which), compile=False)


def evaluate(path, *, source=None, which="best", batch_size=None):
    """Measures the model of a run.

    Args:
        path: The folder of the run.
        source: Data other than the run's, such as a file; the whole of it is read.
        which: `"best"` or `"last"`.
        batch_size: How many rows at a time; by default as in training.

    Returns:
        By part (`"valid"`, `"test"`, or `"data"` for another source): the metrics by name.
    """
    recipe, model = load_run(path, which)
    model.compile()
    changes = {"batch_size": batch_size} if batch_size else {}
    if source is not None:
        names = RunFolder(path).read_json("labels.json", list)  # the numbers of classes are the run's, not the file's
        recipe = _about(recipe, str(source), **({"classes": names} if names else {}))
    found = load_data(Recipe({**recipe.tables, "data": {**recipe.data, **changes}}, recipe.name), model)
    parts = {"data": found.train} if source is not None else {"valid": found.valid, "test": found.test}
    return {
        part: {k: float(v) for k, v in model.evaluate(feed.once(), verbose=0, return_dict=True).items()}
        for part, feed in parts.items() if feed is not None
    }  # fmt: skip


def predict(path, inputs, *, which="best", k=3):
    """Asks the model of a run about new inputs.

    Args:
        path: The folder of the run.
        inputs: Texts, or paths of images or `.npy` files for a model of images.
        which: `"best"` or `"last"`.
        k: How many answers of each kind, likeliest first; at least 1.

    Returns:
        One dict per input: `label` and `probabilities` (classes), `tags` (tagging), `target` (translation), `next`
        (language models), `masks` (a text with `[MASK]`), `nearest` (word vectors).
    """
    if k < 1:
        raise ConfigError(f"`k` must be at least 1. Received: k={k}")
    recipe, model = load_run(path, which)
    task = recipe.data["task"]
    if task not in PREDICTORS:
        raise ConfigError(f"A run of the task `{task}` predicts nothing by itself: use its model in Python.")
    return PREDICTORS[task](model, list(inputs), RunFolder(path), recipe, k)


def _about(recipe, source, **changes):
    """The recipe with other data, all of which is one part; options of its old source are left out."""
    known = {"task", *task_options(recipe.data["task"])}
    kept = {k: v for k, v in recipe.data.items() if k in known}
    return Recipe({**recipe.tables, "data": {**kept, "source": source, "valid": 0.0, **changes}}, recipe.name)


def _ranked(logits, labels, k):
    scores = np.exp(logits - logits.max())
    scores = scores / scores.sum()
    best = np.argsort(-scores)[:k]
    names = [labels[i] if labels else int(i) for i in best]
    chances = {str(n): round(float(scores[i]), 4) for n, i in zip(names, best, strict=True)}
    return {"label": names[0], "probabilities": chances}


def _classes(model, texts, folder, recipe, k):
    names = folder.read_json("labels.json", list)
    records = [{"text": t, "label": names[0] if names else 0} for t in texts]  # the label is not looked at
    found = load_data(_about(recipe, records, batch_size=1, **({"classes": names} if names else {})), model)
    logits = ops.convert_to_numpy(model.predict(found.train.once(), verbose=0)).astype("float64")
    return [{"input": t, **_ranked(row, names, k)} for t, row in zip(texts, logits, strict=True)]


def _images(model, paths, folder, recipe, k):
    labels = folder.read_json("labels.json", list)
    height, width, channels = model.input_shape[1:]
    images = ImageFiles([Path(p) for p in paths], (height, width), channels)
    logits = ops.convert_to_numpy(model.predict(images[range(len(paths))], verbose=0)).astype("float64")
    return [{"input": str(p), **_ranked(row, labels, k)} for p, row in zip(paths, logits, strict=True)]


def _translations(model, texts, folder, recipe, k):
    return [{"input": t, "target": model.generate(t)} for t in texts]


def _language(model, texts, folder, recipe, k):
    return [{"input": t, "next": [[n, round(p, 4)] for n, p in model.next_tokens(t, k=k)]} for t in texts]


def _masks(model, texts, folder, recipe, k):
    return [{"input": t, "masks": [[[n, round(p, 4)] for n, p in m] for m in model.fill_mask(t, k=k)]} for t in texts]


def _neighbours(model, words, folder, recipe, k):
    return [{"input": w, "nearest": [[n, round(p, 4)] for n, p in model.nearest(w, k=k)]} for w in words]


PREDICTORS = {
    "classification": _classes, "images": _images, "translation": _translations, "language": _language,
    "masked": _masks, "masked_pairs": _masks, "word_vectors": _neighbours,
}  # fmt: skip
