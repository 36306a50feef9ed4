"""What training needs beyond Keras."""

from kerastf.training.devices import distribute, strategy
from kerastf.training.optimizers import InverseSquareRoot, LayerRates, TeacherForcing, layer_rates

__all__ = ["InverseSquareRoot", "LayerRates", "TeacherForcing", "distribute", "layer_rates", "strategy"]
