import numpy as np

from lbq.data.splits import InMemory, Split, evenly_spaced


def test_a_subset_is_spread_evenly_over_the_set():
    assert evenly_spaced(10, 5).tolist() == [0, 2, 4, 6, 8]
    assert evenly_spaced(10_007, 3).tolist() == [0, 3335, 6671]
    assert evenly_spaced(4, None).tolist() == evenly_spaced(4, 9).tolist() == [0, 1, 2, 3]


def test_samples_in_memory_are_a_split():
    split = InMemory(np.arange(24, dtype=np.uint8).reshape(4, 1, 2, 3), np.array([1, 0, 1, 0]))
    assert isinstance(split, Split)
    assert split.shape == (1, 2, 3)
    assert split.read(np.array([2, 0]))[:, 0, 0, 0].tolist() == [12, 0]
