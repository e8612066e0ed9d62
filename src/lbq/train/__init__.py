"""The workshop: recipes, and an engine that trains them on one device or many and survives."""

from lbq.train.engine import Outcome, RunOptions, train
from lbq.train.evaluation import Evaluation
from lbq.train.journal import Journal, read_journal
from lbq.train.network import ModelConfig, NeuronConfig, build_network
from lbq.train.optim import OptimConfig, ScheduleConfig
from lbq.train.recipe import Recipe, read_recipe, write_recipe
from lbq.train.recipes import RECIPES
from lbq.train.trained import evaluate_run, load_trained

__all__ = [
    "RECIPES",
    "Evaluation",
    "Journal",
    "ModelConfig",
    "NeuronConfig",
    "OptimConfig",
    "Outcome",
    "Recipe",
    "RunOptions",
    "ScheduleConfig",
    "build_network",
    "evaluate_run",
    "load_trained",
    "read_journal",
    "read_recipe",
    "train",
    "write_recipe",
]
