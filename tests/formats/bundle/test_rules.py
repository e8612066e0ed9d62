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
from lbq.formats import RULES, BundleError, load_network
from lbq.formats.bundle.container import write_tensors


def put(node, place, value):
    """Return an edit that sets an entry of a node, or of the manifest itself (None)."""
    *parents, last = place.split("/")

    def edit(draft):
        entry = draft.manifest if node is None else draft.node(node)
        for key in parents:
            entry = entry[key]
        entry[last] = value

    return edit


def overwrite(name, data):
    """Return an edit of the first bytes of a tensor."""

    def edit(draft):
        start = draft.region(name).start
        draft.numbers[start : start + len(data)] = data

    return edit


def manifest(data):
    """Return an edit that replaces the manifest by these bytes."""
    return lambda draft: draft.pack(manifest=data)


INTEGER = {
    "text": ("magic", lambda draft: b"hello"),
    "nothing": ("magic", lambda draft: b""),
    "version_from_the_future": ("version", lambda draft: setattr(draft, "version", 3)),
    "reserved_bytes_used": ("reserved", lambda draft: pack_bundle(b"{}", b"", reserved=1)),
    "cut": ("length", lambda draft: draft.pack()[:-1]),
    "extended": ("length", lambda draft: draft.pack() + b"\0"),
    "cut_in_the_header": ("length", lambda draft: draft.pack()[:40]),
    "manifest_too_long": ("manifest-size", put(None, "origin/note", "x" * 2**20)),
    "no_json": ("json", manifest(b"{")),
    "key_twice": ("json", manifest(b'{"a": 1, "a": 2}')),
    "not_a_number": ("json", put(None, "logit_scale", float("nan"))),
    "beyond_floats": ("json", manifest(b'{"a": 1e999}')),
    "nested_without_end": ("json", manifest(b"[" * 100_000)),
    "not_utf_8": ("json", manifest('{"a": 1}'.encode("utf-16"))),
    "unknown_key": ("keys", put(None, "_target_", "os.system")),
    "unknown_setting": ("keys", put("fc", "settings/extra", 1)),
    "missing_setting": ("keys", put("pool", "settings", {"kind": "sum"})),
    "scale_of_zero": ("value", put(None, "logit_scale", 0.0)),
    "true_for_a_number": ("value", put("fc", "settings/groups", True)),
    "bits_that_nobody_has": ("value", put("fc", "settings/bits", 5)),
    "list_for_a_manifest": ("value", manifest(b"[]")),
    "no_nodes": ("count", put(None, "nodes", [])),
    "too_many_nodes": ("count", put(None, "nodes", [{}] * 4097)),
    "too_many_tensors": (
        "count",
        lambda draft: setattr(draft, "table", {str(i): 0 for i in range(2**14 + 1)}),
    ),
    "long_name": ("name", put("fc", "path", "ä" * 129)),
    "half_a_character": ("name", put("fc", "path", "\ud800")),
    "empty_part": ("name", put("fc", "path", "head..fc")),
    "name_twice": ("name", put("pool", "path", "block.merge")),
    "name_of_the_input": ("name", put("stem.conv", "path", "input")),
    "unknown_kind": ("kind", put("pool", "kind", "os.system")),
    "circle": ("order", put("stem.repeat", "inputs", ["block.merge"])),
    "reads_itself": ("order", put("fc", "inputs", ["fc"])),
    "dead_end": ("unread", put("block.merge", "inputs", ["block.shortcut"])),
    "no_timestep": ("timesteps", put(None, "timesteps", 0)),
    "too_many_timesteps": ("timesteps", put(None, "timesteps", 4097)),
    "repeats_another_number": ("timesteps", put("stem.repeat", "settings/timesteps", 3)),
    "too_many_levels": ("max-level", put("stem.neuron", "tensors/thresholds/shape", [256, 4])),
    "tensor_left_out": ("tensors", put("fc", "tensors/weight", None)),
    "wide_weights_with_few_bits": ("dtype", put("fc", "settings/bits", 4)),
    "real_weights_among_integers": ("dtype", put("fc", "tensors/weight/dtype", "F32")),
    "channels_that_do_not_fit": ("shape", put(None, "input_shape", [3, 5, 5])),
    "window_wider_than_the_image": ("shape", put("pool", "settings/kernel", [6, 5])),
    "bias_of_another_shape": ("shape", put("fc", "tensors/bias/shape", [4])),
    "linear_layer_with_a_stride": ("shape", put("fc", "settings/stride", [2, 2])),
    "pool_with_too_much_padding": ("shape", put("pool", "settings/padding", [3, 3])),
    "branches_of_two_sizes": ("shape", put("block.conv", "settings/padding", [0, 0])),
    "image_of_gigabytes": ("size", put(None, "input_shape", [2, 4096, 4096])),
    "merged_levels": ("signal", put("block.merge", "inputs", ["block.conv", "stem.neuron"])),
    "still_where_time_passes": ("signal", put("fc", "settings/has_time", False)),
    "mean_of_integers": ("signal", put("readout", "settings/over_time", "mean")),
    "neuron_without_time": ("signal", put("stem.neuron", "inputs", ["stem.conv"])),
    "more_levels_than_it_says": ("max-input", put("fc", "settings/max_input", 74)),
    "eight_in_four_bits": ("bits", overwrite("block.conv.weight", b"\x08")),
    "lowest_byte": ("bits", overwrite("stem.conv.weight", b"\x80")),
    "lowest_shortcut": ("bits", overwrite("block.shortcut.weight", b"\x00\x80")),
    "falling_thresholds": (
        "thresholds",
        overwrite("stem.neuron.thresholds", struct.pack("<12i", *range(12, 0, -1))),
    ),
    "threshold_of_zero": ("thresholds", overwrite("stem.neuron.thresholds", bytes(4))),
    "growing_carry": ("decay", put("stem.neuron", "settings/multiplier", 5)),
    "negative_reset": (
        "reset",
        overwrite("stem.neuron.reset_amount", struct.pack("<i", -1)),
    ),
    "late_reset_of_many_levels": (
        "reset",
        put("stem.neuron", "settings/resets_after_decay", True),
    ),
}
REAL = {
    "bound_of_real_numbers": ("value", put("fc", "bound", {"low": 0, "high": 1, "bits": 16})),
    "integers_among_real_numbers": ("kind", put("stem.neuron", "kind", "integer_neuron")),
    "two_kinds_of_real_numbers": ("dtype", put("fc", "tensors/weight/dtype", "F64")),
    "levels_that_are_real_numbers": ("max-input", put("stem.conv", "settings/max_input", 255)),
    "infinite_weight": ("finite", overwrite("fc.weight", struct.pack("<f", float("inf")))),
    "nan_weight": ("finite", overwrite("fc.weight", struct.pack("<f", float("nan")))),
    "equal_thresholds": (
        "thresholds",
        overwrite("stem.neuron.thresholds", struct.pack("<3f", 1, 1, 2)),
    ),
    "negative_decay": ("decay", overwrite("stem.neuron.decay", struct.pack("<f", -0.5))),
    "split_membranes_that_subtract": (
        "reset",
        put("stem.neuron", "settings/per_threshold_state", True),
    ),
}
CASES = {name: (rule, True, edit) for name, (rule, edit) in INTEGER.items()}
CASES |= {name: (rule, False, edit) for name, (rule, edit) in REAL.items()}
"""By name: the rule that is broken, whether in an integer bundle, and the edit that breaks it. An
edit changes a draft, or returns the bytes of a file."""


def breaks(rule, *, is_integer=True):
    def register(edit):
        CASES[edit.__name__] = rule, is_integer, edit
        return edit

    return register


@breaks("digest")
def flipped(draft):
    data = bytearray(draft.pack())
    data[-1] ^= 1
    return bytes(data)


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


@breaks("unread")
def no_readout(draft):
    draft.manifest["nodes"].pop()


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
def tensor_used_twice(draft):
    stem, block = (draft.node(f"{path}.neuron")["tensors"] for path in ("stem", "block"))
    stem["thresholds"] = dict(block["thresholds"])


@breaks("size")
def padding_of_gigabytes(draft):
    draft.node("stem.conv")["settings"]["padding"] = [4096, 4096]
    draft.node("stem.conv")["tensors"]["bias"]["shape"] = [4]


@breaks("size")
def sum_of_the_same_thing_over_and_over(draft):
    payload, table = write_tensors({"a.weight": torch.zeros(8192, 1, dtype=torch.int8)})
    weight = vars(table["a.weight"])
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
        load_network(path)
    assert caught.value.rule == rule, caught.value
    assert RULES[rule] in str(caught.value)


def test_a_folder_is_no_bundle(tmp_path):
    with pytest.raises(BundleError) as caught:
        load_network(tmp_path)
    assert caught.value.rule == "file"


def test_another_file_than_the_known_one_is_refused_before_it_is_parsed(tmp_path):
    path = tmp_path / "other"
    path.write_bytes(b"no bundle at all")
    with pytest.raises(BundleError) as caught:
        load_network(path, sha256="0" * 64)
    assert caught.value.rule == "known-digest"
    known = hashlib.sha256(path.read_bytes()).hexdigest().upper()
    with pytest.raises(BundleError) as caught:  # the known one goes on to the next rule
        load_network(path, sha256=known)
    assert caught.value.rule != "known-digest"


def test_every_rule_is_broken_by_some_case():
    assert {rule for rule, _, _ in CASES.values()} | {"file", "known-digest"} == set(RULES)


def test_the_page_about_the_format_lists_the_rules():
    page = Path(__file__).parents[3] / "docs" / "deploy" / "bundle-format.md"
    rows = dict(re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|$", page.read_text(), flags=re.M))
    assert {rule: rows.get(rule) for rule in RULES} == RULES


def test_the_drafts_are_sound_before_they_are_broken(bundles, tmp_path):
    for data in bundles.values():
        path = tmp_path / "sound.lbq"
        path.write_bytes(EditableBundle(data).pack())
        load_network(path)


@pytest.mark.parametrize("lie", [{"high": 1}, {"low": -1}])
def test_a_lie_about_a_bound_is_refused(lie, bundles, tmp_path):
    draft = EditableBundle(bundles[True])
    bound = draft.node("block.merge")["bound"]
    bound.update({side: bound[side] + by for side, by in lie.items()})
    (tmp_path / "lie.lbq").write_bytes(draft.pack())
    with pytest.raises(BoundError, match=r"block\.merge states the bound"):
        load_network(tmp_path / "lie.lbq")


def test_a_network_that_could_overflow_is_refused(bundles, tmp_path):
    draft = EditableBundle(bundles[True])
    draft.numbers[draft.region("stem.conv.bias")] = b"\xff\xff\xff\x7f" * 100
    (tmp_path / "wide.lbq").write_bytes(draft.pack())
    with pytest.raises(BoundError, match="32-bit"):
        load_network(tmp_path / "wide.lbq")


def test_a_refusal_is_an_error_of_this_library():
    assert issubclass(BundleError, LBQError)
    assert issubclass(BundleError, ValueError)
