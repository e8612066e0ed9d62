import subprocess
import sys

import pytest

from lbq.train.allocator import keep_freed_memory

FAULTS = """
import resource, sys
import torch
from lbq.train.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    torch.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.multi
def test_large_blocks_stay_in_the_process():
    if not keep_freed_memory():
        pytest.skip("no glibc here")
    found = {}
    for mode in ("keep", "default"):
        command = [sys.executable, "-c", FAULTS, mode]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[mode] = int(done.stdout)
    assert found["default"] > 10 * 20  # twenty blocks, fetched page by page, huge or not
    assert found["keep"] < found["default"] / 10
