import io
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from lbq.data import sampler
from lbq.data.encoded_images import (
    CROP_DRAWS,
    DecodedOnRead,
    EncodedSet,
    EncodedSplit,
    decode_image,
    image_contents,
    random_resized_crop,
    to_bytes,
)
from lbq.data.sampler import RandomStream
from lbq.errors import CorruptSample, FormatError

AREA = (0.2, 1.0)


@dataclass(frozen=True)
class InMemoryFiles:
    files: tuple[bytes, ...]

    def fetch(self, i):
        return f"file {i}", self.files[i]

    def lengths(self):
        return np.array([len(file) for file in self.files])


def png(seed, width=24, height=20):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def rows(*files):
    return EncodedSplit(np.arange(len(files)), InMemoryFiles(files))


def random_bits(count):
    return sampler.random_bits(
        RandomStream.RESIZED_CROP, seed=0, epoch=0, start=0, count=count, width=CROP_DRAWS
    )


FILES = tuple(png(seed) for seed in range(6))
BROKEN = (*FILES[:2], FILES[2][:100], FILES[3][:50], *FILES[4:])


def test_images_of_one_size_are_packed_as_they_are():
    content = image_contents(rows(*FILES), None)
    assert content.shape == (3, 20, 24)
    for sample, file in zip(content.samples, FILES, strict=True):
        assert np.array_equal(sample, to_bytes(decode_image(file, "")))


def test_images_of_many_sizes_need_a_size():
    mixed = rows(FILES[0], png(7, 30, 20))
    with pytest.raises(FormatError, match="30 x 20"):
        list(image_contents(mixed, None).samples)
    content = image_contents(mixed, 16)
    assert {sample.shape for sample in content.samples} == {(3, 16, 16)}


def test_reading_boxes_gives_each_image_its_own_box():
    split = DecodedOnRead(rows(*FILES), 8)
    index, bits = np.array([4, 1]), random_bits(2)
    boxes, read, complaints = split.read_random_crops(index, AREA, bits)
    for box, i, mine in zip(boxes, index, bits, strict=True):
        expected = random_resized_crop(decode_image(FILES[i], ""), 8, AREA, mine)
        assert np.array_equal(box, to_bytes(expected))
    assert read.tolist() == [4, 1]
    assert complaints == {}


def test_a_corrupt_training_image_is_replaced_by_the_next_good_one_and_named():
    split = DecodedOnRead(rows(*BROKEN), 8, replaces_corrupt=True)
    index = np.array([1, 2, 5])
    boxes, read, complaints = split.read_random_crops(index, AREA, random_bits(3))
    assert read.tolist() == [1, 4, 5]
    assert index.tolist() == [1, 2, 5]  # untouched
    assert set(complaints) == {2, 3}
    assert "file 2" in complaints[2]
    expected = random_resized_crop(decode_image(FILES[4], ""), 8, AREA, random_bits(3)[1])
    assert np.array_equal(boxes[1], to_bytes(expected))


def test_a_corrupt_image_is_an_error_where_none_is_allowed():
    split = DecodedOnRead(rows(*BROKEN), 8)
    with pytest.raises(CorruptSample, match="file 2"):
        split.read_random_crops(np.array([1, 2]), AREA, random_bits(2))
    with pytest.raises(CorruptSample, match="file 3"):
        split.read(np.array([3]))
    with pytest.raises(CorruptSample, match="file 2"):
        list(image_contents(rows(*BROKEN), None).samples)


def test_a_set_of_corrupt_images_is_given_up():
    split = DecodedOnRead(rows(*[b"nothing"] * 12), 8, replaces_corrupt=True)
    with pytest.raises(CorruptSample, match="in a row"):
        split.read_random_crops(np.array([0]), AREA, random_bits(1))


def test_the_digest_sees_labels_and_lengths():
    def digest(train, test=FILES[:1], num_classes=6):
        return EncodedSet(
            train=rows(*train), test=rows(*test), num_classes=num_classes, identity={}
        ).digest()

    assert digest(FILES) == digest(FILES)
    others = [digest(FILES[::-1]), digest(FILES[:5]), digest(FILES, num_classes=7)]
    assert len({digest(FILES), *others}) == 4
