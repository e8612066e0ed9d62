import json
import math
import re

import numpy as np
import pytest
import torch
from operator_networks import NETWORKS
from PIL import Image

import lbq
from lbq.cli.main import main
from lbq.cli.samples import open_samples, sample_batches
from lbq.kernels.native_scan import isa
from lbq.pretrained import pretrained_recipe

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def evaluated(capsys, *words):
    assert main(["eval", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_accuracy_of_a_run_is_told_in_words_and_as_data(trained, capsys):
    assert main(["eval", str(trained)]) == 0
    words = capsys.readouterr().out
    assert "of 30)" in words
    assert "after 1 epochs (4 steps)" in words
    found = evaluated(capsys, trained)
    assert f"{found['accuracy']:.2%} ({found['correct']} of 30)" in words


def test_every_backend_counts_alike(bundle, capsys):
    dense = evaluated(capsys, bundle, "--backend", "dense")
    assert dense["count"] == 30
    assert dense["accuracy"] == dense["correct"] / 30
    others = ["unary", "planes", *(["native"] if isa() is not None else [])]  # CI builds the engine
    for backend in others:
        found = evaluated(capsys, bundle, "--backend", backend)
        assert found == dense | {"backend": backend}
    assert evaluated(capsys, bundle, "--limit", "7")["count"] == 7


@pytest.mark.skipif(isa() is None, reason="the native library is not built here")
def test_the_fastest_backend_runs_by_default_and_is_named(bundle, capsys):
    assert evaluated(capsys, bundle)["backend"] == "native"
    assert main(["eval", str(bundle), "--limit", "3"]) == 0
    assert "backend native" in capsys.readouterr().out


def test_a_pretrained_network_goes_by_its_name(tmp_path, capsys):
    words = ["eval", "pocket-cifar10", "--data", "synthetic", "--cache", str(tmp_path), "--json"]
    assert main([*words, "--limit", "30"]) == 0
    found = json.loads(capsys.readouterr().out)
    recipe = pretrained_recipe("pocket-cifar10")
    data = open_samples(recipe, source="synthetic", cache=tmp_path)
    (samples,) = sample_batches(data, limit=30, batch=30)
    with torch.no_grad():
        answers = lbq.load_pretrained("pocket-cifar10")(samples.real).argmax(1)
    assert (found["correct"], found["count"]) == (int((answers == samples.target).sum()), 30)
    assert main([*words, "--backend", "planes"]) == 2
    assert "--backend is for .lbq files, not pocket-cifar10" in capsys.readouterr().err


@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_every_engine_counts_alike(bundle, tmp_path, capsys, to):
    expected = evaluated(capsys, bundle) | {"backend": None}
    out = tmp_path / f"net.{to}"
    assert main(["export", str(bundle), "--to", to, "--out", str(out)]) == 0
    capsys.readouterr()
    assert evaluated(capsys, out) == expected
    if to == "onnx":
        assert evaluated(capsys, out, "--engine", "openvino") == expected


def test_a_float_network_counts_as_its_run(trained, tmp_path, capsys):
    expected = evaluated(capsys, trained)
    out = tmp_path / "net.nir"
    assert main(["export", str(trained), "--to", "nir", "--out", str(out)]) == 0
    capsys.readouterr()
    found = evaluated(capsys, out)
    assert found["count"] == expected["count"]
    assert abs(found["correct"] - expected["correct"]) <= 1  # float32 rounds in another order


PIXELS = lbq.Pixels(mean=(0.5, 0.4, 0.3), std=(0.25, 0.3, 0.2))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Bundles of a network that no recipe of the library trained: real numbers, and integers."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 6, 3, padding=1),
        lbq.RepeatOverTime(2),
        lbq.BurstLIF(max_level=3, step=0.2),
        lbq.OverTime(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 2)),
        lbq.MeanOverTime(),
    )
    folder = tmp_path_factory.mktemp("own")
    real = lbq.lower(model.eval(), torch.zeros(1, 3, 8, 8))
    lbq.save_network(real, folder / "real.lbq")
    lbq.save_network(lbq.to_fixed_point(real, pixels=PIXELS), folder / "integers.lbq")
    return folder


def answered(network, pictures, prepare):
    """The right answers over a folder of classes, counted without the library's data."""
    correct = count = 0
    for label, name in enumerate(("dark", "light")):
        for path in sorted((pictures / "test" / name).iterdir()):
            image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)
            answer = lbq.run_network(network, prepare(image)[None])
            correct, count = correct + int(answer.argmax(1).item() == label), count + 1
    return correct, count


def normalized(image):
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (PIXELS.mean, PIXELS.std))
    return (image / 255 - mean) / std


def test_a_bundle_of_an_own_network_is_tested_on_a_folder_of_images(
    own, pictures, tmp_path, capsys
):
    words = ("--data", pictures, "--cache", tmp_path)
    found = evaluated(capsys, own / "integers.lbq", *words)
    expected = answered(lbq.load_network(own / "integers.lbq"), pictures, lambda image: image)
    assert (found["correct"], found["count"]) == expected
    flags = ("--mean", *PIXELS.mean, "--std", *PIXELS.std)
    found = evaluated(capsys, own / "real.lbq", *words, *flags)
    assert (found["correct"], found["count"]) == answered(
        lbq.load_network(own / "real.lbq"), pictures, normalized
    )
    assert 0 < found["correct"] < found["count"]  # a network that always says one class is no test


def test_what_a_bundle_of_an_own_network_does_not_say_is_asked_for_by_flag(
    own, pictures, tmp_path, capsys
):
    large = tmp_path / "large"
    flat = tmp_path / "flat"
    more = tmp_path / "more"
    for i, name in enumerate(("a", "b", "c")):
        for folder, side in ((large, 16), (flat, 8), (more, 8)):
            if i == 2 and folder is not more:
                continue
            for split in ("train", "test") if folder is not flat else ("",):
                (folder / split / name).mkdir(parents=True)
                picture = np.full((side, side, 3), 80 * i, np.uint8)
                Image.fromarray(picture).save(folder / split / name / "1.png")

    def refused(name, *words):
        cache = ["--cache", str(tmp_path / "cache")]
        assert main(["eval", str(own / name), *map(str, words), *cache]) == 1
        return capsys.readouterr().err

    assert "name one with --data" in refused("integers.lbq")
    assert "--mean R G B --std R G B" in refused("real.lbq", "--data", pictures)
    assert "already contains the normalisation" in refused(
        "integers.lbq", "--data", pictures, "--std", 1, 1, 1
    )
    assert "pass --size 8" in refused("integers.lbq", "--data", large)
    assert "--split" in refused("integers.lbq", "--data", flat)
    assert "answers for 2 classes" in refused("integers.lbq", "--data", more)
    cache = ("--cache", tmp_path / "cache")
    for words in (("--data", large, "--size", 8), ("--data", flat, "--split", "train")):
        assert evaluated(capsys, own / "integers.lbq", *words, *cache)["count"] == 2


@pytest.mark.parametrize("shape", [(12,), (1, 4, 4), (3, 4, 4)], ids=["flat", "grey", "frames"])
def test_inputs_that_are_no_rgb_images_are_refused_with_what_python_does(tmp_path, capsys, shape):
    takes_frames = shape == (3, 4, 4)
    model = torch.nn.Sequential(
        *([] if takes_frames else [lbq.RepeatOverTime(2)]),
        lbq.OverTime(torch.nn.Flatten(), torch.nn.Linear(math.prod(shape), 2)),
        lbq.BurstLIF(),
        lbq.OverTime(torch.nn.Linear(2, 2)),
        lbq.MeanOverTime(),
    )
    example = torch.zeros(2, 1, *shape) if takes_frames else torch.zeros(1, *shape)
    path = tmp_path / "own.lbq"
    lbq.save_network(lbq.lower(model.eval(), example), path)
    assert main(["eval", str(path), "--data", "synthetic"]) == 1
    assert f"lbq.run_network(lbq.load_network('{path}'), inputs)" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", [".lbq", ".onnx"])
def test_a_file_with_several_outputs_is_refused(suffix, tmp_path, capsys):
    network, _ = NETWORKS["outputs"](0)
    lbq.export(network, tmp_path / f"net{suffix}")
    assert main(["eval", str(tmp_path / f"net{suffix}")]) != 0
    assert re.search(r"has \d outputs", capsys.readouterr().err)


def test_a_run_on_other_data_says_so(trained, pictures, tmp_path, capsys):
    words = ["eval", str(trained), "--cache", str(tmp_path)]
    source = lbq.load_run(trained).recipe.data.source
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"] == {"source": source, "is_own": True}
    assert main(words) == 0
    assert "not the data" not in capsys.readouterr().out
    other = [*words, "--data", str(pictures)]
    assert main([*other, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["data"] == {"source": str(pictures), "is_own": False}
    assert main(other) == 0
    assert f"; on {pictures}, which is not the data of the run" in capsys.readouterr().out
