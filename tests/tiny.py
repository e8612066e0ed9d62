"""The smallest run that still has everything: shared by the tests of training and of faults."""

import json

from lbq.data import DataConfig
from lbq.train.model_config import ModelConfig
from lbq.train.optim import OptimConfig, ScheduleConfig
from lbq.train.recipe import Recipe


def tiny_recipe(**changes):
    """Four steps per epoch of an LBQ network with 5 thousand parameters; 25 ms per step."""
    fields = {
        "name": "tiny",
        "data": DataConfig(source="synthetic", size=8, limit=64, limit_test=30),
        "model": ModelConfig(name="resnet20", width=1 / 64, timesteps=2),
        "epochs": 3,
        "batch": 16,
        "optim": OptimConfig(lr=0.05),
        "schedule": ScheduleConfig(warmup_epochs=1.0),
        "precision": "fp32",
        "channels_last": False,
        "test_batch": 16,
        "seed": 3,
    }
    return Recipe(**(fields | changes))


def final_hashes(out):
    """Return step and SHA-256 of every tensor file of the newest checkpoint."""
    newest = max((out / "checkpoints").glob("*.json"))
    body = json.loads(newest.read_text())["body"]
    return body["step"], {part: file["sha256"] for part, file in body["files"].items()}
