"""``lbq.fit(..., teacher=network)``: the loss, exact resume, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import ParameterError, RecipeError, RunError, ShapeError
from lbq.train import OptimConfig, TeacherConfig
from lbq.train.recipe_file import load_recipe_file
from lbq.train.teacher import Teacher, divergence, teacher_digest

OPTIONS = lbq.RunOptions(device="cpu", log_every=1, save_every_s=1e9)
CONFIG = lbq.TrainConfig(epochs=2, batch=16, optim=OptimConfig(lr=0.05), test_batch=16)


def student(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12),
        nn.BatchNorm1d(12),
        lbq.RepeatOverTime(2),
        lbq.BurstLIF(),
        nn.Linear(12, 3),
    )


def ann(seed=5, classes=3, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, classes)
    )


def samples(count=64):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(count) % 3


def fit(out, *, teacher=None, config=CONFIG, model=None, options=OPTIONS, **others):
    model = student() if model is None else model
    given = {"options": options, "teacher": teacher, **others}
    return lbq.fit(model, samples(), samples(), config, out, **given)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_the_divergence_is_kullback_leibler_between_softened_answers(temperature):
    logits, wanted = torch.randn(5, 4).double(), torch.randn(5, 4).double()
    expected = 0.0
    for mine, theirs in zip(logits.tolist(), wanted.tolist(), strict=True):
        p = [math.exp(value / temperature) for value in theirs]
        q = [math.exp(value / temperature) for value in mine]
        for a, b in zip(p, q, strict=True):
            share = a / sum(p)
            expected += share * math.log(share / (b / sum(q)))
    expected *= temperature**2 / len(logits)
    assert divergence(logits, wanted, temperature).item() == pytest.approx(expected, rel=1e-5)
    assert divergence(wanted, wanted, temperature).item() == pytest.approx(0, abs=1e-6)


def test_the_loss_is_a_weighted_mean_and_the_teacher_neither_changes_nor_draws():
    network = ann(dropout=0.5).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    x, target = samples(16)
    output, loss = torch.randn(2, 16, 3), torch.tensor(4.0)
    taught = Teacher(network, TeacherConfig(weight=0.25, temperature=3.0))
    joined = taught.join(loss, x, output, target)
    copied = ann(dropout=0.5).eval()
    copied.load_state_dict(before)
    expected = 0.75 * loss + 0.25 * divergence(output.mean(0), copied(x), 3.0)
    torch.testing.assert_close(joined, expected)
    assert torch.equal(joined, taught.join(loss, x, output, target))
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_with_the_whole_weight_the_targets_do_not_matter(tmp_path):
    x, target = samples()
    config = replace(CONFIG, teacher=TeacherConfig(weight=1.0))
    first, second = student(), student()
    lbq.fit(first, (x, target), None, config, tmp_path / "a", options=OPTIONS, teacher=ann())
    other = x, (target + 1) % 3
    lbq.fit(second, other, None, config, tmp_path / "b", options=OPTIONS, teacher=ann())
    for mine, theirs in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_taught_network_comes_closer_to_its_teacher_than_one_that_is_not(tmp_path):
    network = ann()
    lbq.fit(network, samples(), None, replace(CONFIG, epochs=20), tmp_path / "ann", options=OPTIONS)
    config = replace(CONFIG, epochs=10)
    alone, taught = student(), student()
    fit(tmp_path / "alone", model=alone, config=config)
    fit(tmp_path / "taught", model=taught, config=config, teacher=network)
    x, _ = samples()
    far, near = (divergence(each(x).mean(0), network.eval()(x), 1.0) for each in (alone, taught))
    assert near < far


@pytest.mark.parametrize("is_own", [False, True])
def test_a_taught_run_resumes_with_the_same_bits(tiny, tmp_path, is_own):
    """Its teacher may be the network itself, as it was at the start."""

    def run(name, **options):
        model = student()
        teacher = model if is_own else ann()
        return fit(tmp_path / name, model=model, teacher=teacher, **options)

    run("whole")
    for step in (1, 3, 6):
        assert run("cut", options=replace(OPTIONS, stop_at=step)).ending == "stopped"
    run("cut")
    assert tiny.final_hashes(tmp_path / "cut") == tiny.final_hashes(tmp_path / "whole")


def test_a_run_is_not_resumed_with_another_teacher_or_without_it(tmp_path):
    stop = replace(OPTIONS, stop_at=2)
    fit(tmp_path, teacher=ann(), options=stop)
    for other in (None, ann(seed=6), ann(dropout=0.1)):
        with pytest.raises(RunError, match=r"(?s)teacher: .*allow_changed=\('teacher',\)"):
            fit(tmp_path, teacher=other)
    config = replace(CONFIG, teacher=TeacherConfig(weight=0.9))
    with pytest.raises(RunError, match=r"config\.teacher\.weight: 0\.5 -> 0\.9"):
        fit(tmp_path, teacher=ann(), config=config)
    fit(tmp_path / "alone", options=stop)
    with pytest.raises(RunError, match="teacher: None -> "):
        fit(tmp_path / "alone", teacher=ann())
    allowed = replace(OPTIONS, allow_changed=("teacher",))
    assert fit(tmp_path, teacher=ann(seed=6), options=allowed).ending == "finished"


def test_the_digest_of_a_teacher_covers_structure_and_every_value():
    network = ann()
    known = teacher_digest(network)
    assert teacher_digest(ann()) == known != teacher_digest(ann(dropout=0.1))
    for name, tensor in network.state_dict().items():
        kept = tensor.clone()
        tensor.view(-1)[-1] += 1
        assert teacher_digest(network) != known, name
        tensor.copy_(kept)
    assert teacher_digest(network) == known


def test_teachers_that_cannot_teach_are_refused(tmp_path):
    with pytest.raises(ShapeError, match="the teacher returns 4 logits per sample and the model 3"):
        fit(tmp_path / "classes", teacher=ann(classes=4))
    with pytest.raises(ShapeError, match=r"but the teacher returned \[16, 3, 1\]"):
        fit(tmp_path / "shape", teacher=nn.Sequential(ann(), nn.Unflatten(1, (3, 1))))
    regressor = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
    own = {"loss": lambda output, target: output.mean(), "metrics": {}}
    with pytest.raises(ShapeError, match=r"but the model returned \[16\]; .* loss of your own"):
        fit(tmp_path / "loss", model=regressor, teacher=ann(), **own)
    with pytest.raises(ParameterError, match=r"teacher must be a torch\.nn\.Module, got function"):
        fit(tmp_path / "kind", teacher=lambda x: x)
    for wrong in ({"weight": 0.0}, {"weight": 1.5}, {"temperature": 0.0}):
        with pytest.raises(RecipeError, match=next(iter(wrong))):
            TeacherConfig(**wrong)


def test_a_recipe_file_may_return_a_teacher(tmp_path):
    path = tmp_path / "taught.py"
    path.write_text(
        "import lbq, torch\n"
        "def recipe():\n"
        "    net = torch.nn.Linear(4, 2)\n"
        "    x, y = torch.randn(8, 4), torch.arange(8) % 2\n"
        "    config = lbq.TrainConfig(epochs=1, batch=4)\n"
        "    data = dict(train_data=(x, y), eval_data=None)\n"
        "    return dict(model=net, config=config, teacher=TEACHER, **data)\n"
        "TEACHER = torch.nn.Linear(4, 2)\n"
    )
    task = load_recipe_file(path)
    assert isinstance(task.teacher, nn.Linear)
    path.write_text(path.read_text().replace("TEACHER = torch.nn.Linear(4, 2)", "TEACHER = 3"))
    with pytest.raises(RecipeError, match=r"teacher of recipe\(\) .* must be a torch\.nn\.Module"):
        load_recipe_file(path)
