"""Bundles taken apart and sealed again: shared by the tests of export."""

import hashlib
import json
from dataclasses import replace

import torch

import lbq
from lbq.formats.bundle.container import NAMES, Region
from lbq.formats.bundle.manifest import write_manifest
from lbq.graph.graph import INPUT, GraphBuilder, prove
from lbq.graph.operators import (
    IntegerNeuron,
    Merge,
    Pool,
    Readout,
    RealNeuron,
    Repeat,
    Shortcut,
    Synapse,
)

HEADER = 64


def tiny_bundles(path):
    """Return the bytes of a small bundle of integers (True) and of one of real numbers (False)."""
    made = {}
    for is_integer in (True, False):
        lbq.save_network(tiny_network(is_integer=is_integer), path)
        made[is_integer] = path.read_bytes()
    return made


def tiny_network(*, is_integer=True):
    """Two layers with everything that a network can have; loads in a millisecond."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape, bits, dtype=torch.int8):
        largest = 2 ** (bits - 1) - 1
        values = torch.randint(-largest, largest + 1, shape, generator=generator)
        return values.to(dtype) if is_integer else values.float() / 2**bits

    def neuron(channels):
        if is_integer:
            thresholds = torch.arange(1, 4)[:, None].expand(3, channels) * 500
            reset_amount = torch.full((channels,), 500)
            return IntegerNeuron(
                thresholds.int(),
                multiplier=3,
                shift=2,
                reset_amount=reset_amount.int(),
                reset="event",
            )
        thresholds = torch.arange(1, 4)[:, None] * 0.5
        half = torch.tensor([0.5])
        return RealNeuron(thresholds, decay=torch.tensor([0.75]), reset_amount=half, reset="level")

    def bits(number):
        return number if is_integer else None

    net = GraphBuilder(
        timesteps=2,
        input_shape=(2, 5, 5),
        takes_frames=False,
        logit_scale=0.25 if is_integer else None,
        origin={"recipe": {"name": "tiny"}, "accuracy": 0.5},
    )
    stem = Synapse(
        numbers(4, 2, 3, 3, bits=8),
        numbers(4, 5, 5, bits=12, dtype=torch.int32),
        max_input=255 if is_integer else None,
        has_time=False,
        padding=(1, 1),
        bits=bits(8),
    )
    at = net.add("stem.conv", stem, INPUT)
    at = net.add("stem.repeat", Repeat(2), at)
    at = first = net.add("stem.neuron", neuron(4), at)
    conv = Synapse(
        numbers(4, 2, 3, 3, bits=4),
        None,
        max_input=3,
        padding=(1, 1),
        groups=2,
        bits=bits(4),
    )
    at = net.add("block.conv", conv, first)
    weight = numbers(4, bits=12, dtype=torch.int16)
    bias = numbers(4, bits=9, dtype=torch.int32)
    skip = net.add("block.shortcut", Shortcut(weight, bias, max_input=3), first)
    at = net.add("block.merge", Merge(), at, skip)
    at = net.add("block.neuron", neuron(4), at)
    at = net.add("pool", Pool("sum", kernel=(5, 5)), at)
    weight = numbers(3, 4, bits=16, dtype=torch.int16)
    bias = numbers(3, bits=12, dtype=torch.int32)
    at = net.add("fc", Synapse(weight, bias, max_input=75, bits=bits(16)), at)
    net.add("readout", Readout("sum" if is_integer else "mean"), at)
    return net.finish()


def manifest_of(network):
    """Return the manifest as a document, with made-up places of the tensors, and these."""
    regions = {
        name: Region(NAMES[tensor.dtype], tuple(tensor.shape), 8 * place)
        for place, (name, tensor) in enumerate(network.tensors.items())
    }
    bounds = prove(network) if network.is_integer else {}
    return json.loads(write_manifest(network, regions, bounds)), regions


class EditableBundle:
    """A bundle taken apart: change what you like, and ``pack`` it with a digest that is right."""

    def __init__(self, data):
        num_manifest = int.from_bytes(data[12:16], "little")
        payload = data[HEADER + num_manifest :]
        length = int.from_bytes(payload[:8], "little")
        self.version = int.from_bytes(data[8:12], "little")
        self.manifest = json.loads(data[HEADER : HEADER + num_manifest])
        self.table = json.loads(payload[8 : 8 + length])
        self.start = 8 + length
        self.numbers = bytearray(payload[8 + length :])

    def node(self, path):
        return next(node for node in self.manifest["nodes"] if node["path"] == path)

    def region(self, name):
        """Where a tensor lies among the numbers."""
        return slice(*self.table[name]["data_offsets"])

    def pack(self, *, manifest=None, table=None):
        """Seal it; raw bytes may stand for manifest and table."""
        table = json.dumps(self.table).encode() if table is None else table
        table += b" " * (-len(table) % 8)  # tensors are aligned
        self._shift(8 + len(table) - self.start)
        manifest = json.dumps(self.manifest).encode() if manifest is None else manifest
        return pack_bundle(
            manifest, len(table).to_bytes(8, "little") + table + self.numbers, self.version
        )

    def _shift(self, distance):
        nodes = self.manifest.get("nodes")
        for node in nodes if isinstance(nodes, list) else ():
            tensors = node.get("tensors") if isinstance(node, dict) else None
            for region in tensors.values() if isinstance(tensors, dict) else ():
                if isinstance(region, dict) and type(region.get("offset")) is int:
                    region["offset"] += distance
        self.start += distance


def pack_bundle(manifest, payload, version=2, *, reserved=0):
    """Put a header of any kind in front, with the digest that belongs to it."""
    manifest += b" " * (-len(manifest) % 64)
    start = b"\x89LBQ\r\n\x1a\n" + version.to_bytes(4, "little")
    start += len(manifest).to_bytes(4, "little") + len(payload).to_bytes(8, "little")
    start += reserved.to_bytes(8, "little")
    return start + hashlib.sha256(start + manifest + payload).digest() + manifest + payload


def with_reset(reset):
    """Return the tiny network with another reset in all neurons."""

    def changed(neuron):
        if reset != "late":
            return replace(neuron, reset=reset)
        first = neuron.thresholds[:1]
        return replace(neuron, thresholds=first, reset="event", resets_after_decay=True)

    return with_operators(tiny_network(), IntegerNeuron, changed)


def with_operators(network, kind, change):
    """Return the network with every operator of a kind changed."""
    return replace(
        network,
        nodes=tuple(
            node._replace(operator=change(node.operator))
            if isinstance(node.operator, kind)
            else node
            for node in network.nodes
        ),
    )


def with_operator(network, path, **changes):
    """Return the network with other fields of the operator at a path."""
    return with_operators(
        network,
        type(network.operators[path]),
        lambda each: replace(each, **changes) if each is network.operators[path] else each,
    )
