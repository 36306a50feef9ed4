"""A zoo of Keras layers and models in which any block can be swapped by name.

`import kerastf` is light: it imports neither keras nor tensorflow. Names and submodules come when they are used.
"""

import importlib
from typing import Any

from kerastf import keras_hook
from kerastf.config import create_block
from kerastf.create import create_model
from kerastf.registry import list_blocks, list_models, register

__version__ = "0.1.0"

_LAZY = {
    "info": "kerastf.describe",
    "count_parameters": "kerastf.describe",
    "cost": "kerastf.counting",
    "flops": "kerastf.counting",
    "load_model": "kerastf.checkpoint",
    "inspect": "kerastf.checkpoint",
    "swap": "kerastf.experiments",
    "diff": "kerastf.experiments",
    "verify": "kerastf.testing",
}
_MODULES = ("bilm_files", "blocks", "checkpoint", "config", "convert", "counting", "data", "decoding", "describe",
            "errors", "experiments", "functional", "metrics", "models", "plots", "plugins", "registry", "replicas",
            "testing", "text", "training")  # fmt: skip

__all__ = ["create_block", "create_model", "list_blocks", "list_models", "register", *_LAZY, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"kerastf.{name}")
    raise AttributeError(f"module 'kerastf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


keras_hook.install()
