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
from lbq.deploy.graph import INPUT, LoweredNetwork
from lbq.deploy.operators import IntegerNeuron, Merge, Pool, Readout, Shortcut, Synapse

CORPUS = Path(__file__).parents[2] / "native" / "fuzz" / "corpus"
BATCH = 3


def frames():
    """Frames, windows of all kinds, currents pooled and merged, and a sequence as the answer."""
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape, largest, dtype):
        return torch.randint(-largest, largest + 1, shape, generator=generator).to(dtype)

    net = LoweredNetwork(timesteps=3, input_shape=(2, 7, 6), takes_frames=True, logit_scale=0.5)
    at = net.add("pool", Pool("max", kernel=(3, 2), stride=(1, 2), padding=(1, 1)), INPUT)
    weight = numbers(6, 1, 2, 3, largest=127, dtype=torch.int8)
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
    return net


def features():
    """Values without places."""
    weight = torch.arange(-12, 12).reshape(4, 6).to(torch.int8)
    net = LoweredNetwork(timesteps=2, input_shape=(6,), takes_frames=True, logit_scale=1.0)
    at = net.add("fc", Synapse(weight, max_input=255, bits=8), INPUT)
    thresholds = torch.tensor([[700, 900, 2500, 4000]], dtype=torch.int32)
    neuron = IntegerNeuron(
        thresholds, multiplier=1, shift=0, reset_amount=thresholds[0].clone(), reset="event"
    )
    at = net.add("neuron", neuron, at)
    at = net.add("fc.out", Synapse(weight[:3, :4].contiguous(), max_input=1, bits=8), at)
    net.add("readout", Readout("sum"), at)
    return net


def inputs_of(network):
    """Return three samples of the pattern."""
    shape = network.example(BATCH).shape
    return ((37 * torch.arange(shape.numel()) + 11) % 256).reshape(shape).to(torch.uint8)


def main():
    CORPUS.mkdir(parents=True, exist_ok=True)
    networks = {f"tiny-{reset}": with_reset(reset) for reset in ("event", "level", "zero", "none")}
    networks |= {"tiny-late": with_reset("late"), "frames": frames(), "features": features()}
    for name, network in networks.items():
        lbq.save_network(network, CORPUS / f"{name}.lbq")
        answers = lbq.run_network(network, inputs_of(network), backend="dense").flatten().tolist()
        (CORPUS / f"{name}.txt").write_text("\n".join(map(str, answers)) + "\n")
    lbq.save_network(tiny_network(is_integer=False), CORPUS / "real.lbq")


if __name__ == "__main__":
    main()
