"""What training needs beyond Keras: recipes, runs that nothing interrupts for good, schedules, many devices."""

from kerastf.supervisor import beat, supervise
from kerastf.training.ablation import ablate, parse_grid
from kerastf.training.devices import distribute, strategy
from kerastf.training.folder import RunFolder
from kerastf.training.layouts import layout
from kerastf.training.optimizers import InverseSquareRoot, LayerRates, TeacherForcing, layer_rates
from kerastf.training.preview import dry_run
from kerastf.training.recipe import Recipe
from kerastf.training.recipe import read as read_recipe
from kerastf.training.run import TrainingStopped, train
from kerastf.training.use import evaluate, load_run, predict

__all__ = ["InverseSquareRoot", "LayerRates", "Recipe", "RunFolder", "TeacherForcing", "TrainingStopped", "ablate",
           "beat", "distribute", "dry_run", "evaluate", "layer_rates", "layout", "load_run", "parse_grid", "predict",
           "read_recipe", "strategy", "supervise", "train"]  # fmt: skip
