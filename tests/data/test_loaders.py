"""Batches: the same bits for any number of ranks and workers, and errors that arrive."""

import dataclasses
import hashlib
import io
import multiprocessing
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lbq import data
from lbq.data import AugmentConfig, DataConfig, MixConfig, augment, loaders, sampler, shared_buffers
from lbq.data.loaders import EvalBatches, TrainBatches
from lbq.data.splits import InMemory
from lbq.errors import CorruptSample, FormatError, ParameterError

FOUR_WORKERS = pytest.mark.filterwarnings("ignore:This DataLoader will create")

EVERYTHING = AugmentConfig(
    crop="pad", flip=True, policy="cifar10", cutout=6, mix=MixConfig(mixup=0.8, cutmix=1.0)
)


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    config = DataConfig(source="synthetic", limit=203, limit_test=57, augment=EVERYTHING)
    return data.open_data(config, tmp_path_factory.mktemp("unused"))


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory):
    augmented = AugmentConfig(crop="pad", flip=True)
    config = DataConfig(source="synthetic", limit=203, limit_test=57, augment=augmented)
    return data.open_data(config, tmp_path_factory.mktemp("unused"))


def epoch(opened, **options):
    options = {"seed": 1, "epoch": 0, "global_batch": 16} | options
    return list(data.train_batches(opened, **options))


def sha(batches):
    """Hash every bit of every batch."""
    found = hashlib.sha256()
    for batch in batches:
        for tensor in batch:
            found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def join(by_rank):
    """Put the parts of all ranks together again."""
    return [
        data.Batch(*(torch.cat(parts) for parts in zip(*step, strict=True)))
        for step in zip(*by_rank, strict=True)
    ]


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_together_see_the_bits_that_one_sees(synthetic, world_size):  # D1
    ranks = [epoch(synthetic, rank=rank, world_size=world_size) for rank in range(world_size)]
    assert sha(join(ranks)) == sha(epoch(synthetic))


@FOUR_WORKERS
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_workers_change_no_bit(synthetic, num_workers):  # D2
    assert sha(epoch(synthetic, num_workers=num_workers)) == sha(epoch(synthetic))


def test_the_same_seed_gives_the_same_bits_and_another_epoch_others(synthetic):  # D2
    assert sha(epoch(synthetic)) == sha(epoch(synthetic))
    others = {sha(epoch(synthetic, epoch=1)), sha(epoch(synthetic, seed=2)), sha(epoch(synthetic))}
    assert len(others) == 3


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_goes_on_where_it_stopped(synthetic, num_workers):
    whole = epoch(synthetic)
    rest = epoch(synthetic, start_step=5, num_workers=num_workers)
    assert sha(rest) == sha(whole[5:])


def test_another_global_batch_trains_on_the_same_order(synthetic):
    plain = dataclasses.replace(
        synthetic, config=dataclasses.replace(synthetic.config, augment=AugmentConfig(flip=True))
    )
    small, large = (epoch(plain, global_batch=size) for size in (8, 32))
    assert torch.equal(torch.cat([b.x for b in small])[:192], torch.cat([b.x for b in large]))


def test_the_last_incomplete_batch_is_dropped(synthetic):
    assert data.steps_per_epoch(synthetic, 16) == 12
    batches = epoch(synthetic)
    assert len(batches) == 12
    index = torch.cat([batch.sample_ids for batch in batches])
    assert len(index.unique()) == len(index) == 192


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_evaluation_counts_every_sample_once(tmp_path, world_size, num_workers):  # D6
    config = DataConfig(source="synthetic", size=4, limit=16, limit_test=10_007)
    opened = data.open_data(config, tmp_path)
    ranks = [
        list(
            data.eval_batches(
                opened, batch=64, rank=r, world_size=world_size, num_workers=num_workers
            )
        )
        for r in range(world_size)
    ]
    index = torch.cat([batch.sample_ids for batches in ranks for batch in batches])
    assert torch.equal(index, torch.arange(10_007))
    target = torch.cat([batch.target for batches in ranks for batch in batches])
    assert np.array_equal(target.numpy(), opened.splits.test.labels)
    assert max(len(batch.sample_ids) for batches in ranks for batch in batches) == 64


def test_a_set_says_what_it_is(synthetic, tmp_path):
    assert (synthetic.num_train, synthetic.num_test, synthetic.num_classes) == (203, 57, 10)
    assert synthetic.sample_shape == (3, 16, 16)
    assert not synthetic.is_sequence
    clips = data.open_data(DataConfig(source="synthetic", kind="nmnist", timesteps=3), tmp_path)
    assert clips.sample_shape == (3, 2, 16, 16)
    assert clips.is_sequence
    assert epoch(clips)[0].x.shape == (3, 16, 2, 16, 16)


def test_targets_are_soft_where_samples_are_mixed(synthetic):
    assert epoch(synthetic)[0].target.shape == (16, 10)
    (first, *_) = data.eval_batches(synthetic, batch=8)
    assert first.target.dtype == torch.int64


def test_real_images_are_packed_once_and_read_back(real_data, cache):
    config = DataConfig(
        source=str(real_data / "cifar10"), limit=500, limit_test=200, augment=EVERYTHING
    )
    opened = data.open_data(config, cache)
    assert opened.sample_shape == (3, 32, 32)
    assert data.open_data(config, cache).digest == opened.digest
    assert len(list((cache / "packed").iterdir())) >= 1
    assert sha(epoch(opened, num_workers=2)) == sha(epoch(opened))


def test_the_pixels_of_cifar10_have_the_known_mean_and_deviation(real_data, cache):
    config = DataConfig(
        source=str(real_data / "cifar10"),
        limit=5000,
        limit_test=100,
        augment=AugmentConfig(normalization=data.UNIT),
    )
    pixels = torch.cat([b.x for b in epoch(data.open_data(config, cache), global_batch=100)])
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.005)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx([0.2470, 0.2435, 0.2616], abs=0.005)


@pytest.mark.parametrize(
    ("match", "config"),
    [
        ("need a size", {"augment": AugmentConfig(crop="resized")}),
        ("limit", {"limit": 0}),
        ("synthetic", {"source": "synthetic", "size": 8, "augment": AugmentConfig(crop="resized")}),
        ("for images", {"kind": "nmnist", "augment": AugmentConfig(cutout=4)}),
        ("for recordings", {"augment": AugmentConfig(events="nda")}),
    ],
)
def test_contradictions_are_refused(match, config):
    with pytest.raises(ParameterError, match=match):
        DataConfig(**{"source": "x", **config})


def test_bad_batches_are_refused_when_they_are_asked_for(synthetic):
    with pytest.raises(ParameterError, match="multiple of 3"):
        data.train_batches(synthetic, seed=0, epoch=0, global_batch=16, rank=0, world_size=3)
    with pytest.raises(ParameterError, match="between 1 and all 203"):
        data.train_batches(synthetic, seed=0, epoch=0, global_batch=204)
    with pytest.raises(ParameterError, match="at least 1"):
        data.eval_batches(synthetic, batch=0)


@pytest.fixture(scope="module")
def encoded(real_data, cache):
    """Real ImageNet images, decoded to another box every epoch."""
    config = DataConfig(
        source=str(real_data / "imagenet-200"),
        size=64,
        train_split="validation",
        test_split="validation",
        limit=48,
        limit_test=40,
        augment=AugmentConfig(
            crop="resized", flip=True, policy="imagenet", normalization=data.IMAGENET
        ),
    )
    return data.open_data(config, cache)


def test_images_that_are_decoded_every_time_keep_all_promises(encoded):
    assert encoded.sample_shape == (3, 64, 64)
    assert encoded.num_classes == 1000
    whole = epoch(encoded)
    assert sha(epoch(encoded, num_workers=2)) == sha(whole)
    assert sha(join([epoch(encoded, rank=rank, world_size=2) for rank in (0, 1)])) == sha(whole)
    assert sha(epoch(encoded, epoch=1)) != sha(whole)
    index = torch.cat([batch.sample_ids for batch in data.eval_batches(encoded, batch=16)])
    assert torch.equal(index, torch.arange(40))


@pytest.fixture
def files(tmp_path):
    """A folder of classes with 30 small images."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 10)):
        for i in range(count):
            path = tmp_path / "set" / split / "ab"[i % 2] / f"{i:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(path)
    return tmp_path / "set"


def open_files(files, **options):
    options = {"augment": AugmentConfig(crop="resized"), "size": 8} | options
    return data.open_data(DataConfig(source=str(files), **options), files.parent / "cache")


def tear(files, name):
    (victim,) = files.rglob(name)
    victim.write_bytes(victim.read_bytes()[:100])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_corrupt_training_image_is_replaced_and_counted(files, num_workers):  # I1
    tear(files / "train", "06.png")
    opened = open_files(files, max_corrupt=0.1)
    with pytest.warns(UserWarning, match=r"06\.png.*1 of at most 2"):
        batches = epoch(opened, global_batch=20, num_workers=num_workers)
    assert len(opened.corrupt) == 1
    index = batches[0].sample_ids
    assert len(index) == 20
    assert len(index.unique()) == 19
    assert epoch(opened, global_batch=20, epoch=1)  # known by now


def test_too_many_corrupt_training_images_end_the_run(files):
    for name in ("02.png", "05.png"):
        tear(files / "train", name)
    opened = open_files(files, max_corrupt=0.05)
    with (
        pytest.warns(UserWarning, match="1 of at most 1"),
        pytest.raises(CorruptSample, match="more than the 1 that max_corrupt"),
    ):
        epoch(opened, global_batch=20)


def test_a_corrupt_test_image_is_never_replaced(files):
    tear(files / "test", "03.png")
    opened = open_files(files, max_corrupt=1.0)
    with pytest.raises(CorruptSample, match=r"03\.png"):
        list(data.eval_batches(opened, batch=4))


def test_a_packed_set_allows_no_corrupt_image(files):
    tear(files / "train", "03.png")
    with pytest.raises(CorruptSample, match=r"03\.png"):
        open_files(files, augment=AugmentConfig(crop="pad"), size=12)


def write_shards(files, folder, *, suffix=".png"):
    """Write the images of a folder of classes as webdataset shards."""
    folder.mkdir()
    for split in ("train", "test"):
        with tarfile.open(folder / f"{split}-000000.tar", "w") as file:
            for path in sorted((files / split).rglob("*.png")):
                label = str("ab".index(path.parent.name)).encode()
                last = suffix if path.stem == "03" else ".png"
                for name, content in (
                    (path.stem + last, path.read_bytes()),
                    (path.stem + ".cls", label),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    return folder


def test_webdataset_shards_are_the_same_set_as_files(files, tmp_path):
    shards = open_files(write_shards(files, tmp_path / "shards"))
    assert (shards.num_train, shards.num_test) == (20, 10)
    assert shards.digest == open_files(files).digest
    assert sha(epoch(shards, num_workers=2)) == sha(epoch(open_files(files)))


def test_a_corrupt_or_changed_shard_is_noticed(files, tmp_path):
    folder = write_shards(files, tmp_path / "shards")
    digest = open_files(folder).digest
    shard = folder / "train-000000.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(FormatError, match="one class for every image"):
        open_files(folder)
    tear(files / "train", "03.png")
    shutil.rmtree(folder)
    changed = open_files(write_shards(files, folder), max_corrupt=0.0)
    assert changed.digest != digest
    with pytest.raises(CorruptSample, match=r"train\[11\] \(03\.png\)"):
        epoch(changed, global_batch=20)


def test_shards_with_two_image_suffixes_are_refused(files, tmp_path):
    with pytest.raises(FormatError, match="under one suffix"):
        open_files(write_shards(files, tmp_path / "shards", suffix=".jpg"))


def test_real_recordings_come_as_sequences(real_data, cache):
    config = DataConfig(
        source=str(real_data / "nmnist-1100/nmnist_small.zip"),
        kind="nmnist",
        timesteps=3,
        limit=64,
        limit_test=20,
        augment=AugmentConfig(flip=True, events="wide", mix=MixConfig(mixup=0.5, prob=0.5)),
    )
    opened = data.open_data(config, cache)
    batches = epoch(opened)
    assert batches[0].x.shape == (3, 16, 2, 34, 34)
    assert sha(epoch(opened, num_workers=1)) == sha(batches)
    (first, *_) = data.eval_batches(opened, batch=20)
    assert (first.x == first.x.round()).all()


SAMPLES = np.random.default_rng(0).integers(0, 256, (101, 3, 8, 8), dtype=np.uint8)
CLIPS = np.random.default_rng(0).integers(0, 5, (101, 4, 2, 8, 8), dtype=np.uint16)
LABELS = np.arange(101) % 7
ORDER = sampler.epoch_order(101, seed=3, epoch=2)
MIXED = AugmentConfig(mix=MixConfig(mixup=1.0, cutmix=1.0))


PLAIN = AugmentConfig()


def train_set(config=PLAIN, *, samples=SAMPLES, global_batch=16, rank=0, world_size=1):
    return TrainBatches(
        split=InMemory(samples, LABELS),
        order=ORDER,
        augment=config,
        num_classes=7,
        seed=3,
        epoch=2,
        global_batch=global_batch,
        rank=rank,
        world_size=world_size,
    )


def as_batch(loaded):
    x = loaded.x
    if not isinstance(x, torch.Tensor):
        x = torch.from_numpy(augment.normalize(x, augment.CIFAR10))
    return data.Batch(x, torch.as_tensor(loaded.target), torch.from_numpy(loaded.sample_ids))


def test_a_plain_batch_is_the_normalised_samples_in_the_order_of_the_epoch():
    batch = as_batch(train_set()[2])
    index = ORDER[32:48]
    assert np.array_equal(batch.sample_ids.numpy(), index)
    assert np.array_equal(batch.target.numpy(), LABELS[index])
    expected = augment.normalize(SAMPLES[index], augment.CIFAR10)
    assert np.array_equal(batch.x.numpy(), expected)
    assert batch.x.dtype == torch.float32


def test_clips_have_time_first_and_keep_their_counts():
    batch = as_batch(train_set(samples=CLIPS)[1])
    assert batch.x.shape == (4, 16, 2, 8, 8)
    assert np.array_equal(batch.x.numpy(), CLIPS[ORDER[16:32]].swapaxes(0, 1))


def test_ranks_see_parts_of_the_same_mixed_batch():
    for step in range(6):
        whole = as_batch(train_set(MIXED)[step])
        for world_size in (2, 4, 8, 16):  # parts of one sample have their partner elsewhere
            parts = [
                as_batch(train_set(MIXED, rank=rank, world_size=world_size)[step])
                for rank in range(world_size)
            ]
            for field in range(3):
                assert torch.equal(torch.cat([part[field] for part in parts]), whole[field])


def test_mixed_targets_say_what_is_in_the_pixels():
    ones = np.zeros_like(SAMPLES)
    ones[LABELS == 0] = 255
    config = AugmentConfig(mix=MixConfig(mixup=1.0, cutmix=1.0), normalization=augment.UNIT)
    for step in range(6):
        batch = as_batch(train_set(config, samples=ones)[step])
        assert torch.allclose(batch.x.mean((1, 2, 3)), batch.target[:, 0], atol=1e-5)
        assert torch.allclose(batch.target.sum(1), torch.ones(16))


def test_partners_of_an_odd_batch_may_lie_in_the_next_one():
    whole = torch.cat(
        [as_batch(train_set(MIXED, global_batch=5)[step]).target for step in range(20)]
    )
    assert torch.allclose(whole.sum(1), torch.ones(100))
    assert (whole > 0).sum() > 150  # most are mixed with another class


def test_test_batches_are_plain_and_complete():
    config = AugmentConfig(crop="pad", flip=True, policy="cifar10", cutout=4, mix=MIXED.mix)
    evaluate = EvalBatches(
        split=InMemory(SAMPLES, LABELS), augment=config, positions=range(3, 20), batch=8
    )
    batches = [as_batch(evaluate[step]) for step in range(3)]
    assert [len(batch.sample_ids) for batch in batches] == [8, 8, 1]
    x = torch.cat([batch.x for batch in batches])
    assert np.array_equal(x.numpy(), augment.normalize(SAMPLES[3:20], augment.CIFAR10))
    assert np.array_equal(torch.cat([batch.target for batch in batches]).numpy(), LABELS[3:20])


def test_a_dataset_can_travel_to_another_process():
    sent = pickle.loads(pickle.dumps(train_set(MIXED)))
    for here, there in zip(as_batch(train_set(MIXED)[1]), as_batch(sent[1]), strict=True):
        assert torch.equal(here, there)


def square(step):
    return torch.full((3,), float(step * step))


def process_and_threads(step):
    del step
    return os.getpid(), torch.get_num_threads()


def corrupt_at_two(step):
    if step == 2:
        raise CorruptSample("cats/17.jpg is torn")
    return step


def lose_worker(step, how):
    if step == 5 and how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 5 and how == "hang":
        time.sleep(100)
    return square(step)


@dataclass(frozen=True)
class Steps(torch.utils.data.Dataset):
    function: Callable

    def __getitem__(self, step):
        return self.function(step)


def load(function, steps, **options):
    return loaders.load_steps(Steps(function), steps, **options)


@FOUR_WORKERS
@pytest.mark.parametrize("num_workers", [0, 1, 2, 4])
def test_results_come_in_order_and_torchs_generator_does_not_move(num_workers):
    before = torch.get_rng_state()
    results = load(square, range(3, 40), num_workers=num_workers)
    assert [result[0].item() for result in results] == [step * step for step in range(3, 40)]
    assert torch.equal(torch.get_rng_state(), before)


@FOUR_WORKERS
@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_images_that_workers_leave_in_shared_memory_keep_their_bits(bytes_only, num_workers):
    assert train_set(bytes_only.config.augment)[0].x.dtype == np.uint8
    assert sha(epoch(bytes_only, num_workers=num_workers)) == sha(epoch(bytes_only))
    tests = [list(data.eval_batches(bytes_only, batch=20, num_workers=n)) for n in (0, num_workers)]
    assert sha(tests[0]) == sha(tests[1])


def test_a_batch_that_a_worker_overwrote_is_refused(monkeypatch, bytes_only):
    def slow(images, normalization):
        time.sleep(2)
        return augment.normalize(images, normalization)

    monkeypatch.setattr(shared_buffers, "_SLOTS_PER_WORKER", 1)
    monkeypatch.setattr(loaders, "normalize", slow)
    with pytest.raises(RuntimeError, match=r"images of step 0 were overwritten by step [12]"):
        epoch(bytes_only, num_workers=1)


def test_workers_are_other_processes_with_one_thread():
    found = set(load(process_and_threads, range(40), num_workers=2))
    assert os.getpid() not in {pid for pid, _ in found}
    assert {threads for _, threads in found} == {1}


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_lost_worker_ends_the_epoch_and_no_process_stays(how):
    results = load(partial(lose_worker, how=how), range(12), num_workers=2, timeout=3.0)
    loaded = []
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly|timed out"):
        loaded.extend(result[0].item() for result in results)
    assert loaded == [step * step for step in range(len(loaded))]
    assert len(loaded) <= 5
    results.close()  # torch's signal handler may have raised outside of the generator
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_ignore_the_signals_that_stop_a_run(number):
    results = load(process_and_threads, range(200), num_workers=1)
    pid, _ = next(results)
    os.kill(pid, number)
    assert {other for other, _ in results} == {pid}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_library_arrives_as_it_was_raised(num_workers):
    results = load(corrupt_at_two, range(5), num_workers=num_workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(CorruptSample, match=r"^cats/17\.jpg is torn$"):
        next(results)


def test_no_worker_outlives_an_abandoned_loop():
    results = load(process_and_threads, range(1000), num_workers=2)
    next(results)
    results.close()
    assert not multiprocessing.active_children()


ENDS = """
import os, signal, sys, time
import torch
from lbq.data.loaders import load_steps
class Pids(torch.utils.data.Dataset):
    def __getitem__(self, step):
        if step == 3 and sys.argv[1] == "hang":
            time.sleep(1000)
        return os.getpid()
results = load_steps(Pids(), range(1000), num_workers=1)
print(next(results), flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
raise ValueError("an error elsewhere")
"""


@pytest.mark.parametrize("how", ["kill", "raise", "hang"])
def test_workers_end_with_the_main_process(how):
    done = subprocess.run(
        [sys.executable, "-c", ENDS, how], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == (-signal.SIGKILL if how == "kill" else 1), done.stderr
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, f"worker {worker} is an orphan"
        time.sleep(0.1)
