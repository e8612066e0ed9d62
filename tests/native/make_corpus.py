"""Write the small bundles of native/fuzz/corpus, each with the answers that torch gives.

    python tests/native/make_corpus.py

They are golden: readers of later versions must give the same answers. ``NAME.txt`` holds the
integers that the dense backend gives for three samples whose byte ``i`` is ``(37 * i + 11) % 256``.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from bundles import tiny_network, with_reset

import lbq
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import (
    Concat,
    IntegerNeuron,
    Matmul,
    Merge,
    Multiply,
    Offset,
    Pool,
    Readout,
    Rearrange,
    Repeat,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll

CORPUS = Path(__file__).parents[2] / "native" / "fuzz" / "corpus"
BATCH = 3


def frames():
    """Frames, windows of all kinds, currents pooled and merged, and a sequence as the answer."""
    numbers = _numbers(1)
    net = GraphBuilder(timesteps=3, input_shape=(2, 7, 6), takes_frames=True, logit_scale=0.5)
    at = net.add("pool", Pool("max", kernel=(3, 2), stride=(1, 2), padding=(1, 1)), INPUT)
    weight = numbers(6, 1, 2, 3, largest=127)
    options = {"stride": (2, 1), "padding": (0, 2), "dilation": (3, 2), "groups": 2}
    at = net.add("conv", Synapse(weight, max_input=255, bits=8, **options), at)
    skip = net.add("pairs", Pool("sum", kernel=(1, 2)), at)
    at = net.add("largest", Pool("max", kernel=(1, 2)), at)
    at = net.add("merge", Merge(), at, skip, at)
    thresholds = torch.tensor([[2000], [2000], [30000]], dtype=torch.int32)
    reset_amount = torch.tensor([3000], dtype=torch.int32)
    neuron = IntegerNeuron(
        thresholds, multiplier=7, shift=3, reset_amount=reset_amount, reset="level"
    )
    at = net.add("neuron", neuron, at)
    one = torch.tensor([-321], dtype=torch.int16)
    at = net.add("shortcut", Shortcut(one, one.int() * 50, max_input=3), at)
    net.add("readout", Readout("none"), at)
    return net.finish()


def features():
    """Values without places."""
    weight = torch.arange(-12, 12).reshape(4, 6).to(torch.int8)
    net = GraphBuilder(timesteps=2, input_shape=(6,), takes_frames=True, logit_scale=1.0)
    at = net.add("fc", Synapse(weight, max_input=255, bits=8), INPUT)
    thresholds = torch.tensor([[700, 900, 2500, 4000]], dtype=torch.int32)
    neuron = IntegerNeuron(
        thresholds, multiplier=1, shift=0, reset_amount=thresholds[0].clone(), reset="event"
    )
    at = net.add("neuron", neuron, at)
    at = net.add("fc.out", Synapse(weight[:3, :4].contiguous(), max_input=1, bits=8), at)
    net.add("readout", Readout("sum"), at)
    return net.finish()


def _numbers(seed):
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape, largest, dtype=torch.int8):
        return torch.randint(-largest, largest + 1, shape, generator=generator).to(dtype)

    return numbers


def _neuron(levels, channels, step, *, reset="level"):
    thresholds = torch.arange(1, levels + 1)[:, None] * (step + torch.arange(channels))
    amount = torch.full((channels,), step, dtype=torch.int32)
    return IntegerNeuron(
        thresholds.to(torch.int32), multiplier=1, shift=1, reset_amount=amount, reset=reset
    )


def attention():
    """Heads, products of levels, matrices of levels, and two outputs."""
    numbers = _numbers(2)
    net = GraphBuilder(timesteps=2, input_shape=(3, 4, 4), takes_frames=False, logit_scale=0.5)
    conv = Synapse(
        numbers(8, 3, 2, 2, largest=127), max_input=255, bits=8, stride=(2, 2), has_time=False
    )
    at = net.add("patches", conv, INPUT)
    at = net.add("position", Offset(numbers(8, 1, 2, largest=2000, dtype=torch.int32)), at)
    at = net.add("repeat", Repeat(2), at)
    tokens = net.add("tokens", _neuron(5, 8, 3000), at)
    heads = {}
    for name, order in {"q": (0, 2, 1), "k": (0, 1, 2), "v": (0, 2, 1)}.items():
        weight = numbers(8, 8, 1, 1, largest=7)
        at = net.add(f"{name}.conv", Synapse(weight, max_input=5, bits=4), tokens)
        at = net.add(f"{name}.neuron", _neuron(3, 8, 4, reset="event"), at)
        shape = (2, 4, 4)
        heads[name] = net.add(f"{name}.heads", Rearrange(sizes=shape, order=order, shape=shape), at)
    at = net.add("scores", Matmul(), heads["q"], heads["k"])
    at = net.add("mixed", Matmul(), at, heads["v"])
    at = net.add("joined", Rearrange(sizes=(2, 4, 4), order=(0, 2, 1), shape=(8, 2, 2)), at)
    one = torch.tensor([1], dtype=torch.int16)
    at = net.add("currents", Shortcut(one, max_input=432), at)
    at = net.add("attended", _neuron(4, 8, 8), at)
    gate = net.add("gate", Slice(axis=0, start=0, stop=1), at)
    gated = net.add("gated", Multiply(), at, gate)
    far = net.add("fc", Synapse(numbers(3, 32, largest=127), max_input=16, bits=8), gated)
    net.add("classes", Readout("none"), far)
    box = Synapse(numbers(4, 8, 1, 1, largest=127), max_input=4, bits=8)
    net.add("boxes", Readout("none"), net.add("box", box, at))
    return net.finish()


def unet():
    """Joined levels and currents, upsampling, zeros around, parts; one spatial axis."""
    numbers = _numbers(3)
    net = GraphBuilder(timesteps=3, input_shape=(2, 9), takes_frames=True, logit_scale=0.25)
    conv = Synapse(
        numbers(4, 1, 3, largest=127), max_input=255, bits=8, padding=(2,), dilation=(2,), groups=2
    )
    at = net.add("stem", conv, INPUT)
    wide = net.add("wide", _neuron(6, 4, 3000), at)
    at = net.add("pool", Pool("max", kernel=(3,), stride=(2,), padding=(1,)), wide)
    at = net.add(
        "down", Synapse(numbers(4, 4, 3, largest=7), max_input=6, bits=4, padding=(1,)), at
    )
    small = net.add("small", _neuron(2, 4, 30), at)
    near = net.add("near", Upsample(factors=(2,), fill="nearest"), small)
    near = net.add("near.part", Slice(axis=1, start=0, stop=9), near)
    near = net.add("near.rolled", Roll(axis=1, start=4), near)
    zeros = net.add("zeros", Upsample(factors=(2,), fill="zeros"), small)
    padded = net.add("padded", ZeroPad(before=(1,), after=(0,)), zeros)
    kernel = numbers(4, 4, 2, largest=7)
    up = net.add("up", Synapse(kernel, max_input=2, bits=4), padded)
    other = Synapse(
        numbers(2, 4, 1, largest=7), numbers(2, largest=50, dtype=torch.int32), max_input=2, bits=4
    )
    joined = net.add("joined", Concat(axis=0), up, net.add("other", other, near))
    joined = net.add("rolled", Roll(axis=0, start=2, step=-1), joined)
    odd = net.add("odd", Slice(axis=0, start=1, stop=6, step=2), joined)
    at = net.add("neuron", _neuron(3, 3, 20), odd)
    at = net.add("skip", Concat(axis=0), at, wide, near)
    sums = net.add("sums", Pool("sum", kernel=(9,)), at)
    net.add(
        "head",
        Readout("sum"),
        net.add("fc", Synapse(numbers(5, 11, largest=127), max_input=54, bits=8), sums),
    )
    net.add(
        "map",
        Readout("sum"),
        net.add("last", Synapse(numbers(2, 11, 3, largest=127), max_input=6, bits=8), at),
    )
    return net.finish()


def answers_of(network):
    """Return what the dense backend gives for the pattern, all outputs one behind the other."""
    answers = lbq.run_network(network, inputs_of(network), backend="dense")
    outputs = answers if isinstance(answers, tuple) else (answers,)
    return [number for output in outputs for number in output.flatten().tolist()]


def inputs_of(network):
    """Return three samples of the pattern."""
    shape = network.example(BATCH).shape
    return ((37 * torch.arange(shape.numel()) + 11) % 256).reshape(shape).to(torch.uint8)


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    networks = {f"tiny-{reset}": with_reset(reset) for reset in ("event", "level", "zero", "none")}
    networks |= {"tiny-late": with_reset("late"), "frames": frames(), "features": features()}
    networks |= {"attention": attention(), "unet": unet()}
    for name, network in networks.items():
        lbq.save_network(network, CORPUS / f"{name}.lbq")
        (CORPUS / f"{name}.txt").write_text("\n".join(map(str, answers_of(network))) + "\n")
    lbq.save_network(tiny_network(is_integer=False), CORPUS / "real.lbq")


if __name__ == "__main__":
    main()
