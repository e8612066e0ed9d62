"""The bytes of a bundle: header, digest, table of tensors, tensors without copies."""

import hashlib
import os

import pytest
import torch

from lbq.formats import BundleError
from lbq.formats.bundle import container
from lbq.formats.bundle.container import (
    DTYPES,
    pack,
    read_file,
    read_tensor_table,
    unpack,
    view_tensor,
    write_tensors,
)


def test_what_is_packed_comes_out_again():
    content = unpack(bytearray(pack(b'{"a": 1}', b"payload")))
    assert bytes(content.manifest).rstrip(b" ") == b'{"a": 1}'
    assert bytes(content.payload) == b"payload"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65])
def test_the_payload_begins_at_a_multiple_of_64(size):
    data = pack(b"x" * size, b"payload")
    assert data.index(b"payload") % 64 == 0


def test_the_header_is_laid_out_as_the_page_says():
    data = pack(b"{}", b"payload")
    assert data[:8] == bytes.fromhex("894C42510D0A1A0A")
    numbers = [int.from_bytes(data[a:b], "little") for a, b in ((8, 12), (12, 16), (16, 24))]
    assert numbers == [2, 64, 7]
    assert data[24:32] == bytes(8)
    assert data[32:64] == hashlib.sha256(data[:32] + data[64:]).digest()


def test_every_bit_of_a_small_bundle_counts():
    good = pack(b"{}", b"p")
    for place in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[place] ^= 1 << bit
            with pytest.raises(BundleError):
                unpack(bad)


def test_another_version_is_named_before_its_lengths_are_believed(tmp_path):
    data = bytearray(pack(b"{}", b"p"))
    data[8:16] = (7).to_bytes(4, "little") + b"\xff" * 4
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(BundleError, match="unsupported version 7"):
        read_file(tmp_path / "file")


def test_a_header_that_lies_takes_no_memory(tmp_path, monkeypatch):
    data = bytearray(pack(b"{}", b"p"))
    data[16:24] = (2**62).to_bytes(8, "little")
    (tmp_path / "file").write_bytes(data)
    monkeypatch.setattr(container, "bytearray", _refuse, raising=False)
    with pytest.raises(BundleError, match="the header says"):
        read_file(tmp_path / "file")


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleError, match="not a regular file"):
        read_file(tmp_path / "pipe")


def test_a_missing_file_is_the_systems_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")


def _refuse(*args):
    raise AssertionError("memory was taken")


def test_tensors_of_every_type_come_back():
    tensors = {name: torch.arange(-3, 3).reshape(2, 3).to(dtype) for name, dtype in DTYPES.items()}
    data, table = write_tensors(tensors)
    assert read_tensor_table(memoryview(data)) == table
    assert set(table) == set(tensors)
    for name, tensor in tensors.items():
        found = view_tensor(memoryview(bytearray(data)), table[name])
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_a_tensor_lies_at_a_multiple_of_its_size():
    odd = {"a": torch.ones(3, dtype=torch.int8), "b": torch.ones(1), "c": torch.ones(1).double()}
    for region in write_tensors(odd)[1].values():
        assert region.offset % DTYPES[region.dtype].itemsize == 0


def test_tensors_are_views_of_the_file():
    written, table = write_tensors({"a": torch.zeros(2, dtype=torch.int8)})
    data = bytearray(written)
    tensor = view_tensor(memoryview(data), table["a"])
    data[-1] = 5
    assert tensor.tolist() == [0, 5]


def test_a_transposed_tensor_is_written_in_order():
    tensor = torch.arange(6).reshape(2, 3).int().T
    data, table = write_tensors({"a": tensor})
    assert torch.equal(view_tensor(memoryview(bytearray(data)), table["a"]), tensor)
