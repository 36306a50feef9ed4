"""Reads the files that the authors of ELMo published: `options.json` and `weights.hdf5`.

The layout is data: `names` says for each of their tensors which weight of ours it is, and how it is rewritten.
Shapes: C channels of a direction, U units.
"""

from pathlib import Path

import numpy as np

from kerastf import config, text
from kerastf.errors import FileFormatError

CELL = "RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/"


def gates(tensor):
    """Their order of gates along the last axis, i, g, f, o, as ours: i, f, g, o."""
    i, g, f, o = np.split(tensor, 4, axis=-1)
    return np.concatenate([i, f, g, o], axis=-1)


def forget_more(bias):
    """Their program adds 1 to the forget gate whenever it runs; here it is in the bias."""
    i, f, g, o = np.split(gates(bias), 4)
    return np.concatenate([i, f + 1, g, o])


def names(model):
    """Their tensors as ours.

    Args:
        model: An `elmo` that reads characters.

    Returns:
        By path of our weight: the name of their tensor, its shape there, and a function that rewrites it.
    """
    cnn, dim, units = model.embedding, model.options["dim"], model.options["units"]

    def same(tensor):
        return tensor

    total = sum(count for _, count in cnn.filters)
    found = {"embedding/matrix": ("char_embed", (cnn.num_characters, cnn.character_dim), same)}
    for i, (width, count) in enumerate(cnn.filters):
        shape = (1, width, cnn.character_dim, count)
        found[f"embedding/filter_{i}/kernel"] = (f"CNN/W_cnn_{i}", shape, lambda tensor: tensor[0])
        found[f"embedding/filter_{i}/bias"] = (f"CNN/b_cnn_{i}", (count,), same)
    for i in range(cnn.num_highway):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            found[f"embedding/highway_{i}/{ours}/kernel"] = (f"CNN_high_{i}/W_{theirs}", (total, total), same)
            found[f"embedding/highway_{i}/{ours}/bias"] = (f"CNN_high_{i}/b_{theirs}", (total,), same)
    if total != dim:
        found["embedding/project/kernel"] = ("CNN_proj/W_proj", (total, dim), same)
        found["embedding/project/bias"] = ("CNN_proj/b_proj", (dim,), same)
    for number, direction in enumerate(("forwards", "backwards")):
        for i in range(model.options["num_layers"]):
            ours, theirs = f"{direction}_{i}/cell/", CELL.format(direction=number, layer=i)
            # One kernel for the input and the last output, one above the other.
            both = (2 * dim, 4 * units)
            found[ours + "kernel"] = (theirs + "W_0", both, lambda tensor: gates(tensor[:dim]))
            found[ours + "recurrent_kernel"] = (theirs + "W_0", both, lambda tensor: gates(tensor[dim:]))
            found[ours + "bias"] = (theirs + "B", (4 * units,), forget_more)
            found[ours + "projection_kernel"] = (theirs + "W_P_0", (units, dim), same)
    return found


def read_options(path):
    """The options of an `elmo` from their `options.json`.

    Args:
        path: The file.

    Returns:
        Options for `create_model("elmo", ...)`.
    """
    given = config.read_config(Path(path))
    try:
        lstm, cnn = given["lstm"], given["char_cnn"]
        return {
            "dim": lstm["projection_dim"],
            "units": lstm["dim"],
            "num_layers": lstm["n_layers"],
            "residual": lstm["use_skip_connections"],
            "cell_clip": lstm["cell_clip"],
            "projection_clip": lstm["proj_clip"],
            "embedding": {
                "name": "character_cnn",
                "filters": cnn["filters"],
                "character_dim": cnn["embedding"]["dim"],
                "num_highway": cnn["n_highway"],
                "activation": cnn["activation"],
                "max_characters": cnn["max_characters_per_token"],
                # They count the 0 that stands for no character, which needs no vector.
                "num_characters": cnn["n_characters"] - 1,
            },
        }
    except (KeyError, TypeError) as error:
        raise FileFormatError(
            f"{Path(path).name} is not the options of a two-direction language model over characters: it lacks {error}."
        ) from None


def load(options, weights, **more):
    """An `elmo` with the weights of a file in the original layout.

    The published files hold no softmax, so the head is `features` unless another is asked for.

    Args:
        options: Path of `options.json`.
        weights: Path of `weights.hdf5`.
        **more: Further options of the model, such as `head`.

    Returns:
        The model, with a tokenizer that reads any word.

    Raises:
        FileFormatError: A file is not what it should be; all tensors that are missing or of another shape are named.
    """
    found = read_options(options)
    tokenizer = text.WordCharacterTokenizer(max_characters=found["embedding"]["max_characters"])
    if "vocab_size" not in more:
        more = {"tokenizer": tokenizer, **more}
    model = config.build_model("elmo", **{"head": "features", **found, **more})
    fill(model, weights)
    return model


def fill(model, weights):
    """Puts the weights of a file in the original layout into an `elmo`; those of the mix and the head stay."""
    import h5py

    path = Path(weights)
    if not path.is_file():
        raise FileFormatError(f"There is no file {path}. Received: weights={str(weights)!r}")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise FileFormatError(f"{path.name} is not an HDF5 file that can be read ({error}).") from None
    with file:
        wanted = names(model)
        problems, tensors = [], {}
        for name, shape, _ in wanted.values():
            have = _own(file, name, path)
            if have is None:
                problems.append(f"{name} is missing")
            elif have.shape != shape:
                problems.append(f"{name} has shape {have.shape}, not {shape}")
            else:
                tensors[name] = have
        if problems:
            listed = "; ".join(dict.fromkeys(problems))
            raise FileFormatError(f"{path.name} does not fit the options: {listed}.")
        by_path = {w.path: w for w in model.weights}
        for ours, (name, _, rewrite) in wanted.items():
            by_path[ours].assign(rewrite(np.asarray(tensors[name])))


def _own(file, name, path):
    """A dataset whose numbers lie in the file itself; None where there is none of that name.

    A stranger's file may point to any other that can be read here, and its content would become weights.
    """
    import h5py

    found = file
    for step in name.split("/"):
        here = step.encode()
        if not isinstance(found, h5py.Group) or not found.id.links.exists(here):
            return None
        if found.id.links.get_info(here).type != h5py.h5l.TYPE_HARD:  # not followed, as `in` would follow it
            raise FileFormatError(f"{path.name}: {name} is a link to somewhere else. It is refused.")
        found = found[step]
    if not isinstance(found, h5py.Dataset):
        return None
    if found.external or found.is_virtual:
        raise FileFormatError(f"{path.name}: {name} is kept in another file. It is refused.")
    if found.dtype.kind != "f":
        raise FileFormatError(f"{path.name}: {name} holds {found.dtype}, not numbers with a fraction.")
    return found
