"""Models for other programs: a folder of Hugging Face, and the formats that Keras exports itself."""

import importlib.util
import mmap
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

from kerastf import compat, functional
from kerastf.checkpoint import appearing
from kerastf.errors import ConfigError, PluginError

FORMATS = {"savedmodel": ("tf_saved_model", ""), "onnx": ("onnx", ".onnx"), "litert": ("litert", ".tflite")}
EXTRAS = {"onnx": ("onnx", "tf2onnx")}


def export(model: Any, path: "str | Path", to: str, *, type: str | None = None) -> Path:
    """Writes a model for another program.

    Args:
        model: A model of ours.
        path: The folder (`hf`, `savedmodel`) or the file (`onnx`, `litert`), which must not exist.
        to: `"hf"`, `"savedmodel"`, `"onnx"` or `"litert"`. The last three take what `model(...)` takes and give what it
            gives, without the tokenizer. An ONNX file is tried once, where onnxruntime is installed; a LiteRT file of a
            model of images, or of a recurrent one, takes one row at a time.
        type: For `hf`: the type of model there, such as `"roberta"`; None for the first that fits.

    Returns:
        The path.

    Raises:
        ConfigError: The format is not known, the path exists, or the model does not fit the format.
    """
    from kerastf import convert

    path = Path(path)
    if to not in ("hf", *FORMATS):
        raise ConfigError(f"A model is exported to hf, {', '.join(FORMATS)}. Received: to={to!r}")
    if path.exists():
        raise ConfigError(f"The path exists; export to another one. Received: {str(path)!r}")
    if to == "hf":
        convert.save(model, path, type=type)
        return path
    missing = [m for m in EXTRAS.get(to, ()) if importlib.util.find_spec(m) is None]
    if missing:
        raise PluginError(f"To export to {to}, install {' and '.join(missing)}: pip install 'kerastf[onnx]'")
    kind, suffix = FORMATS[to]
    if suffix and path.suffix != suffix:
        raise ConfigError(f"A file of {to} ends in {suffix}. Received: {str(path)!r}")
    inputs = model.example_inputs(model.options, 2, 4, np.random.default_rng(0))
    inputs = next(iter(inputs.values())) if len(inputs) == 1 else inputs
    want = model(inputs)  # Keras exports to ONNX only what was called before
    with appearing(path) as temporary:
        with compat.writing(temporary, path):
            if to == "litert":
                _write_litert(model, temporary)
            else:
                model.export(str(temporary), format=kind, verbose=False)
        if to == "onnx" and importlib.util.find_spec("onnxruntime") is not None:
            _try(temporary, inputs, want)
    return path


def _write_litert(model, path):
    """Any number of rows at a time where LiteRT's own operations can do that, else one; refused where they cannot."""
    one = keras.tree.map_structure(
        lambda i: keras.InputSpec(shape=(1, *i.shape[1:]), dtype=i.dtype, name=i.name), model.input
    )
    # Of images LiteRT's fast kernels cannot take any number.
    images = all(n is not None for i in keras.tree.flatten(model.input) for n in i.shape[1:])
    for signature in (one,) if images else (None, one):
        with functional.plain_activations():  # LiteRT knows GELU as Keras writes it
            known = {} if signature is None else {"input_signature": [signature]}
            model.export(str(path), format="litert", verbose=False, **known)
        foreign = _foreign(path)
        if not foreign:
            return
        path.unlink()
    raise ConfigError(f"This model cannot be written as LiteRT, which does not have {', '.join(foreign)}.")


def _foreign(path):
    """Names of TensorFlow's operations that a LiteRT file asks for: the runtime alone cannot run them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return sorted({name.decode() for name in re.findall(rb"\0Flex([A-Z][A-Za-z0-9]{2,60})(?=\0)", data)})


def _try(path, inputs, want):
    """Runs an ONNX file once: a graph may be written that no program can run."""
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path))
        names = [i.name for i in session.get_inputs()]
        found = session.run(None, dict(zip(names, keras.tree.flatten(inputs), strict=True)))
        gap = float(np.max(np.abs(found[0] - ops.convert_to_numpy(keras.tree.flatten(want)[0]))))
    except Exception as error:  # onnxruntime's errors have no base of their own
        reason = str(error).splitlines()[0][:200]
        raise ConfigError(f"This model cannot be written as ONNX: the file does not run ({reason}).") from None
    if not gap < 1e-3:
        raise ConfigError(f"This model cannot be written as ONNX: the file gives other results, by {gap:.2g}.")
