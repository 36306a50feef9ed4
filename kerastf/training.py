"""What training needs beyond Keras: the Transformer's learning-rate schedule."""

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
