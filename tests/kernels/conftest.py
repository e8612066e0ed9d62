"""Running a test once for every instruction set."""

import pytest
import torch
from kernels.isas import BEST, ISAS


@pytest.fixture(params=ISAS)
def isa(request):
    assert torch.ops.lbq.set_isa(request.param)
    yield request.param
    torch.ops.lbq.set_isa(BEST)
