"""The Transformer's learning-rate schedule, a learning rate per layer, how often a decoder reads the truth."""

import re

import keras
from keras import ops


@keras.saving.register_keras_serializable("kerastf")
class InverseSquareRoot(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then a decay with the square root of the step, as the Transformer was trained.

    `rate(t) = scale * dim^-0.5 * min(t^-0.5, t * warmup_steps^-1.5)`

    Args:
        dim: Width of the model.
        warmup_steps: After how many steps the rate is highest.
        scale: What the rate is multiplied by.

    Examples:
        >>> schedule = InverseSquareRoot(512, warmup_steps=4000)
        >>> f"{float(schedule(4000)):.2e}"
        '6.99e-04'

    References:
        - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3
    """

    def __init__(self, dim: int, *, warmup_steps: int = 4000, scale: float = 1.0):
        for name, value in (("dim", dim), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        self.dim = dim
        self.warmup_steps = warmup_steps
        self.scale = scale

    def __call__(self, step):
        t = ops.cast(step, "float32")
        t = ops.maximum(t, 1.0)
        return self.scale * self.dim**-0.5 * ops.minimum(ops.rsqrt(t), t * self.warmup_steps**-1.5)

    def get_config(self):
        return {"dim": self.dim, "warmup_steps": self.warmup_steps, "scale": self.scale}


class TeacherForcing(keras.callbacks.Callback):
    """Changes, epoch by epoch, how often a `seq2seq` reads the truth in training.

    Args:
        schedule: From the number of the epoch, counted from 0, to a probability in `[0, 1]`.

    Examples:
        >>> callback = TeacherForcing(lambda epoch: max(0.5, 1 - 0.05 * epoch))
    """

    def __init__(self, schedule):
        super().__init__()
        self.schedule = schedule

    def on_epoch_begin(self, epoch, logs=None):
        truth = getattr(self.model, "truth", None)
        if truth is None:
            raise ValueError(
                "The model always reads the truth. Build it with teacher_forcing below 1 to change that in training."
            )
        probability = float(self.schedule(epoch))
        if not 0 <= probability <= 1:
            raise ValueError(f"A probability is in [0, 1]. Received: schedule({epoch})={probability}")
        truth.assign(probability)


@keras.saving.register_keras_serializable("kerastf")
class LayerRates(keras.optimizers.Optimizer):
    """An optimizer whose learning rate is another in some layers: `w <- w + factor * (step(w) - w)`.

    The step of Keras's optimizers but Ftrl, which is refused, is proportional to the learning rate, weight decay
    included, so shortening the step of a variable is the same as giving it a smaller rate. Keras itself has one rate
    for all variables.

    Args:
        inner_optimizer: The Keras optimizer that makes the steps.
        factors: By name of a layer of the model: what its steps are multiplied by. Other layers have 1.
        name: Name of the optimizer.
        **kwargs: None: options belong to the inner optimizer.
    """

    def __init__(self, inner_optimizer, factors: dict[str, float], name="layer_rates", **kwargs):
        if kwargs:
            raise ValueError(f"Options belong to the inner optimizer. Received: {sorted(kwargs)}")
        if inner_optimizer.use_ema:
            raise ValueError("An average of the weights would be taken before the steps are shortened: use_ema=False.")
        if isinstance(inner_optimizer, keras.optimizers.Ftrl):
            raise ValueError("The steps of Ftrl are not proportional to its learning rate. Use another optimizer.")
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        self.factors = dict(factors)

    def factor(self, variable):
        """What the steps of a variable are multiplied by."""
        return self.factors.get(variable.path.split("/")[0], 1.0)

    def build(self, variables):
        self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(self, grads, trainable_variables=None):
        if not self.built:
            self.build(list(trainable_variables))
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        slow = [(v, self.factor(v)) for v in variables if self.factor(v) != 1]
        before = [ops.copy(ops.convert_to_tensor(v)) for v, _ in slow]  # PyTorch's optimizers write in place
        self.inner_optimizer.apply(grads, trainable_variables)
        for (variable, factor), old in zip(slow, before, strict=True):
            variable.assign(old + ops.cast(factor, old.dtype) * (ops.convert_to_tensor(variable) - old))

    @property
    def variables(self):
        return self._variables + self.inner_optimizer.variables

    @property
    def learning_rate(self):
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def iterations(self):
        return self.inner_optimizer.iterations

    def scale_loss(self, loss):
        return self.inner_optimizer.scale_loss(loss)

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def finalize_variable_values(self, var_list):
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self):
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, "factors": self.factors}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects=custom_objects)
        return cls(**{**config, "inner_optimizer": inner})


def layer_rates(model, optimizer="adamw", *, decay=0.9):
    """An optimizer with smaller learning rates in deeper layers, for fine-tuning.

    With L numbered layers, layer l counted from 0 has the rate times `decay^(L - l)`; what stands in front of them, the
    embeddings, `decay^(L + 1)`; what stands after them, the head among it, the whole rate.

    Args:
        model: A model with numbered layers: `layer_0`, `layer_1`, and so on.
        optimizer: A Keras optimizer or its name.
        decay: The rate of a layer divided by that of the next, in `(0, 1]`.

    Returns:
        A `LayerRates`, to give to `compile`.

    Examples:
        >>> import kerastf
        >>> model = kerastf.create_model("gpt", vocab_size=9, max_length=8, dim=8, num_layers=2, num_heads=2)
        >>> optimizer = layer_rates(model, "adamw", decay=0.5)
        >>> {name: factor for name, factor in optimizer.factors.items() if factor < 1}
        {'embedding': 0.125, 'position': 0.125, 'layer_0': 0.25, 'layer_1': 0.5}
        >>> model.compile(optimizer)

    References:
        - [Howard and Ruder, 2018](https://arxiv.org/abs/1801.06146), section 3.2
    """
    if not 0 < decay <= 1:
        raise ValueError(f"`decay` must be in (0, 1]. Received: decay={decay}")
    owners = list(dict.fromkeys(w.path.split("/")[0] for w in model.trainable_variables))
    order = {layer.name: i for i, layer in enumerate(model.layers)}
    numbered = {n: int(m[1]) for n in order if (m := re.fullmatch(r"layer_(\d+)", n))}
    if not numbered:
        raise ValueError(f"The model has no numbered layers, layer_0 and so on. Received: {', '.join(order)}")
    depth, first = max(numbered.values()) + 1, min(order[n] for n in numbered)
    factors = {}
    for name in owners:
        if name in numbered:
            factors[name] = decay ** (depth - numbered[name])
        else:
            factors[name] = decay ** (depth + 1) if order.get(name, first + 1) < first else 1.0
    return LayerRates(keras.optimizers.get(optimizer), factors)
