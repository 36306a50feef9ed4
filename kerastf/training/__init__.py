"""What training needs beyond Keras."""

from kerastf.training.optimizers import InverseSquareRoot, LayerRates, TeacherForcing, layer_rates

__all__ = ["InverseSquareRoot", "LayerRates", "TeacherForcing", "layer_rates"]
