"""Models too large for one device: which axis of which weight is spread over devices. JAX only.

Shapes: C channels, D inner width, V vocabulary. Of two matrices that follow each other, the first is cut by columns,
`(C, D / n)`, the second by rows, `(D / n, C)`, so that the devices add up once, at the end. XLA finds what else
must be exchanged: the fused projection of queries, keys and values is cut in the middle of the keys, for one.
"""

import re

import keras

from kerastf import compat, config
from kerastf.errors import ConfigError

# The end of a weight's path, and the axis that is cut: the first of these that the devices divide.
RULES = (
    (r"attention/(qkv|query|key_value)/kernel", (1,)),  # (C, D) by columns
    (r"attention/(qkv|query|key_value)/bias", (0,)),
    (r"attention/output/kernel", (0,)),  # (D, C) by rows
    (r"feedforward/expand/kernel", (1,)),
    (r"feedforward/expand/bias", (0,)),
    (r"feedforward/contract/kernel", (0,)),
    (r"(embedding|head|masked_tokens)/matrix", (0, 1)),  # (V, C): by the vocabulary, or by channels where V is odd
    (r"(head|masked_tokens)/shift", (0,)),
)


def layout(model, *, model_parallel=2, devices=None, **options):
    """How a model's weights are spread over devices: a `keras.distribution.ModelParallel`.

    The devices form a grid: every row of `model_parallel` devices holds one copy of the model, and the rows share the
    batch. Attention's projections and the feed-forward are cut by columns and by rows, the embedding by the vocabulary;
    vectors, positions and all weights that cannot be cut evenly stay whole on every device. The numbers are those of
    one device, but for rounding.

    Set it before the model is made: `keras.distribution.set_distribution(layout(...))`.

    Args:
        model: Name of a model, built without memory for its weights, to know their shapes; or a model.
        model_parallel: Over how many devices n each copy is spread.
        devices: How many devices, or a list of their names; None for all.
        **options: Of the model, as for `kerastf.create_model`.

    Returns:
        A `keras.distribution.ModelParallel` with the axes `"batch"` and `"model"`.

    Raises:
        ConfigError: The backend is not JAX, the devices cannot be put into rows of n, or no weight can be cut.

    Examples:
        >>> keras.distribution.set_distribution(  # doctest: +SKIP
        ...     layout("gpt.gpt2_xl", model_parallel=4)  # with KERAS_BACKEND=jax
        ... )

    References:
        - [Shoeybi et al., 2019](https://arxiv.org/abs/1909.08053), section 3
    """
    if keras.backend.backend() != "jax":
        raise ConfigError(
            "Keras spreads weights over devices with JAX only: set KERAS_BACKEND=jax before keras is imported. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    grid = _grid(devices, model_parallel)
    if isinstance(model, str):
        with compat.without_allocation():
            model = config.build_model(model, **options)
    elif options:
        raise ConfigError(f"Options are for a model's name. Received: {', '.join(options)}")
    found = {w.path: axes for w in model.weights if (axes := _axes(w, model_parallel)) is not None}
    if model_parallel > 1 and not found:
        raise ConfigError(
            f"No weight of this model can be cut into {model_parallel}. Received: model_parallel={model_parallel}"
        )
    layouts = keras.distribution.LayoutMap(grid)
    for path, axes in found.items():
        layouts[re.escape(path)] = axes
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def _grid(devices, model_parallel):
    every = keras.distribution.list_devices()
    count = len(every) if devices is None else devices
    chosen = every[:count] if isinstance(count, int) else list(count)
    if isinstance(count, int) and not 1 <= count <= len(every):
        raise ConfigError(
            f"There are {len(every)} devices: {', '.join(every)}. XLA_FLAGS=--xla_force_host_platform_device_count=N "
            f"makes N of a CPU. Received: devices={devices!r}"
        )
    if not isinstance(model_parallel, int) or model_parallel < 1 or len(chosen) % model_parallel:
        raise ConfigError(
            f"`model_parallel` must divide the number of devices, {len(chosen)}. "
            f"Received: model_parallel={model_parallel!r}"
        )
    shape = (len(chosen) // model_parallel, model_parallel)
    return keras.distribution.DeviceMesh(shape, ("batch", "model"), chosen)


def _axes(weight, parts):
    """For a weight that can be cut: the name of the devices' axis at the axis that is cut, None at the others."""
    for pattern, axes in RULES:
        if re.search(f"(^|/|_){pattern}$", weight.path):
            for axis in axes:
                if weight.shape[axis] % parts == 0:
                    return tuple("model" if i == axis else None for i in range(len(weight.shape)))
    return None
