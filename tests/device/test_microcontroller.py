import numpy as np
import pytest
from device.boards import BOARDS, needs, run_on_board
from device.test_verilog import Small, integers

import lbq

pytestmark = needs("arm-none-eabi-gcc", "qemu-system-arm")


@pytest.mark.parametrize("cpu", BOARDS)
@pytest.mark.parametrize("seed", [1, 3])
def test_a_microcontroller_computes_the_same_integers(seed, cpu, tmp_path):
    model = Small(seed)
    inputs = model.inputs(5)
    net = integers(model, inputs)
    expected = lbq.run_network(net, inputs, backend="dense").numpy()
    counts = {}
    for events in (False, True):
        found = run_on_board(net, inputs, tmp_path, cpu=cpu, events=events)
        assert np.array_equal(found.logits, expected)
        assert (found.instructions > 0).all()
        counts[events] = found.instructions.mean()
    assert counts[True] < counts[False]
