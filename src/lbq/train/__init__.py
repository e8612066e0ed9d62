"""Recipes, and training them on one device or many, with checkpoints and exact resume."""

from lbq.train.engine import Outcome, RunOptions, train
from lbq.train.evaluation import Evaluation
from lbq.train.metrics import MetricsLog, read_metrics_log
from lbq.train.model_config import ModelConfig, NeuronConfig, build_network
from lbq.train.optim import OptimConfig, ScheduleConfig
from lbq.train.recipe import Recipe, read_recipe, write_recipe
from lbq.train.recipes import RECIPES
from lbq.train.run_folder import evaluate_run, load_trained

__all__ = [
    "RECIPES",
    "Evaluation",
    "MetricsLog",
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
    "read_metrics_log",
    "read_recipe",
    "train",
    "write_recipe",
]
