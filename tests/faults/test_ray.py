"""A job of Ray Data whose worker is killed: every row once, the same integers."""

import importlib.util
import os
import random
import subprocess
import sys
import time

import numpy as np
import pytest
import ray_jobs
import torch

import lbq

pytestmark = [
    pytest.mark.multi,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None and "LBQ_REQUIRE_RAY" not in os.environ,
        reason="ray is not installed: pip install 'ray[data]>=2.60'",
    ),
]


def test_a_killed_worker_loses_no_row_and_repeats_none(tmp_path):
    torch.manual_seed(0)
    model = lbq.resnet20(10, width=0.125).eval()
    pixels = lbq.Pixels(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    net = lbq.to_fixed_point(lbq.lower(model, torch.zeros(1, 3, 32, 32)), pixels=pixels)
    lbq.save_network(net, tmp_path / "net.lbq")
    images = np.random.default_rng(0).integers(0, 256, (3000, 3, 32, 32), np.uint8)
    ray_jobs.write_images(tmp_path / "images", images, files=20)

    command = [sys.executable, ray_jobs.PROGRAM, "net.lbq", "images", "labels"]
    with open(tmp_path / "log", "w") as log:
        job = subprocess.Popen(
            [*command, "--workers", "2", "--block-mb", "0.4"], cwd=tmp_path, stdout=log, stderr=log
        )
        try:
            written = wait_for_files(tmp_path / "labels", job, at_least=3)
            assert ray_jobs.kill_one(job.pid, random.Random(0))
            assert job.wait() == 0, (tmp_path / "log").read_text()
        finally:
            job.kill()
    files = list((tmp_path / "labels").glob("*.parquet"))
    assert written < len(files), "the worker was killed too late"
    assert "A worker died or was killed" in (tmp_path / "log").read_text()
    logits = [lbq.run_network(net, part).numpy() for part in torch.from_numpy(images).split(500)]
    ray_jobs.check_labels(tmp_path / "labels", np.concatenate(logits))


def wait_for_files(folder, job, *, at_least):
    """Return the number of files of a job as soon as it has written so many."""
    while (written := len(list(folder.glob("*.parquet")))) < at_least:
        assert job.poll() is None, "the job ended before a worker was killed"
        time.sleep(0.05)
    return written


@pytest.mark.parametrize(
    ("images", "problem"),
    [
        ([bytes(50), None], "row 1 .* got NoneType"),
        ([bytes(25), bytes(75)], "row 0 .* got 25 bytes"),
        ([bytes(100)], "row 0 .* got 100 bytes"),
        ([b""], "row 0 .* got 0 bytes"),
        (["x" * 50], "row 0 .* got str"),
        ([np.zeros(50, np.int64)], "row 0 .* got ndarray"),
    ],
)
def test_rows_that_are_not_one_image_are_refused_by_number(images, problem):
    column = np.empty(len(images), object)
    column[:] = images
    with pytest.raises(ValueError, match=problem):
        example().unpack({"image": column}, (2, 5, 5))
    with pytest.raises(ValueError, match="no column 'image', only id, img"):
        example().unpack({"id": column, "img": column}, (2, 5, 5))


def test_an_empty_block_stays_empty():
    assert example().unpack({"image": np.empty(0, object)}, (2, 5, 5))["image"].shape[0] == 0


def example():
    spec = importlib.util.spec_from_file_location("label_with_ray", ray_jobs.PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
