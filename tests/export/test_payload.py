"""The table of tensors, and tensors without copies."""

import torch

from lbq.export.payload import DTYPES, Region, read_table, view, write


def test_tensors_of_every_type_come_back():
    tensors = {name: torch.arange(-3, 3).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    data = memoryview(bytearray(write(tensors)))
    table = read_table(data)
    assert set(table) == set(tensors)
    for name, tensor in tensors.items():
        found = view(data, table[name])
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_a_tensor_lies_at_a_multiple_of_its_size():
    odd = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(1), "c": torch.ones(1).double()}
    for region in read_table(memoryview(write(odd))).values():
        assert region.offset % DTYPES[region.dtype].itemsize == 0


def test_tensors_are_views_of_the_file():
    data = bytearray(write({"a": torch.zeros(2, dtype=torch.int8)}))
    tensor = view(memoryview(data), read_table(memoryview(data))["a"])
    data[-1] = 5
    assert tensor.tolist() == [0, 5]


def test_a_transposed_tensor_is_written_in_order():
    tensor = torch.arange(6).reshape(2, 3).int().T
    data = memoryview(bytearray(write({"a": tensor})))
    assert torch.equal(view(data, read_table(data)["a"]), tensor)


def test_a_region_counts_its_bytes():
    assert Region("I16", (3, 4), 0).num_bytes == 24
