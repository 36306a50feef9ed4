"""What a run would be: the recipe as resolved, its parameters and an estimate of its memory; nothing is trained."""

import contextlib
import math

import keras
import numpy as np

from kerastf import compat
from kerastf.counting import cost, in_units
from kerastf.errors import InputError
from kerastf.training.assemble import build, load_data, load_start, precision
from kerastf.training.recipe import make_optimizer, read

SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dry_run(source, settings=()) -> str:
    """The resolved recipe, how many parameters it trains and how much memory that needs, as a text.

    Args:
        source: A recipe, a model's name or a mapping, as for `train`.
        settings: Texts such as `"training.steps=500"`.
    """
    recipe = read(source, settings)
    with precision(recipe.training["precision"]):
        base = load_start(recipe)
        found = load_data(recipe, base)
        with contextlib.nullcontext() if base is not None else compat.without_allocation():
            model = build(recipe, found, base)
    weights, trained = model.weights, model.trainable_variables
    state = round(_state_per_weight(recipe) * sum(map(_bytes, trained)))
    lines = [
        recipe.to_toml(),
        f"# parameters   {_count(weights):,}, of which {_count(trained):,} are trained",
        f"# weights      {_show(sum(map(_bytes, weights)))}",
        f"# gradients    {_show(sum(map(_bytes, trained)))}",
        f"# optimizer    {_show(state)}",
        f"# activations  {_activations(model, recipe)}",
    ]
    return "\n".join(lines)


def _activations(model, recipe):
    """What a batch leaves for the way back, in words: the outputs of all layers, counted."""
    try:
        found = cost(model, batch_size=recipe.data["batch_size"], length=recipe.data.get("length"))
    except InputError as error:
        return f"not counted: {error}"
    return f"{_show(found.activation_bytes)} for a batch; {in_units(3 * found.flops)}FLOPs a step"


def _state_per_weight(recipe):
    """How many numbers the optimizer keeps for each weight: counted on a small matrix."""
    optimizer, matrix = make_optimizer(recipe.tables), keras.Variable(np.zeros((64, 64), "float32"))
    optimizer.build([matrix])
    return sum(_count([v]) for v in optimizer.variables if len(v.shape)) / _count([matrix])


def _count(variables):
    return sum(math.prod(v.shape) for v in variables)


def _bytes(variable):
    return math.prod(variable.shape) * SIZES.get(variable.dtype, 4)


def _show(size):
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e3:.1f} kB"
