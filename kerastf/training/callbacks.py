"""Keras's callbacks in a recipe: which have a place in a run, with which options, and what they keep over a stop."""

import importlib.util
import inspect
import numbers
from collections.abc import Mapping

from kerastf.registry import did_you_mean, nearest
from kerastf.schema import short

# Callbacks of Keras that have no place in a recipe, and why.
NOT_CALLBACKS = {
    "Callback": "it does nothing by itself",
    "CallbackList": "it does nothing by itself",
    "History": "metrics.jsonl keeps what was measured",
    "ProgbarLogger": "a run shows its progress itself",
    "BackupAndRestore": "a run goes on from its own checkpoints",
    "TerminateOnNaN": "a run stops by itself where the loss is no number",
    "SwapEMAWeights": "`average` of [optimizer] does that",
    "LearningRateScheduler": "it needs a function; [schedule] moves the rate",
    "LambdaCallback": "it needs functions",
    "RemoteMonitor": "it sends data away",
}
# A run calls them at evaluations. Options that ask for more would silently do nothing, or be lost with a stop: by
# callback and option, the value that it may have, and why.
FIXED_OPTIONS = {
    "CSVLogger": {"append": (True, "a run that goes on would begin the file anew")},
    "EarlyStopping": {"restore_best_weights": (False, "best.keras holds the best weights")},
    "ModelCheckpoint": {"save_freq": ("epoch", "it saves at evaluations")},
    "OrbaxCheckpoint": {"save_freq": ("epoch", "it saves at evaluations")},
    "TensorBoard": {
        "update_freq": ("epoch", "it writes at evaluations"),
        "profile_batch": (0, "it is called at evaluations"),
    },
}


def check_callbacks(given, problems):
    """The callbacks of a recipe as plain tables; what is wrong with them is noted."""
    import keras

    known = [
        n for n in dir(keras.callbacks) if isinstance(getattr(keras.callbacks, n), type) and n not in NOT_CALLBACKS
    ]
    for spec in given if isinstance(given, list) else [given]:
        name = spec.get("name") if isinstance(spec, Mapping) else None
        if isinstance(name, str) and name in NOT_CALLBACKS:
            problems.add(f"callback `{name}` has no place in a recipe: {NOT_CALLBACKS[name]}.")
        elif name not in known:
            close = did_you_mean(nearest(str(name), known)) if isinstance(spec, Mapping) else ""
            problems.add(f"A callback is a table with the name of one of Keras's.{close} Received: {short(spec)}")
        else:
            _check_one(getattr(keras.callbacks, name), _options(spec), problems)
    return [dict(s) for s in given if isinstance(s, Mapping)] if isinstance(given, list) else []


def make_callbacks(specs):
    """The callbacks that a recipe's tables say."""
    import keras

    return [getattr(keras.callbacks, spec["name"])(**{**_fixed(spec["name"]), **_options(spec)}) for spec in specs]


def _fixed(name):
    return {option: only for option, (only, _) in FIXED_OPTIONS.get(name, {}).items()}


def kept(callback):
    """What a callback has counted up, as plain values; its options are those of the recipe."""
    options = inspect.signature(type(callback)).parameters
    return {
        k: v for k, v in vars(callback).items()
        if isinstance(v, int | float | str) and not k.startswith("_") and k not in options
    }  # fmt: skip


def only_numbers(cls, options, subject, problems, also=()):
    """Whether options whose default is a number, and `also`, are numbers; Keras would say so in the middle of a run."""
    known = inspect.signature(cls).parameters
    before = len(problems.errors)
    for name, value in options.items():
        if (name in also or (name in known and _is_number(known[name].default))) and not _is_number(value):
            problems.add(f"{subject}: `{name}` must be a number. Received: {name}={short(value)}")
    return len(problems.errors) == before


def _is_number(value):
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _options(spec):
    return {k: v for k, v in spec.items() if k != "name"}


def _check_one(cls, options, problems):
    name = cls.__name__
    if name == "TensorBoard" and importlib.util.find_spec("tensorboard") is None:
        problems.add(
            "callback `TensorBoard` needs the package tensorboard: pip install tensorboard. A run writes its metrics "
            "for TensorBoard without it."
        )
    for option, (only, because) in FIXED_OPTIONS.get(name, {}).items():
        if options.get(option, only) != only:
            problems.add(
                f"callback `{name}`: in a run `{option}` can only be {only!r}: {because}. "
                f"Received: {option}={short(options[option])}"
            )
    if only_numbers(cls, options, f"callback `{name}`", problems):
        try:
            cls(**options)
        except (TypeError, ValueError, ImportError) as error:
            problems.add(f"callback `{name}`: {error}")
