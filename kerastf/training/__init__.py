"""What training needs beyond Keras."""

from kerastf.training.devices import distribute, strategy
from kerastf.training.layouts import layout
from kerastf.training.optimizers import InverseSquareRoot, LayerRates, TeacherForcing, layer_rates
from kerastf.training.supervisor import beat, supervise

__all__ = ["InverseSquareRoot", "LayerRates", "TeacherForcing", "beat", "distribute", "layer_rates", "layout",
           "strategy", "supervise"]  # fmt: skip
