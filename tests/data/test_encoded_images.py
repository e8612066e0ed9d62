"""Decoding with limits, random crops, and splits of encoded images."""

import io
import struct
import sys
import zlib
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
    random_crop_box,
    random_resized_crop,
    resize_and_center_crop,
    to_bytes,
)
from lbq.data.sampler import RandomStream
from lbq.errors import CorruptSample, FormatError, MissingExtraError

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encode(format_, image=None, **options):
    buffer = io.BytesIO()
    (Image.fromarray(PIXELS) if image is None else image).save(buffer, format_, **options)
    return buffer.getvalue()


def random_bits(count):
    return sampler.random_bits(
        RandomStream.RESIZED_CROP, seed=0, epoch=0, start=0, count=count, width=CROP_DRAWS
    )


def png_header(width, height):
    """A PNG that claims a size and holds next to nothing."""

    def chunk(name, body):
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("format_", "options"), [("PNG", {}), ("WEBP", {"lossless": True})])
def test_lossless_images_come_back_pixel_by_pixel(format_, options):
    image = decode_image(encode(format_, **options), "a")
    assert np.array_equal(to_bytes(image), PIXELS.transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "RGBA", "1"])
def test_other_colours_become_rgb(mode):
    format_ = "JPEG" if mode == "CMYK" else "PNG"
    image = decode_image(encode(format_, Image.fromarray(PIXELS).convert(mode)), "a")
    assert to_bytes(image).shape == (3, 40, 60)


def test_16_bits_of_grey_keep_their_upper_8():
    values = np.array([[0, 255, 256, 1000, 32768, 65535]], np.uint16)
    image = decode_image(encode("PNG", Image.fromarray(values)), "a")
    pixels = to_bytes(image)
    assert pixels.tolist() == [[[0, 0, 1, 3, 128, 255]]] * 3


GOOD = {name: encode(name) for name in ("JPEG", "PNG", "WEBP")}
DAMAGED = {
    "empty": b"",
    "text": b"not an image at all",
    "a header only": GOOD["JPEG"][:20],
    **{f"half a {name}": image[: len(image) // 2] for name, image in GOOD.items()},
    "a PNG with a flipped bit": GOOD["PNG"][:200]
    + bytes([GOOD["PNG"][200] ^ 4])
    + GOOD["PNG"][201:],
    "an unasked format": encode("GIF", Image.fromarray(PIXELS).convert("P")),
    "a bomb": png_header(30_000, 30_000),
    "no pixels": png_header(60, 40),
    "zeros": bytes(1000),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_cannot_be_decoded_is_a_corrupt_sample_with_its_name(damage):
    with pytest.raises(CorruptSample, match=r"cats/17\.jpg"):
        decode_image(DAMAGED[damage], "cats/17.jpg")


@pytest.mark.filterwarnings("ignore")  # Pillow warns about odd metadata
@pytest.mark.parametrize("format_", GOOD)
def test_random_damage_gives_an_image_or_a_corrupt_sample(format_):
    generator = np.random.default_rng(1)
    num_corrupt = 0
    for _ in range(300):
        damaged = bytearray(GOOD[format_])
        for place in generator.integers(0, len(damaged), generator.integers(1, 20)):
            damaged[place] = generator.integers(256)
        try:
            decode_image(bytes(damaged[: generator.integers(1, len(damaged) + 1)]), "a")
        except CorruptSample:
            num_corrupt += 1
    assert num_corrupt > 100


def test_a_central_view_is_resized_and_cropped_as_in_the_recipe():
    image = Image.fromarray(PIXELS)
    ours = resize_and_center_crop(image, 28, 32)
    theirs = image.resize((48, 32), Image.Resampling.BILINEAR).crop((10, 2, 38, 30))
    assert np.array_equal(np.asarray(ours), np.asarray(theirs))
    tall = resize_and_center_crop(image.transpose(Image.Transpose.TRANSPOSE), 28, 32)
    assert tall.size == (28, 28)


def test_an_image_of_the_right_size_stays_as_it_is():
    image = Image.fromarray(PIXELS[:, :40])
    assert resize_and_center_crop(image, 40, 40) is image


def test_random_boxes_lie_inside_and_have_the_asked_areas_and_shapes():
    boxes = [random_crop_box(500, 375, (0.08, 1.0), bits) for bits in random_bits(2000)]
    left, top, width, height = np.array(boxes).T
    assert left.min() >= 0
    assert (left + width).max() <= 500
    assert (top + height).max() <= 375
    shape = width / height
    assert 0.74 < shape.min() < 0.8
    assert 1.25 < shape.max() < 1.35
    area = width * height / (500 * 375)
    assert 0.079 < area.min() < 0.1
    assert area.max() > 0.9
    # the accepted areas thin out near 1, where few shapes fit; below that they are uniform
    share = ((area > 0.1) & (area < 0.3)).mean() / ((area > 0.3) & (area < 0.5)).mean()
    assert share == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize(
    ("width", "height", "box"), [(1000, 10, (493, 0, 13, 10)), (10, 1000, (0, 493, 10, 13))]
)
def test_an_image_too_thin_for_any_box_gives_its_centre(width, height, box):
    assert random_crop_box(width, height, (1.0, 1.0), random_bits(1)[0]) == box


def test_a_random_view_is_a_resized_crop():
    image, bits = Image.fromarray(PIXELS), random_bits(1)[0]
    left, top, width, height = random_crop_box(60, 40, (0.3, 0.5), bits)
    crop = image.crop((left, top, left + width, top + height))
    theirs = crop.resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(
        np.asarray(random_resized_crop(image, 16, (0.3, 0.5), bits)),
        np.asarray(theirs),
    )


def test_without_pillow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match="pip install 'datasets>=4' pillow"):
        decode_image(GOOD["PNG"], "a")


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
    return encode("PNG", Image.fromarray(pixels))


def split_of(*files):
    return EncodedSplit(np.arange(len(files)), InMemoryFiles(files))


FILES = tuple(png(seed) for seed in range(6))
BROKEN = (*FILES[:2], FILES[2][:100], FILES[3][:50], *FILES[4:])


def test_images_of_one_size_are_packed_as_they_are():
    content = image_contents(split_of(*FILES), None)
    assert content.shape == (3, 20, 24)
    for sample, file in zip(content.samples, FILES, strict=True):
        assert np.array_equal(sample, to_bytes(decode_image(file, "")))


def test_images_of_many_sizes_need_a_size():
    mixed = split_of(FILES[0], png(7, 30, 20))
    with pytest.raises(FormatError, match="30 x 20"):
        list(image_contents(mixed, None).samples)
    content = image_contents(mixed, 16)
    assert {sample.shape for sample in content.samples} == {(3, 16, 16)}


def test_reading_boxes_gives_each_image_its_own_box():
    split = DecodedOnRead(split_of(*FILES), 8)
    index, bits = np.array([4, 1]), random_bits(2)
    boxes, read, replaced = split.read_random_crops(index, AREA, bits)
    for box, i, mine in zip(boxes, index, bits, strict=True):
        expected = random_resized_crop(decode_image(FILES[i], ""), 8, AREA, mine)
        assert np.array_equal(box, to_bytes(expected))
    assert read.tolist() == [4, 1]
    assert replaced == {}


def test_a_corrupt_training_image_is_replaced_by_the_next_good_one_and_named():
    split = DecodedOnRead(split_of(*BROKEN), 8, replaces_corrupt=True)
    index = np.array([1, 2, 5])
    boxes, read, replaced = split.read_random_crops(index, AREA, random_bits(3))
    assert read.tolist() == [1, 4, 5]
    assert index.tolist() == [1, 2, 5]  # untouched
    assert set(replaced) == {2, 3}
    assert "file 2" in replaced[2]
    expected = random_resized_crop(decode_image(FILES[4], ""), 8, AREA, random_bits(3)[1])
    assert np.array_equal(boxes[1], to_bytes(expected))


def test_a_corrupt_image_is_an_error_where_none_is_allowed():
    split = DecodedOnRead(split_of(*BROKEN), 8)
    with pytest.raises(CorruptSample, match="file 2"):
        split.read_random_crops(np.array([1, 2]), AREA, random_bits(2))
    with pytest.raises(CorruptSample, match="file 3"):
        split.read(np.array([3]))
    with pytest.raises(CorruptSample, match="file 2"):
        list(image_contents(split_of(*BROKEN), None).samples)


def test_a_set_of_corrupt_images_is_given_up():
    split = DecodedOnRead(split_of(*[b"nothing"] * 12), 8, replaces_corrupt=True)
    with pytest.raises(CorruptSample, match="in a row"):
        split.read_random_crops(np.array([0]), AREA, random_bits(1))


def test_the_digest_sees_labels_and_lengths():
    def digest(train, test=FILES[:1], num_classes=6):
        return EncodedSet(
            train=split_of(*train), test=split_of(*test), num_classes=num_classes, identity={}
        ).digest()

    assert digest(FILES) == digest(FILES)
    others = [digest(FILES[::-1]), digest(FILES[:5]), digest(FILES, num_classes=7)]
    assert len({digest(FILES), *others}) == 4
