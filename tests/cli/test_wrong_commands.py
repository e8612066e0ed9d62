"""What people get wrong: each error is one helpful line, an exit code, and no traceback."""

import ctypes
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lbq
from lbq.cli.main import ERROR, USAGE, main
from lbq.train.recipe import write_recipe


@pytest.fixture(scope="module")
def here(trained, bundle, tmp_path_factory, tiny):
    """A folder with everything that can be wrong in it."""
    folder = tmp_path_factory.mktemp("here")
    recipe = write_recipe(tiny.tiny_recipe(epochs=1))
    (folder / "tiny.json").write_text(recipe)
    (folder / "broken.json").write_text(recipe[:-20])
    (folder / "misspelt.json").write_text(recipe.replace('"epochs"', '"eposch"'))
    (folder / "nan.json").write_text(recipe.replace('"lr": 0.05', '"lr": NaN'))
    (folder / "digits.json").write_text(recipe.replace('"lr": 0.05', '"lr": 1' + "0" * 400))
    (folder / "escaped.json").write_text(recipe.replace('"tiny"', '"../../escaped"'))
    whole = bundle.read_bytes()
    (folder / "net.lbq").write_bytes(whole)
    (folder / "flipped.lbq").write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    (folder / "cut.lbq").write_bytes(whole[:-100])
    for name in ("letter.onnx", "letter.pt2", "letter.nir", "letter.lbq"):
        (folder / name).write_text("Dear reader,")
    for name in ("empty", "texts"):
        (folder / name).mkdir()
    (folder / "texts" / "a.txt").write_text("not an image")
    (folder / "run").symlink_to(trained)
    damaged = folder / "damaged" / "checkpoints"
    damaged.mkdir(parents=True)
    for file in (trained / "checkpoints").iterdir():
        (damaged / file.name).write_bytes(file.read_bytes()[:-1])
    return folder


COMMANDS = [  # words, exit code, what the line says
    ("trian", USAGE, "did you mean `lbq train`?"),
    ("train", USAGE, "name a recipe first"),
    ("train pockt", USAGE, "did you mean pocket? take one of"),
    ("train tiny.json --epoch 3", USAGE, "did you mean --epochs?"),
    ("train tiny.json --epochs many", USAGE, "--epochs: invalid literal for int"),
    ("train tiny.json --epochs 0", USAGE, "--epochs: epochs must be at least 1, got 0"),
    ("train tiny.json --epochs 1" + 30 * "0", USAGE, "--epochs: epochs must be at least 1 and at"),
    ("train tiny.json --batch 0", USAGE, "--batch: batch must be at least 1, got 0"),
    ("train tiny.json --seed 1" + 20 * "0", USAGE, "--seed: seed must be at least 0 and at most"),
    ("train tiny.json --seed -1", USAGE, "--seed: seed must be at least 0 and at most"),
    ("train tiny.json --optim.lr nan", USAGE, "--optim.lr: lr must be above 0 and at most"),
    ("train tiny.json --optim.lr inf", USAGE, "--optim.lr: lr must be above 0 and at most"),
    ("train tiny.json --optim.lr=1e400", USAGE, "--optim.lr: lr must be above 0 and at most"),
    ("train tiny.json --optim.momentum 1", USAGE, "momentum must be at least 0 and below 1"),
    ("train tiny.json --optim.momentum 0", USAGE, "nesterov needs a momentum above 0"),
    ("train tiny.json --optim.betas 0.9 nan", USAGE, "betas must be at least 0 and below 1"),
    ("train tiny.json --optim.weight-decay nan", USAGE, "weight_decay must be at least 0"),
    ("train tiny.json --optim.clip-norm inf", USAGE, "clip_norm must be above 0"),
    ("train tiny.json --optim.neuron-lr-scale nan", USAGE, "neuron_lr_scale must be at least 0"),
    ("train tiny.json --schedule.warmup-epochs nan", USAGE, "warmup_epochs must be at least 0"),
    ("train tiny.json --schedule.warmup-factor inf", USAGE, "warmup_factor must be at least 0"),
    ("train tiny.json --schedule.final-factor -1", USAGE, "final_factor must be at least 0"),
    ("train tiny.json --label-smoothing nan", USAGE, "label_smoothing must be at least 0"),
    ("train tiny.json --ema-decay nan", USAGE, "ema_decay must be above 0 and below 1"),
    ("train tiny.json --calibrate nan", USAGE, "calibrate must be above 0 and at most 100"),
    ("train tiny.json --model.width nan", USAGE, "width must be above 0 and at most 1024"),
    ("train tiny.json --model.width 1e300", USAGE, "width must be above 0 and at most 1024"),
    ("train tiny.json --model.blocks 1 1 100000", USAGE, "blocks must be at least 0 and at"),
    ("train tiny.json --model.neuron.step nan", USAGE, "step must be above 0"),
    ("train tiny.json --model.neuron.decay nan", USAGE, "decay must be at least 0 and at most 1"),
    ("train tiny.json --model.neuron.max-level 999", USAGE, "max_level must be at least 1 and at"),
    ("train tiny.json --data.max-corrupt nan", USAGE, "max_corrupt must be at least 0"),
    ("train tiny.json --data.size 0", USAGE, "--data.size: size must be at least 1"),
    ("train tiny.json --data.augment.mix.mixup nan", USAGE, "mixup must be at least 0"),
    ("train tiny.json --data.augment.area 0.1 nan", USAGE, "area must be above 0 and at most 1"),
    (
        "train tiny.json --data.augment.normalization.std 0 1 1",
        USAGE,
        "--data.augment.normalization.std: std must be above 0",
    ),
    ("train tiny.json --log-every 0", USAGE, "--log-every: log_every must be at least 1, got 0"),
    ("train tiny.json --save-every-steps 0", USAGE, "save_every_steps must be at least 1, got 0"),
    ("train tiny.json --save-every-s nan", USAGE, "--save-every-s: save_every_s must be at least"),
    ("train tiny.json --threads 0", USAGE, "--threads: threads must be at least 1, got 0"),
    ("train tiny.json --workers -1", USAGE, "--workers: workers must be at least 0, got -1"),
    ("train tiny.json --timeout-s inf", USAGE, "--timeout-s: timeout_s must be above 0"),
    ("train tiny.json --stop-at 0", USAGE, "--stop-at: stop_at must be at least 1, got 0"),
    ("train nan.json", ERROR, "nan.json is not strict JSON: NaN is not a number"),
    ("train digits.json", ERROR, "Recipe.optim.lr must be a number"),
    ("train escaped.json", ERROR, "name must be usable as the name of a folder"),
    ("train tiny.json --devices 0", USAGE, "--devices must be at least 1"),
    ("train tiny.json --devices 3", ERROR, "3 devices cannot split a batch of 16"),
    ("train tiny.json --device cuda:7", ERROR, "torch finds no GPU here; `lbq doctor`"),
    ("train tiny.json --device toaster", ERROR, "use cpu, cuda, cuda:1 or auto"),
    ("train tiny.json --model.timesteps 0", USAGE, "timesteps must be at least 1"),
    ("train tiny.json --model.width 300", ERROR, "out of memory: take a smaller batch"),
    ("train tiny.json --data nowhere", ERROR, "no images can be read from nowhere"),
    ("train tiny.json --data empty", ERROR, "no images can be read from empty"),
    ("train tiny.json --data texts", ERROR, "no label column 'label' or 'fine_label'"),
    ("train nmnist-pocket --data texts", ERROR, "no train recordings in the layout of nmnist"),
    ("train nmnist-pocket --data net.lbq", ERROR, "neither a folder nor a zip file"),
    ("train tiny.json --out net.lbq/run", ERROR, "a file, or below one; choose another folder"),
    ("train tiny.json --out run --seed 9", ERROR, "allow them: --allow-changed recipe.seed"),
    ("train nowhere.json", ERROR, "nowhere.json cannot be read"),
    ("train broken.json", ERROR, "broken.json is not strict JSON"),
    ("train misspelt.json", ERROR, "Recipe has no field eposch; it has"),
    ("eval nowhere", ERROR, "is it the folder of a run?"),
    ("eval empty", ERROR, "has no checkpoint"),
    ("eval damaged", ERROR, "restore one from a backup"),
    ("eval run --step 77", ERROR, "no checkpoint of step 77; it has [4]"),
    ("eval nowhere.lbq", ERROR, "there is no file nowhere.lbq"),
    ("eval flipped.lbq", ERROR, "flipped.lbq: the bytes have SHA-256"),
    ("eval cut.lbq", ERROR, "cut.lbq: the header says"),
    ("eval letter.lbq", ERROR, "letter.lbq: "),
    ("eval letter.onnx", ERROR, "letter.onnx is not an ONNX file"),
    ("eval letter.pt2", ERROR, "letter.pt2 is not a complete .pt2 program"),
    ("eval letter.nir", ERROR, "letter.nir is not a readable NIR graph"),
    ("eval net.lbq --engine openvino", USAGE, "--engine runs .onnx files"),
    ("eval letter.pt2 --backend unary", USAGE, "--backend is for .lbq"),
    ("eval net.lbq --step 3", USAGE, "--step, --device, --devices and --workers are for runs"),
    ("eval net.lbq --workers 2", USAGE, "are for runs"),
    ("eval net.lbq --size 8", USAGE, "carries one"),
    ("eval run --size 8", USAGE, "not for runs"),
    ("eval run --limit 3", USAGE, "are for files"),
    ("eval net.lbq --limit -3", USAGE, "--limit must be at least 1, got -3"),
    ("lower empty", ERROR, "has no checkpoint"),
    ("lower nowhere", ERROR, "there is no run at nowhere; name the folder of one"),
    ("lower net.lbq", USAGE, "lowered already; `lbq lower` takes the folder of a run"),
    ("lower runs.lbq", USAGE, "`lbq export runs.lbq`"),
    ("export net.lbq --to onnx --events --out x", USAGE, "--events is for --to c"),
    ("lower run --bits 7", USAGE, "invalid choice '7' for argument '--bits'"),
    ("lower run --out nowhere/net.lbq", ERROR, "a file in a folder that exists"),
    ("lower run --data nowhere --out x.lbq", ERROR, "no images can be read from nowhere"),
    ("lower run --calibrate -5 --out x.lbq", USAGE, "--calibrate must be at least 0"),
    ("export net.lbq --to tflite --out x", USAGE, "Expected one of ('onnx', 'pt2'"),
    ("export net.lbq --to nir --out x.nir", ERROR, "lbq lower --bits float"),
    ("export net.lbq --to pt2 --style int8 --out x", USAGE, "--style int8 is for --to onnx"),
    ("export net.lbq --to onnx --bits 4 --out x", USAGE, "belong to `lbq lower`"),
    ("export letter.lbq --to onnx --out x", ERROR, "letter.lbq: "),
    ("export nowhere --to onnx --out x", ERROR, "no bundle and no run at nowhere"),
    ("export nowhere.lbq --to onnx --out x", ERROR, "no bundle and no run at nowhere.lbq"),
    ("export run --to onnx --out nowhere/x", ERROR, "cannot be written"),
    ("report", USAGE, "name the folder of a run"),
    ("report empty", ERROR, "has no checkpoint"),
    ("report run --out nowhere/x", ERROR, "--out names a file"),
    ("report run run --step 4", USAGE, "--step is for one run"),
    ("report run --limit -1", USAGE, "--limit must be at least 0"),
    ("doctor now", USAGE, "Unrecognized options: now"),
    ("completion fish", USAGE, "'bash', 'zsh', 'tcsh'"),
]


@pytest.mark.parametrize(("words", "code", "says"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_a_wrong_command_is_one_helpful_line(words, code, says, here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    extra = ["--out", "new"] if words.startswith("train ") and "--out" not in words else []
    cache = ["--cache", "cache"] if words.startswith(("train ", "lower ")) else []
    words = words.split()
    is_misnamed = len(words) < 2 or words[1] == "pockt"
    assert main(words if is_misnamed else [*words, *extra, *cache]) == code
    check_message(capsys.readouterr().err, says)


def check_message(stderr, says):
    """Demand one line that is an error, at the end, and no traceback."""
    *before, last = stderr.splitlines()
    assert last.startswith("error: ")
    assert says in last
    assert not [line for line in before if line.startswith("error: ")]
    assert "Traceback" not in stderr


@contextmanager
def without_the_rights_of_root():
    """Make the modes of folders hold for root too: drop CAP_DAC_OVERRIDE for a while."""
    libc, version, override = ctypes.CDLL(None, use_errno=True), 0x20080522, 1 << 1
    header = (ctypes.c_uint32 * 2)(version, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, rights) == 0
    kept = rights[0]
    rights[0] = kept & ~override
    assert libc.capset(header, rights) == 0
    try:
        yield
    finally:
        rights[0] = kept
        assert libc.capset(header, rights) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize("words", ["train tiny.json --out locked/run", "lower run --out locked/x"])
def test_a_read_only_folder_is_named(words, here, monkeypatch, capsys):
    monkeypatch.chdir(here)
    (here / "locked").mkdir(exist_ok=True)
    (here / "locked").chmod(0o555)
    with without_the_rights_of_root():
        assert main(words.split()) == ERROR
    check_message(capsys.readouterr().err, "Permission denied; check who owns it")


def test_a_process_ends_as_the_call_does(here):
    command = [sys.executable, "-m", "lbq.cli", "eval", "cut.lbq"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ERROR, "")
    check_message(done.stderr, "cut.lbq: the header says")


def test_a_reader_that_leaves_early_gets_no_message():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "lbq.cli", "completion", "bash"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.fixture(scope="module")
def nets(bundle):
    """Networks that calls can be wrong about."""
    model = lbq.resnet20(10, width=1 / 64).eval()
    images = torch.randn(1, 3, 8, 8)
    real = lbq.lower(model, images)
    return SimpleNamespace(model=model, images=images, real=real, integers=lbq.load_network(bundle))


CALLS = {
    "a level of zero": (lambda n: lbq.BurstLIF(max_level=0), "max_level"),
    "a negative step": (lambda n: lbq.LearnedStep(-1.0), "step"),
    "no time axis": (lambda n: lbq.BurstLIF()(torch.ones(3)), r"\[T, B"),
    "no timestep": (lambda n: lbq.BurstLIF()(torch.ones(0, 2, 3)), "timestep"),
    "a network of no width": (lambda n: lbq.resnet20(10, width=0), "width"),
    "an unknown kind of input": (lambda n: lbq.resnet20(10, timesteps=0), "timestep"),
    "a network that cannot be lowered": (
        lambda n: lbq.lower(nn.Sequential(nn.GELU()).eval(), torch.ones(1, 2, 3)),
        "GELU",
    ),
    "an unknown backend": (lambda n: lbq.run_network(n.real, n.images, backend="gpu"), "planes"),
    "images of another size": (lambda n: lbq.run_network(n.real, torch.ones(1, 3, 9, 9)), "9"),
    "floats for integers": (lambda n: lbq.run_network(n.integers, n.images), "uint8"),
    "three bits": (lambda n: lbq.to_fixed_point(n.real, bits=3), "bits"),
    "integers made of integers": (lambda n: lbq.to_fixed_point(n.integers), "integer"),
    "a file that is not there": (lambda n: lbq.load_network("nowhere.lbq"), "nowhere.lbq"),
    "a step of calibration without data": (lambda n: lbq.calibrate_steps(n.model, []), "batch"),
}


@pytest.mark.parametrize(("call", "says"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_an_error_of_ours_that_says_what_was_expected(call, says, nets):
    with pytest.raises((lbq.LBQError, FileNotFoundError)) as error:
        call(nets)
    assert re.search(says, str(error.value))
