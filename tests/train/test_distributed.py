import signal
import time

import pytest
import torch

from lbq.errors import RunError
from lbq.train import distributed


def test_a_world_of_one_needs_nobody():
    with distributed.open_process_group("cpu") as alone:
        assert (alone.rank, alone.size, alone.is_first) == (0, 1, True)
        assert alone.all_reduce_(torch.ones(2)).tolist() == [1, 1]
        assert alone.all_gather(torch.ones(2)).tolist() == [[1, 1]]
        assert alone.broadcast_text("words") == "words"
        module = torch.nn.Linear(2, 2)
        assert alone.wrap(module) is module
        alone.barrier()


@pytest.mark.multi
def test_three_processes_agree(pool):
    answers = pool.run("collectives", world=3)
    lines = [[0, 1], [1, 1], [2, 1]]
    assert answers == [[[3, 3], lines, [[0, 3], [1, 4], [2, 5]], "grüß"]] * 3


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(RunError, match="no device 'warp'"):
        distributed.choose_device("warp")
    if not torch.cuda.is_available():
        with pytest.raises(RunError, match="finds no GPU"):
            distributed.choose_device("cuda")
        assert distributed.choose_device("auto").type == "cpu"


def test_a_lost_process_is_told_from_a_fault_of_our_own():
    assert distributed.is_connection_error(
        RuntimeError("[pair.cc:553] Connection closed by peer [::1]")
    )
    assert not distributed.is_connection_error(
        RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    )
    assert not distributed.is_connection_error(ValueError("Connection closed by peer"))


@pytest.mark.multi
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("", 0),
        ("sys.exit(1 if os.environ['RANK'] == '1' else 0)", 1),
        ("os.kill(os.getpid(), 9) if os.environ['RANK'] == '0' else time.sleep(60)", 137),
    ],
)
def test_the_launcher_returns_the_code_of_the_worker_that_failed_first(program, code, launch):
    done = launch(f"import os, sys, time; {program}")
    assert done.wait(60) == code


@pytest.mark.multi
def test_a_signal_reaches_the_workers_once_however_often_it_comes(launch, tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "path = sys.argv[1] + os.environ['RANK']\n"
        "def save(*a): time.sleep(1); open(path, 'a').write('saved'); sys.exit(143)\n"
        "signal.signal(15, save)\n"
        "open(path, 'w').close()\n"
        "time.sleep(60)\n"
    )
    done = launch(program, str(tmp_path / "rank"))
    end = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2:
        assert done.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    done.send_signal(signal.SIGTERM)
    done.send_signal(signal.SIGTERM)
    assert done.wait(60) == 143
    assert [path.read_text() for path in tmp_path.iterdir()] == ["saved"] * 2


@pytest.mark.multi
def test_a_user_may_shard_the_parameters_instead(pool):
    (loss, weights), other = pool.run("sharded_step", world=2)
    assert other == [loss, weights]
    expected_loss, expected_weights = pool.run("plain_step")[0]
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert weights == pytest.approx(expected_weights, rel=1e-4, abs=1e-5)
