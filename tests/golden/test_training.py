"""Losses and gradient norms of the first steps, as they were when somebody looked at them.

Other tests compare a run with itself. These notice that all runs compute something else: another
rule of an optimizer, another neuron, another order of samples, another version of a library. A
change that is meant replaces the numbers (``python tests/golden/test_training.py``) and says why.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from lbq.train import ModelConfig, NeuronConfig, OptimConfig, RunOptions, ScheduleConfig, train

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny import tiny_recipe

NUMBERS = Path(__file__).with_name("training.json")
TOLERANCE = 2e-3
"""Relative; processors add in other orders, and a level at a threshold may follow."""


def network(kind):
    return ModelConfig(
        name="resnet20", width=1 / 32, blocks=(1, 1, 1), timesteps=2, neuron=NeuronConfig(kind=kind)
    )


SGD = OptimConfig(lr=0.2, momentum=0.8, weight_decay=1e-2, nesterov=True)
ADAMW = OptimConfig(kind="adamw", lr=0.05, betas=(0.7, 0.9), weight_decay=0.1, clip_norm=0.5)
CASES = {
    "lbq, sgd": {"optim": SGD},
    "lbq, no nesterov": {"optim": OptimConfig(lr=0.2, momentum=0.8, nesterov=False)},
    "lbq, adamw": {"optim": ADAMW, "label_smoothing": 0.1},
    "lbq, accumulated": {"optim": SGD, "accumulate": 2},
    **{
        kind: {"optim": SGD, "model": network(kind)}
        for kind in ("v1", "v2", "v3", "binary", "ternary-learned", "ilif", "mlf", "lmht", "relu")
    },
}


def first_steps(case):
    """Train for an epoch of four steps; return the loss and the gradient's norm at each."""
    captured = []
    recipe = tiny_recipe(
        **({"epochs": 1, "schedule": ScheduleConfig(), "model": network("lbq")} | CASES[case])
    )
    with tempfile.TemporaryDirectory() as out:
        options = RunOptions(device="cpu", log_every=1, cache=Path(out))
        train(recipe, Path(out) / "run", options, callbacks=[captured.append])
    lines = [record for record in captured if record["event"] == "train"]
    return [[line["loss"], line["grad_norm"]] for line in lines]


@pytest.mark.parametrize("case", CASES)
def test_the_first_steps_are_what_they_were(case):
    expected = json.loads(NUMBERS.read_text())[case]
    found = first_steps(case)
    assert len(found) == len(expected) >= 2
    for step, (now, before) in enumerate(zip(found, expected, strict=True)):
        assert now == pytest.approx(before, rel=TOLERANCE), f"step {step + 1}"


if __name__ == "__main__":
    numbers = {case: first_steps(case) for case in CASES}
    NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n")
