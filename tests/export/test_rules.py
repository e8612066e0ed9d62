"""Every rule has a bundle that breaks it, and that bundle is refused by its name."""

import hashlib
import json
import re
import struct
from pathlib import Path

import pytest
import torch
from bundles import EditableBundle, pack_bundle, tiny_bundles

from lbq import LBQError
from lbq.errors import BoundError
from lbq.export import RULES, BundleError, load
from lbq.export.container import read_tensor_table, write_tensors

CASES = {}


def breaks(rule, *, is_integer=True):
    """Register an edit: it changes a draft, or returns the bytes of a file."""

    def register(edit):
        CASES[edit.__name__] = rule, is_integer, edit
        return edit

    return register


@breaks("magic")
def text(draft):
    return b"hello"


@breaks("magic")
def nothing(draft):
    return b""


@breaks("version")
def version_from_the_future(draft):
    draft.version = 3


@breaks("reserved")
def reserved_bytes_used(draft):
    return pack_bundle(b"{}", b"", reserved=1)


@breaks("length")
def cut(draft):
    return draft.pack()[:-1]


@breaks("length")
def extended(draft):
    return draft.pack() + b"\0"


@breaks("length")
def cut_in_the_header(draft):
    return draft.pack()[:40]


@breaks("digest")
def flipped(draft):
    data = bytearray(draft.pack())
    data[-1] ^= 1
    return bytes(data)


@breaks("manifest-size")
def manifest_too_long(draft):
    draft.manifest["origin"]["note"] = "x" * 2**20


@breaks("manifest-size")
def manifest_claims_gigabytes(draft):
    data = bytearray(draft.pack())
    data[12:16] = b"\xff" * 4
    return bytes(data)


@breaks("table-size")
def table_longer_than_the_payload(draft):
    return pack_bundle(json.dumps(draft.manifest).encode(), (2**40).to_bytes(8, "little") + b"{}")


@breaks("table-size")
def payload_shorter_than_a_length(draft):
    return pack_bundle(json.dumps(draft.manifest).encode(), b"\0")


@breaks("json")
def no_json(draft):
    return draft.pack(manifest=b"{")


@breaks("json")
def key_twice(draft):
    return draft.pack(manifest=b'{"a": 1, "a": 2}')


@breaks("json")
def not_a_number(draft):
    draft.manifest["logit_scale"] = float("nan")


@breaks("json")
def beyond_floats(draft):
    return draft.pack(manifest=b'{"a": 1e999}')


@breaks("json")
def nested_without_end(draft):
    return draft.pack(manifest=b"[" * 100_000)


@breaks("json")
def not_utf_8(draft):
    return draft.pack(manifest='{"a": 1}'.encode("utf-16"))


@breaks("keys")
def unknown_key(draft):
    draft.manifest["_target_"] = "os.system"


@breaks("keys")
def unknown_setting(draft):
    draft.node("fc")["settings"]["extra"] = 1


@breaks("keys")
def missing_setting(draft):
    del draft.node("pool")["settings"]["stride"]


@breaks("value")
def scale_of_zero(draft):
    draft.manifest["logit_scale"] = 0.0


@breaks("value")
def true_for_a_number(draft):
    draft.node("fc")["settings"]["groups"] = True


@breaks("value")
def bits_that_nobody_has(draft):
    draft.node("fc")["settings"]["bits"] = 5


@breaks("value")
def list_for_a_manifest(draft):
    return draft.pack(manifest=b"[]")


@breaks("value", is_integer=False)
def bound_of_real_numbers(draft):
    draft.node("fc")["bound"] = {"low": 0, "high": 1, "bits": 16}


@breaks("count")
def no_nodes(draft):
    draft.manifest["nodes"] = []


@breaks("count")
def too_many_nodes(draft):
    draft.manifest["nodes"] = [{}] * 4097


@breaks("count")
def too_many_tensors(draft):
    draft.table = {str(i): 0 for i in range(2**14 + 1)}


@breaks("name")
def long_name(draft):
    draft.node("fc")["path"] = "ä" * 129


@breaks("name")
def half_a_character(draft):
    draft.node("fc")["path"] = "\ud800"


@breaks("name")
def empty_part(draft):
    draft.node("fc")["path"] = "head..fc"


@breaks("name")
def name_twice(draft):
    draft.node("pool")["path"] = "block.merge"


@breaks("name")
def name_of_the_input(draft):
    draft.node("stem.conv")["path"] = "input"


@breaks("name")
def name_that_torch_needs(draft):
    draft.node("pool")["path"] = draft.node("fc")["inputs"][0] = "forward"


@breaks("kind")
def unknown_kind(draft):
    draft.node("pool")["kind"] = "os.system"


@breaks("kind", is_integer=False)
def integers_among_real_numbers(draft):
    draft.node("stem.neuron")["kind"] = "integer_neuron"


@breaks("order")
def circle(draft):
    draft.node("stem.repeat")["inputs"] = ["block.merge"]


@breaks("order")
def reads_itself(draft):
    draft.node("fc")["inputs"] = ["fc"]


@breaks("unread")
def dead_end(draft):
    draft.node("block.merge")["inputs"] = ["block.shortcut"]


@breaks("unread")
def no_readout(draft):
    draft.manifest["nodes"].pop()


@breaks("timesteps")
def no_timestep(draft):
    draft.manifest["timesteps"] = 0


@breaks("timesteps")
def too_many_timesteps(draft):
    draft.manifest["timesteps"] = 4097


@breaks("timesteps")
def repeats_another_number(draft):
    draft.node("stem.repeat")["settings"]["timesteps"] = 3


@breaks("max-level")
def too_many_levels(draft):
    draft.node("stem.neuron")["tensors"]["thresholds"]["shape"][0] = 256


@breaks("max-level", is_integer=False)
def too_many_levels_with_a_sign(draft):
    draft.node("stem.neuron")["tensors"]["thresholds"]["shape"][0] = 128
    draft.node("stem.neuron")["settings"]["is_signed"] = True


@breaks("contiguous")
def hole(draft):
    last = max(draft.table.values(), key=lambda entry: entry["data_offsets"][1])
    last["data_offsets"] = [place + 4 for place in last["data_offsets"]]
    draft.numbers += bytes(4)


@breaks("contiguous")
def overlap(draft):
    first, second = (draft.table[f"{path}.neuron.thresholds"] for path in ("stem", "block"))
    first["data_offsets"] = second["data_offsets"]


@breaks("contiguous")
def bytes_of_nobody(draft):
    draft.numbers += bytes(8)


@breaks("contiguous")
def numbers_across_words(draft):
    table = json.dumps(draft.table).encode()
    table += b" " * (1 + -len(table) % 8)
    draft._shift(8 + len(table) - draft.start)
    payload = len(table).to_bytes(8, "little") + table + draft.numbers
    return pack_bundle(json.dumps(draft.manifest).encode(), payload)


@breaks("contiguous")
def shape_larger_than_its_bytes(draft):
    draft.table["fc.weight"]["shape"] = [2**40, 2**40]


@breaks("tensors")
def tensor_of_nobody(draft):
    draft.table["extra"] = {
        "dtype": "I8",
        "shape": [8],
        "data_offsets": [len(draft.numbers), len(draft.numbers) + 8],
    }
    draft.numbers += bytes(8)


@breaks("tensors")
def tensor_left_out(draft):
    draft.node("fc")["tensors"]["weight"] = None


@breaks("tensors")
def tensor_used_twice(draft):
    stem, block = (draft.node(f"{path}.neuron")["tensors"] for path in ("stem", "block"))
    stem["thresholds"] = dict(block["thresholds"])


@breaks("dtype")
def wide_weights_with_few_bits(draft):
    draft.node("fc")["settings"]["bits"] = 4


@breaks("dtype")
def real_weights_among_integers(draft):
    draft.node("fc")["tensors"]["weight"]["dtype"] = "F32"


@breaks("dtype", is_integer=False)
def two_kinds_of_real_numbers(draft):
    draft.node("fc")["tensors"]["weight"]["dtype"] = "F64"


@breaks("shape")
def channels_that_do_not_fit(draft):
    draft.manifest["input_shape"] = [3, 5, 5]


@breaks("shape")
def window_wider_than_the_image(draft):
    draft.node("pool")["settings"]["kernel"] = [6, 5]


@breaks("shape")
def bias_of_another_shape(draft):
    draft.node("fc")["tensors"]["bias"]["shape"] = [4]


@breaks("shape")
def linear_layer_with_a_stride(draft):
    draft.node("fc")["settings"]["stride"] = [2, 2]


@breaks("shape")
def pool_with_too_much_padding(draft):
    draft.node("pool")["settings"]["padding"] = [3, 3]


@breaks("shape")
def branches_of_two_sizes(draft):
    draft.node("block.conv")["settings"]["padding"] = [0, 0]


@breaks("size")
def image_of_gigabytes(draft):
    draft.manifest["input_shape"] = [2, 4096, 4096]


@breaks("size")
def padding_of_gigabytes(draft):
    draft.node("stem.conv")["settings"]["padding"] = [4096, 4096]
    draft.node("stem.conv")["tensors"]["bias"]["shape"] = [4]


@breaks("size")
def sum_of_the_same_thing_over_and_over(draft):
    payload = write_tensors({"a.weight": torch.zeros(8192, 1, dtype=torch.int8)})
    weight = vars(read_tensor_table(memoryview(payload))["a.weight"])
    bound = {"low": 0, "high": 0, "bits": 16}
    window = {"stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "groups": 1}
    nodes = [
        ("synapse", ["input"], {"max_input": 255, "has_time": True, "bits": 8, **window}),
        ("merge", ["synapse"] * 5000, {}),
        ("readout", ["merge"], {"over_time": "sum"}),
    ]
    tensors = {"synapse": {"weight": weight, "bias": None}}
    draft.manifest |= {
        "timesteps": 1,
        "input_shape": [1],
        "takes_frames": True,
        "nodes": [
            {"path": kind, "kind": kind, "inputs": inputs, "settings": settings,
             "tensors": tensors.get(kind, {}), "bound": bound}
            for kind, inputs, settings in nodes
        ],
    }  # fmt: skip
    return pack_bundle(json.dumps(draft.manifest).encode(), payload)


@breaks("signal")
def merged_levels(draft):
    draft.node("block.merge")["inputs"] = ["block.conv", "stem.neuron"]


@breaks("signal")
def still_where_time_passes(draft):
    draft.node("fc")["settings"]["has_time"] = False


@breaks("signal")
def mean_of_integers(draft):
    draft.node("readout")["settings"]["over_time"] = "mean"


@breaks("signal")
def neuron_without_time(draft):
    draft.node("stem.neuron")["inputs"] = ["stem.conv"]


@breaks("max-input")
def more_levels_than_it_says(draft):
    draft.node("fc")["settings"]["max_input"] = 74


@breaks("max-input", is_integer=False)
def levels_that_are_real_numbers(draft):
    draft.node("stem.conv")["settings"]["max_input"] = 255


@breaks("finite", is_integer=False)
def infinite_weight(draft):
    place = draft.region("fc.weight").start
    draft.numbers[place : place + 4] = struct.pack("<f", float("inf"))


@breaks("finite", is_integer=False)
def nan_weight(draft):
    place = draft.region("fc.weight").start
    draft.numbers[place : place + 4] = struct.pack("<f", float("nan"))


@breaks("bits")
def eight_in_four_bits(draft):
    draft.numbers[draft.region("block.conv.weight").start] = 8


@breaks("bits")
def lowest_byte(draft):
    draft.numbers[draft.region("stem.conv.weight").start] = 0x80


@breaks("bits")
def lowest_shortcut(draft):
    place = draft.region("block.shortcut.weight").start
    draft.numbers[place : place + 2] = b"\x00\x80"


@breaks("thresholds")
def falling_thresholds(draft):
    place = draft.region("stem.neuron.thresholds")
    draft.numbers[place] = struct.pack("<12i", *range(12, 0, -1))


@breaks("thresholds", is_integer=False)
def equal_thresholds(draft):
    draft.numbers[draft.region("stem.neuron.thresholds")] = struct.pack("<3f", 1, 1, 2)


@breaks("thresholds")
def threshold_of_zero(draft):
    place = draft.region("stem.neuron.thresholds").start
    draft.numbers[place : place + 4] = bytes(4)


@breaks("decay")
def growing_carry(draft):
    draft.node("stem.neuron")["settings"]["multiplier"] = 5


@breaks("decay", is_integer=False)
def negative_decay(draft):
    draft.numbers[draft.region("stem.neuron.decay")] = struct.pack("<f", -0.5)


@breaks("reset")
def negative_reset(draft):
    place = draft.region("stem.neuron.reset_amount").start
    draft.numbers[place : place + 4] = struct.pack("<i", -1)


@breaks("reset")
def late_reset_of_many_levels(draft):
    draft.node("stem.neuron")["settings"]["resets_after_decay"] = True


@breaks("reset", is_integer=False)
def split_membranes_that_subtract(draft):
    draft.node("stem.neuron")["settings"]["per_threshold_state"] = True


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    return tiny_bundles(tmp_path_factory.mktemp("rules") / "tiny.lbq")


@pytest.mark.parametrize("name", CASES)
def test_who_breaks_a_rule_is_told_its_name(name, bundles, tmp_path):
    rule, is_integer, edit = CASES[name]
    draft = EditableBundle(bundles[is_integer])
    data = edit(draft)
    path = tmp_path / "broken.lbq"
    path.write_bytes(draft.pack() if data is None else data)
    with pytest.raises(BundleError) as caught:
        load(path)
    assert caught.value.rule == rule, caught.value
    assert RULES[rule] in str(caught.value)


def test_a_folder_is_no_bundle(tmp_path):
    with pytest.raises(BundleError) as caught:
        load(tmp_path)
    assert caught.value.rule == "file"


def test_another_file_than_the_known_one_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"no bundle at all")
    with pytest.raises(BundleError) as caught:
        load(path, sha256="0" * 64)
    assert caught.value.rule == "known-digest"
    known = hashlib.sha256(path.read_bytes()).hexdigest().upper()
    with pytest.raises(BundleError) as caught:  # the known one goes on to the next rule
        load(path, sha256=known)
    assert caught.value.rule != "known-digest"


def test_every_rule_is_broken_by_some_case():
    assert {rule for rule, _, _ in CASES.values()} | {"file", "known-digest"} == set(RULES)


def test_the_page_about_the_format_lists_the_rules():
    page = Path(__file__).parents[2] / "docs" / "deploy" / "bundle-format.md"
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|$", page.read_text(), flags=re.M))
    assert {rule: rows.get(rule) for rule in RULES} == RULES


def test_the_drafts_are_sound_before_they_are_broken(bundles, tmp_path):
    for data in bundles.values():
        path = tmp_path / "sound.lbq"
        path.write_bytes(EditableBundle(data).pack())
        load(path)


@pytest.mark.parametrize("lie", [{"high": 1}, {"low": -1}])
def test_a_lie_about_a_bound_is_refused(lie, bundles, tmp_path):
    draft = EditableBundle(bundles[True])
    bound = draft.node("block.merge")["bound"]
    bound.update({side: bound[side] + by for side, by in lie.items()})
    (tmp_path / "lie.lbq").write_bytes(draft.pack())
    with pytest.raises(BoundError, match=r"block\.merge claims"):
        load(tmp_path / "lie.lbq")


def test_a_network_that_could_overflow_is_refused(bundles, tmp_path):
    draft = EditableBundle(bundles[True])
    draft.numbers[draft.region("stem.conv.bias")] = b"\xff\xff\xff\x7f" * 100
    (tmp_path / "wide.lbq").write_bytes(draft.pack())
    with pytest.raises(BoundError, match="32-bit"):
        load(tmp_path / "wide.lbq")


def test_a_refusal_is_an_error_of_this_library():
    assert issubclass(BundleError, LBQError)
    assert issubclass(BundleError, ValueError)
