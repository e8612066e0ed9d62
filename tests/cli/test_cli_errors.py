import errno

import pytest
import torch

from lbq.cli.args import UsageError
from lbq.cli.cli_errors import explain, is_out_of_memory
from lbq.errors import LBQError


def test_our_own_complaints_become_one_line():
    assert explain(LBQError("two faults:\n  a\n  b\n")) == "two faults: a; b"
    assert explain(UsageError("no such flag")) == "no such flag"


def test_what_the_system_refuses_is_told_with_its_path(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        (tmp_path / "nowhere").read_bytes()
    assert explain(error.value) == (
        f"{tmp_path}/nowhere: No such file or directory; check the path"
    )


def test_a_broken_disk_is_a_crash_and_may_be_tried_again():
    assert explain(OSError(errno.EIO, "Input/output error", "net.lbq")) is None
    assert explain(RuntimeError("our fault")) is None


def test_torch_out_of_memory_is_recognised():
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(error.value)
    assert explain(error.value).startswith("out of memory: take a smaller batch")
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
