"""Training of any model, and of recipes: on one device or many, with exact resume."""

from lbq.train.engine import fit, train
from lbq.train.evaluation import Evaluation
from lbq.train.loss import correct_predictions
from lbq.train.metrics import MetricsLog, read_metrics_log
from lbq.train.model_config import ModelConfig, NeuronConfig, build_network
from lbq.train.optim import OptimConfig, ScheduleConfig, param_groups
from lbq.train.recipe import Recipe, read_recipe, write_recipe
from lbq.train.recipes import RECIPES
from lbq.train.run_folder import Run, evaluate_run, load_run
from lbq.train.task import Outcome, RunOptions
from lbq.train.train_config import CostConfig, TeacherConfig, TrainConfig

__all__ = [
    "RECIPES",
    "CostConfig",
    "Evaluation",
    "MetricsLog",
    "ModelConfig",
    "NeuronConfig",
    "OptimConfig",
    "Outcome",
    "Recipe",
    "Run",
    "RunOptions",
    "ScheduleConfig",
    "TeacherConfig",
    "TrainConfig",
    "build_network",
    "correct_predictions",
    "evaluate_run",
    "fit",
    "load_run",
    "param_groups",
    "read_metrics_log",
    "read_recipe",
    "train",
    "write_recipe",
]
