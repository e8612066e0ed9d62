"""A network of one's own, from its first forward to an accuracy by command, as a user writes it.

Every number on this path is counted again by a few lines of torch, or the library refuses and its
message names the fix.
"""

import json
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import lbq
from lbq.cli.main import main
from lbq.errors import LoweringError, ParameterError, TimeError
from lbq.train import RunOptions, evaluate_run, load_run, train

T, SIDE = 4, 8
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


class OwnNetwork(nn.Module):
    """A small CNN that repeats, folds and unfolds by hand, as most users would."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.spike1, self.spike2 = lbq.BurstLIF(), lbq.BurstLIF(max_level=3)
        self.head = nn.Linear(8 * 2 * 2, 2)

    def forward(self, images):
        x = self.norm1(self.conv1(images))
        x = self.spike1(x.unsqueeze(0).repeat(T, 1, 1, 1, 1))
        x = self.norm2(self.conv2(x.flatten(0, 1))).unflatten(0, (T, -1))
        x = self.spike2(x)
        x = self.head(x.flatten(0, 1).flatten(1)).unflatten(0, (T, -1))
        return x.mean(0)


class Tokens(nn.Module):
    """Linear layers that see ``[T * B * N, D]``: tokens folded with time."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.spike = nn.Linear(64, 64), nn.Linear(64, 10), lbq.BurstLIF()

    def forward(self, x):  # [T, B, N, D]
        y = self.first(x.reshape(-1, 64)).reshape(*x.shape[:-1], -1)
        y = self.spike(y)
        return self.second(y.reshape(-1, 64)).reshape(*x.shape[:-1], -1).mean((0, 2))


def images_of(folder, split):
    """The images of a folder of classes as bytes ``[B, 3, H, W]``, and their classes."""
    paths = sorted((folder / split).glob("*/*.png"))
    names = sorted({path.parent.name for path in paths})
    pixels = np.stack([np.asarray(Image.open(path)) for path in paths])
    labels = torch.tensor([names.index(path.parent.name) for path in paths])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def normalise(pixels):
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (MEAN, STD))
    return (pixels / 255 - mean) / std


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A folder of images of two classes that a little training tells apart."""
    folder = tmp_path_factory.mktemp("pictures")
    generator = np.random.default_rng(0)
    for split, count in (("train", 16), ("test", 12)):
        for name, low in (("dark", 0), ("light", 60)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                pixels = generator.integers(low, low + 196, (SIDE, SIDE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{i:02}.png")
    return folder


@pytest.fixture(scope="module")
def trained(pictures):
    """The own network after a little training by a loop of one's own; nothing warns."""
    torch.manual_seed(0)
    model = OwnNetwork()
    pixels, labels = images_of(pictures, "train")
    lbq.check_time(model, normalise(pixels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(15):
            optimizer.zero_grad()
            F.cross_entropy(model(normalise(pixels)), labels).backward()
            optimizer.step()
    return model.eval()


def watched(model, x):
    """The levels of every neuron, ``[T, B, ...]``, as the watch hands them out."""
    seen = {}
    with (
        torch.no_grad(),
        lbq.watch_levels(model, lambda at, t, k: seen.setdefault(at, []).append(k)),
    ):
        model(x)
    return {at: torch.stack(levels).double() for at, levels in seen.items()}


def test_own_reshapes_are_counted_as_they_compute(trained, pictures):
    x = normalise(images_of(pictures, "test")[0])
    counter = lbq.OpCounter(trained, x[:1])
    with torch.no_grad(), lbq.watch_levels(trained, counter):
        trained(x)
    table, levels = counter.table(), watched(trained, x)
    assert table.notes == ()
    ones = torch.ones_like(trained.conv2.weight, dtype=torch.float64)
    acs = F.conv2d(levels["spike1"].flatten(0, 1), ones, stride=2).sum()
    acs += 2 * levels["spike2"].sum()
    assert table.total().unary_acs == int(acs)
    first, second, head = 6 * 3 * 9 * 6**2, 8 * 6 * 9 * 2**2, 2 * 32  # no layer pads
    assert table.ann_macs() == first + second + head
    assert table.fp_macs() == len(x) * first  # computed once, before time begins


def test_own_reshapes_are_lowered_exactly(trained, pictures):
    x = normalise(images_of(pictures, "test")[0]).double()
    model = OwnNetwork().double().eval()
    model.load_state_dict(trained.state_dict())
    lowered = lbq.lower(model, x[:1])
    with torch.no_grad():
        assert torch.allclose(lbq.run_network(lowered, x), model(x), atol=1e-9)


def test_tokens_folded_with_time_are_counted_once_per_timestep():
    torch.manual_seed(0)
    model, x = Tokens().eval(), torch.rand(8, 10, 16, 64)
    counter = lbq.OpCounter(model, x[:, :1])
    with torch.no_grad(), lbq.watch_levels(model, counter):
        model(x)
    table = counter.table()
    assert table.ann_macs() == 16 * 64 * 64 + 16 * 64 * 10  # and not 8 times that
    assert table.total().unary_acs == 10 * int(watched(model, x)["spike"].sum())
    lbq.check_time(model, x, batch_axis=1)
    lowered = lbq.lower(model.double(), x[:, :1].double(), batch_axis=1)
    with torch.no_grad():
        assert torch.allclose(lowered(x.double()), model(x.double()), atol=1e-9)


def test_a_forgotten_time_axis_is_found_and_the_fix_is_named(pictures, monkeypatch):
    """Each ReLU replaced by a BurstLIF and nothing else: the batch would be time."""
    monkeypatch.setattr("lbq.neurons.neuron._warned", [])  # it warns once per process
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), lbq.BurstLIF(), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(6, 2))
    x = normalise(images_of(pictures, "train")[0])
    with pytest.warns(UserWarning, match="RepeatOverTime"):
        model(x)
    model.eval()
    with pytest.raises(TimeError, match=r"takes the batch as time.*RepeatOverTime"):
        lbq.check_time(model, x)
    with pytest.raises(TimeError, match="RepeatOverTime"):
        lbq.OpCounter(model, x[:1])
    with pytest.raises(LoweringError, match="RepeatOverTime"):
        lbq.lower(model, x[:1])
    begin, over_time = lbq.RepeatOverTime(T), lbq.OverTime(*model[3:])
    layers = [*model[:2], begin, model[2], over_time, lbq.MeanOverTime()]
    repaired = nn.Sequential(*layers).eval()
    lbq.check_time(repaired, x)
    with torch.no_grad():
        assert torch.allclose(
            lbq.run_network(lbq.lower(repaired, x[:1]), x), repaired(x), atol=1e-5
        )


def test_an_own_bundle_is_evaluated_by_command_and_its_accuracy_is_the_real_one(
    trained, pictures, tmp_path, capsys
):
    pixels, labels = images_of(pictures, "test")
    calibration = normalise(images_of(pictures, "train")[0])
    lowered = lbq.lower(trained, calibration[:1])
    integers = lbq.to_fixed_point(
        lowered, pixels=lbq.Pixels(mean=MEAN, std=STD), calibration=calibration
    )
    bundle = f"{tmp_path}/own.lbq"  # a path as text, as users write it
    lbq.save_network(integers, bundle)
    expected = (lbq.run_network(lbq.load_network(bundle), pixels).argmax(1) == labels).sum().item()
    assert expected > 18  # of 24: it has learned
    words = ["eval", bundle, "--data", str(pictures), "--cache", str(tmp_path / "cache"), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["correct"], found["count"]) == (expected, len(labels))
    assert main(["eval", bundle]) == 1
    assert "--data" in capsys.readouterr().err
    assert main(["report", bundle, "--out", str(tmp_path / "a.html")]) == 1
    assert "lbq.OpCounter" in capsys.readouterr().err


def test_integers_of_images_need_the_pixels_of_training(trained, pictures):
    calibration = normalise(images_of(pictures, "train")[0])
    lowered = lbq.lower(trained, calibration[:1])
    with pytest.raises(ParameterError, match=r"pass pixels=lbq\.Pixels"):
        lbq.to_fixed_point(lowered, calibration=calibration)
    with pytest.raises(ParameterError, match="divide those of bytes by 255"):
        lbq.Pixels(mean=(127.5,) * 3, std=(63.75,) * 3)
    right = lbq.Pixels(mean=MEAN, std=STD)
    integers = lbq.to_fixed_point(lowered, pixels=right, calibration=calibration)
    assert integers.agreement.answers > 0.9


def test_paths_may_be_text(tiny, tmp_path):
    run, cache = f"{tmp_path}/runs/mine", f"{tmp_path}/cache"
    outcome = train(tiny.tiny_recipe(epochs=1), run, RunOptions(cache=cache))
    loaded = load_run(run)
    model, step = loaded.model, loaded.step
    assert (step, model.training) == (outcome.step, False)
    assert evaluate_run(run, cache=cache).count == 30
    net = lbq.lower(model, torch.zeros(1, 3, 8, 8))
    lbq.save_network(net, f"{tmp_path}/net.lbq")
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(
        lbq.run_network(lbq.load_network(f"{tmp_path}/net.lbq"), x), lbq.run_network(net, x)
    )
