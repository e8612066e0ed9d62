"""Functions and objects that compute the same have one digest; others have another."""

import functools
import logging
import operator
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lbq.train.callable_digest import callable_digest

SOURCE = '''
import functools, torch
from torch import nn
from torch.nn import functional as F

SCALE = 2.0

def helper(x):
    return x * 3

def plain(a, b):
    """Say something."""
    return F.mse_loss(helper(a), b) * SCALE

def with_set(a, b):
    return (a - b).mean() if a.dim() in {1, 2, 7} and "x" in {"x", "yy", "zzz"} else a.sum()

def with_default(a, b, *, power=2, names=("q", "r")):
    return sum(((a - b) ** power).mean() for _ in names)

def made(weight):
    def inner(a, b):
        return (weight * (a - b)).sum()
    return inner

class Loss:
    def __init__(self, scale):
        self.scale, self.table = scale, torch.arange(3)
    def __call__(self, a, b):
        return self._size(a - b) * self.scale
    def _size(self, x):
        return x.abs().mean()

class Module(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale))
        self.inner = nn.CrossEntropyLoss(label_smoothing=0.1)
    def forward(self, a, b):
        return self.inner(a, b) * self.scale

LOSSES = {
    "plain": plain,
    "with_set": with_set,
    "with_default": with_default,
    "closure": made(torch.tensor([1.0, 2.0])),
    "lambda": lambda a, b: (a - b).square().mean(),
    "partial": functools.partial(with_default, power=3),
    "object": Loss(0.5),
    "method": Loss(0.5)._size,
    "module": Module(0.5),
    "torch": F.mse_loss,
}
'''
CHANGES = {
    "plain": [("x * 3", "x * 4"), ("SCALE = 2.0", "SCALE = 3.0"), ("b) * SCALE", "b) / SCALE")],
    "with_set": [("{1, 2, 7}", "{1, 2, 8}"), ('"yy", ', "")],
    "with_default": [("power=2", "power=3"), ('("q", "r")', '("q",)')],
    "closure": [("[1.0, 2.0]", "[1.0, 2.5]"), ("weight * (", "weight + (")],
    "lambda": [(".square()", ".abs()")],
    "partial": [("power=3", "power=4"), ("(a - b) ** power", "(a + b) ** power")],
    "object": [("Loss(0.5)", "Loss(0.6)"), ("x.abs()", "x.square()"), ("arange(3)", "arange(4)")],
    "method": [("x.abs()", "x.square()"), ("Loss(0.5)", "Loss(0.6)")],
    "module": [("Module(0.5)", "Module(0.6)"), ("=0.1", "=0.2"), ("b) * self.scale", "b)")],
}
SAME = [
    ('"""Say something."""', '"""Say something else."""'),
    ("import functools, torch", "# a comment\n\nimport functools, torch"),
]


def digests(folder, source):
    """Digests of all losses of a module, in a process of its own with its own hash seed."""
    (folder / "mine.py").write_text(source)
    code = """
        import mine
        from lbq.train.callable_digest import callable_digest
        for name, loss in mine.LOSSES.items():
            print(name, callable_digest(loss))
    """
    run = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
    return dict(line.split() for line in done.stdout.splitlines())


def test_digests_are_equal_in_every_process_and_change_with_the_code_only(tmp_path):
    before = digests(tmp_path, SOURCE)
    assert len(set(before.values())) == len(before)
    assert digests(tmp_path, SOURCE) == before  # from a .pyc file, with other hashes
    text = SOURCE
    for old, new in SAME:
        text = text.replace(old, new)
    assert digests(tmp_path, text) == before


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_code_settings_or_captured_values_changes_the_digest(name):
    def of(source):
        space = {"__name__": "mine"}
        exec(source, space)
        return callable_digest(space["LOSSES"][name])

    assert of(SOURCE) == of(SOURCE)
    for old, new in CHANGES[name]:
        assert old in SOURCE
        assert of(SOURCE.replace(old, new)) != of(SOURCE), (old, new)


def test_running_a_function_does_not_change_its_digest():
    def loss(a, b):
        return sum((a[i] - b[i]) ** 2 for i in range(3))

    before = callable_digest(loss)
    for _ in range(100):  # specialised by the interpreter
        loss([1, 2, 3], [4, 5, 6])
    assert callable_digest(loss) == before


def test_trained_weights_loggers_and_random_states_are_no_part_of_it():
    def made(model, log, generator):
        def loss(a, b):
            log.info("%s", torch.rand(1, generator=generator))
            return F.mse_loss(a, b) + sum(p.square().sum() for p in model.parameters())

        return loss

    def one():
        return made(nn.Linear(3, 2), logging.getLogger("some"), torch.Generator())

    first = callable_digest(one())
    logging.getLogger("another.one")
    assert callable_digest(one()) == first
    frozen = nn.Linear(3, 2).requires_grad_(False)
    other = nn.Linear(3, 2).requires_grad_(False)
    digests_of_teachers = {callable_digest(made(each, None, None)) for each in (frozen, other)}
    assert len(digests_of_teachers) == 2


def test_functions_that_refer_to_each_other_have_a_digest():
    def odd(n):
        return n and even(n - 1)

    def even(n):
        return not n or odd(n - 1)

    assert callable_digest(odd) != callable_digest(even)


def test_code_that_python_cannot_see_has_no_digest():
    assert callable_digest(operator.mul) is None
    assert callable_digest(torch.dist) is None
    assert callable_digest(functools.partial(operator.mul, 2)) is None
