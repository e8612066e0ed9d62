"""A batch that is killed and started again; faults/killed_batches.py does it at full size."""

import numpy as np
import pytest
from bundles import tiny_network
from faults import killed_batches

pytestmark = pytest.mark.multi


@pytest.mark.parametrize("workers", [1, 2])
def test_no_image_is_missing_or_double_after_kills(workers, lbq_run, tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (3000, 2, 5, 5), np.uint8)
    found = killed_batches.trial(
        lbq_run.program, tiny_network(), images, tmp_path, shards=60, kills=6, workers=workers
    )
    assert found["images"] == 3000
    assert found["kills"] == 6
