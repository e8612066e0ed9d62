"""lbq-run gives the integers of the dense backend, shard by shard, and says what is wrong."""

import fcntl
import os
import resource
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from bundles import tiny_network
from equivalence import engines
from random_networks import RandomNetwork

import lbq
from lbq.pretrained import pretrained_recipe


def with_classes(logits):
    """Put the class in front of the logits, as lbq-run writes them."""
    logits = logits.numpy().astype(np.int64)
    return np.concatenate([logits.argmax(-1)[..., None], logits], axis=-1)


def samples_first(network, inputs):
    """Return the bytes of a .u8 file: one sample behind the other, each with all its frames."""
    return inputs.transpose(0, 1).contiguous() if network.takes_frames else inputs


def from_csv(text):
    return np.loadtxt(text.splitlines(), delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)


def check_everywhere(lbq_run, network, inputs, folder):
    """Compare all ways in and out with the dense backend, bit by bit."""
    expected = with_classes(lbq.run_network(network, inputs, backend="dense"))
    bundle, shards = folder / "net.lbq", folder / "in"
    lbq.save_network(network, bundle)
    shards.mkdir()
    np.save(shards / "a.npy", inputs.numpy())
    raw = samples_first(network, inputs).numpy().tobytes()
    (shards / "b.u8").write_bytes(raw)
    for form in ("csv", "npy"):
        done = lbq_run(bundle, shards, folder / form, "--format", form, "--batch", 2)
        assert done.returncode == 0, done.stderr
        for name in ("a.npy", "b.u8"):
            path = folder / form / f"{name}.{form}"
            if form == "npy":
                assert np.array_equal(np.load(path), expected)
            else:
                rows = from_csv(path.read_text())
                assert rows[:, 0].tolist() == list(range(len(expected)))
                assert np.array_equal(rows[:, 1:], expected)
    for how in ((), ("--isa", "scalar", "--threads", 3), ("--isa", "interpreter")):
        done = lbq_run(bundle, "-", "--batch", 3, *how, input=raw)
        assert np.array_equal(from_csv(done.stdout.decode())[:, 1:], expected)


def test_threads_that_cannot_start_are_not_called_a_lack_of_memory(lbq_run, tmp_path):
    network = tiny_network()
    lbq.save_network(network, tmp_path / "net.lbq")

    def ask_for_huge_stacks():
        _, hard = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (2**46, hard))  # of every thread: none can start

    raw = network.example(4).numpy().tobytes()
    done = lbq_run(
        tmp_path / "net.lbq", "-", "--threads", 2, input=raw, preexec_fn=ask_for_huge_stacks
    )
    assert done.returncode == 1
    assert b"Resource temporarily unavailable" in done.stderr
    assert b"memory" not in done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_give_the_same_integers(seed, lbq_run, tmp_path):
    model = RandomNetwork(seed)
    inputs = model.inputs(5)
    network = engines.integer_network(model, inputs, bits=(4, 8, 16)[seed % 3])
    check_everywhere(lbq_run, network, inputs, tmp_path)


def test_the_trained_network_gives_the_same_integers(lbq_run, tmp_path):
    model, recipe = lbq.load_pretrained("pocket-cifar10"), pretrained_recipe("pocket-cifar10")
    if "LBQ_DATA" in os.environ:
        data = Path(os.environ["LBQ_DATA"]) / "cifar10"
        pixels, images = engines.cifar10_bytes(data, 8, recipe)
    else:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8, generator=generator)
        images = pixels / 64 - 2
    normalization = recipe.data.augment.normalization
    given = lbq.Pixels(mean=normalization.mean, std=normalization.std)
    network = lbq.to_fixed_point(lbq.lower(model, images), bits=8, pixels=given, calibration=images)
    check_everywhere(lbq_run, network, pixels, tmp_path)


@pytest.fixture
def place(tmp_path):
    """A folder with a bundle and six shards of two images each."""
    lbq.save_network(tiny_network(), tmp_path / "net.lbq")
    (tmp_path / "in").mkdir()
    for number in range(6):
        images = np.random.default_rng(number).integers(0, 256, (2, 2, 5, 5), dtype=np.uint8)
        np.save(tmp_path / "in" / f"{number}.npy", images)
    return tmp_path


@pytest.fixture
def answer(lbq_run, place):
    """``answer(*options)``: run the bundle of the place over its samples."""

    def call(*options, bundle="net.lbq", source="in", out="out", **settings):
        return lbq_run(place / bundle, place / source, place / out, *options, **settings)

    return call


def answers(place, out="out"):
    return {path.name: path.read_bytes() for path in sorted((place / out).glob("*.csv"))}


def test_workers_with_shards_of_their_own_do_what_one_does(answer, place):
    assert answer(out="one").returncode == 0
    for worker in range(4):
        done = answer("--shard", f"{worker}/4", out="many")
        assert done.returncode == 0
    assert len(answers(place, "one")) == 6
    assert answers(place, "one") == answers(place, "many")


def test_what_is_answered_is_not_answered_again(answer, place):
    answer()
    before = {path: path.stat().st_mtime_ns for path in (place / "out").iterdir()}
    (place / "out" / "3.npy.csv").unlink()
    done = answer()
    assert b"1 files answered, 5 were before" in done.stderr
    after = {path: path.stat().st_mtime_ns for path in (place / "out").iterdir()}
    assert after.keys() == before.keys()
    assert sum(before[path] != after[path] for path in before) == 1


def test_a_file_that_is_wrong_is_named_and_the_others_are_answered(answer, place):
    np.save(place / "in" / "3.npy", np.zeros((2, 3, 5, 5), np.uint8))
    done = answer()
    assert done.returncode == 1
    assert b"3.npy: has shape [2, 3, 5, 5], the network takes B samples of [2, 5, 5]" in done.stderr
    assert len(answers(place)) == 5
    assert not list((place / "out").glob(".*"))


@pytest.mark.parametrize(
    ("save", "why"),
    [
        (lambda path: np.save(path, np.zeros((2, 2, 5, 5))), b"expected uint8"),
        (lambda path: np.save(path, np.zeros((5, 5, 2, 2), np.uint8).T), b"in C order"),
        (lambda path: path.write_bytes(b"hello"), b"is no .npy file"),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\x00\xff\xff" + b" " * 70), b"is no .npy"),
        (lambda path: path.write_bytes((path.parent / "0.npy").read_bytes()[:-1]), b"was cut or"),
    ],
)
def test_npy_files_of_other_kinds_are_refused(save, why, answer, place):
    save(place / "in" / "bad.npy")
    done = answer(source="in/bad.npy")
    assert done.returncode == 1
    assert why in done.stderr
    assert not answers(place)


def test_raw_files_and_streams_have_whole_samples(lbq_run, answer, place):
    (place / "in" / "odd.u8").write_bytes(bytes(75))
    done = answer(source="in/odd.u8")
    assert done.returncode == 1
    assert b"has 75 bytes, which is no multiple of a sample's 50" in done.stderr
    for batch in (1, 4, 5, 64):  # whole samples are answered first, whichever batch is cut
        done = lbq_run(place / "net.lbq", "-", "--batch", str(batch), input=bytes(225))
        assert done.returncode == 1
        assert b"ends 25 bytes into a sample of 50" in done.stderr
        assert len(done.stdout.splitlines()) == 1 + 4


def test_answers_are_not_taken_for_samples(answer, place):
    done = answer("--format", "npy", out="in")
    assert done.returncode == 1
    assert b"holds the samples" in done.stderr
    assert sorted(path.name for path in (place / "in").iterdir()) == [f"{i}.npy" for i in range(6)]
    for _ in range(2):  # other answers may lie there
        assert answer(out="in").returncode == 0


def test_answers_of_two_networks_do_not_mix(answer, place):
    answer()
    other = replace(tiny_network(), logit_scale=0.5)
    lbq.save_network(other, place / "other.lbq")
    done = answer(bundle="other.lbq")
    assert done.returncode == 1
    assert b"holds the answers of another network" in done.stderr


def test_a_bundle_that_breaks_a_rule_is_refused_by_its_name(answer, place):
    data = bytearray((place / "net.lbq").read_bytes())
    data[-1] ^= 1
    (place / "bad.lbq").write_bytes(data)
    done = answer(bundle="bad.lbq")
    assert done.returncode == 1
    assert b"(rule digest)" in done.stderr
    assert not (place / "out").exists()
    known = lbq.formats.digest(place / "net.lbq")
    assert answer("--sha256", known).returncode == 0
    done = answer("--sha256", "0" * 64)
    assert b"(rule known-digest)" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "net.lbq",
        "--what",
        "net.lbq in out --shard 2/2",
        "net.lbq in out --shard x",
        "net.lbq in out --batch 0",
        "net.lbq in out --format xml",
        "net.lbq in out --threads 0",
    ],
)
def test_a_wrong_command_line_shows_the_right_one(arguments, lbq_run):
    done = lbq_run(*arguments.split())
    assert done.returncode == 2
    assert b"lbq-run NET.lbq IN OUT" in done.stderr


def test_an_instruction_set_that_is_not_here_is_refused(answer, place):
    done = answer("--isa", "abacus")
    assert done.returncode == 2
    assert b"no instruction set abacus" in done.stderr
    assert not (place / "out").exists()


def test_a_file_that_another_worker_holds_is_left_to_it(answer, place):
    (place / "out").mkdir()
    with open(place / "out" / ".3.npy.csv.tmp", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("half a r")
        other.flush()
        done = answer()
        assert done.returncode == 75
        assert b"5 files answered, 0 were before, 1 are with other workers" in done.stderr
    assert answer().returncode == 0  # a killed worker holds nothing
    assert len(answers(place)) == 6
    assert b"half" not in answers(place)["3.npy.csv"]


def test_a_full_disk_is_named_and_nothing_is_left_half_written(lbq_run, answer, place):
    np.save(place / "in" / "9.npy", np.zeros((50, 2, 5, 5), np.uint8))
    done = answer(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400)))
    assert done.returncode == 1
    assert b"9.npy.csv: File too large" in done.stderr
    assert len(answers(place)) == 6
    assert not list((place / "out").glob(".*"))
    done = lbq_run(place / "net.lbq", "-", input=bytes(50), preexec_fn=_write_to_a_full_disk)
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def _write_to_a_full_disk():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
