import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from bundles import with_operator, with_operators
from integer_oracle import run_oracle
from random_networks import RandomNetwork

import lbq
from lbq.errors import BoundError, LoweringError
from lbq.graph.graph import GraphBuilder, membrane_bounds, prove
from lbq.graph.operators import IntegerNeuron, Pool, Readout, Shortcut, Synapse
from lbq.lowering.fixed_point import to_fixed_point
from lbq.lowering.lower import lower


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def network(input_shape, *nodes, timesteps=1):
    """Build an integer network of frames; every node reads the one before."""
    net = GraphBuilder(
        timesteps=timesteps, input_shape=input_shape, takes_frames=True, logit_scale=1.0
    )
    before = "input"
    for path, node in nodes:
        before = net.add(path, node, before)
    return net.finish()


def one_layer(seed, *, timesteps, inputs=2, outputs=3):
    """Build a synapse and its neurons, all random; inputs are bytes."""
    dice = random.Random(seed)
    weight = torch.tensor(
        [[dice.randint(-4, 4) for _ in range(inputs)] for _ in range(outputs)], dtype=torch.int8
    )
    bias = int32([dice.randint(-40, 40) for _ in range(outputs)])
    step = [dice.randint(20, 500) for _ in range(outputs)]
    num = dice.choice([1, 2, 3, 5])
    shift = dice.randint(0, 8)
    neuron = IntegerNeuron(
        int32([[k * gamma for gamma in step] for k in range(1, num + 1)]),
        multiplier=dice.randint(0, 2**shift),
        shift=shift,
        reset_amount=int32([dice.randint(0, gamma) for gamma in step]),
        reset=(reset := dice.choice(["event", "level", "none", "zero"])),
        resets_after_decay=num == 1 and reset == "event" and dice.random() < 0.6,
    )
    synapse = Synapse(weight, bias, max_input=255, bits=8)
    last = Shortcut(torch.ones(1, dtype=torch.int16), max_input=num)
    nodes = ("synapse", synapse), ("neuron", neuron), ("last", last), ("readout", Readout("none"))
    return network((inputs,), *nodes, timesteps=timesteps)


def membranes(net, frames):
    """Return every membrane that the neuron has on these frames, [T, B, n]."""
    neuron, currents = net.operators["neuron"], net.operators["synapse"](frames)
    carry, seen = torch.zeros_like(currents[0]), []
    for current in currents:
        seen.append(neuron.integrate(carry, current))
        _, carry = neuron.update(carry, current)
    return torch.stack(seen).numpy()


def extreme_frames(net):
    """Return all sequences of the inputs that give the smallest, the largest, and no current."""
    weight = net.operators["synapse"].weight
    corners = [torch.zeros(weight.shape[1], dtype=torch.uint8)]
    for row in weight:
        corners += [(row > 0).to(torch.uint8) * 255, (row < 0).to(torch.uint8) * 255]
    sequences = itertools.product(corners, repeat=net.timesteps)
    return torch.stack([torch.stack(list(some)) for some in sequences], dim=1)  # [T, B, n]


@pytest.mark.parametrize("seed", range(60))
def test_no_input_leaves_the_bounds(seed):  # S7
    net = one_layer(seed, timesteps=3)
    proven = membrane_bounds(net)["neuron"]
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 256, (3, 300, 2), dtype=torch.uint8, generator=generator)
    for frames in (extreme_frames(net), noise):
        for t, membrane in enumerate(membranes(net, frames)):
            assert (membrane >= proven[t].low.astype(int)).all()
            assert (membrane <= proven[t].high.astype(int)).all()


@pytest.mark.parametrize("seed", range(60))
def test_no_partial_sum_of_a_membrane_leaves_the_bounds(seed):
    """A reset behind the decay is taken from decay plus current, in this order or the other."""
    net = one_layer(seed, timesteps=3)
    neuron, bound = net.operators["neuron"], prove(net)["neuron"]
    frames = extreme_frames(net)
    carry = None
    for current in net.operators["synapse"](frames):
        carry = torch.zeros_like(current) if carry is None else carry
        product = carry.long() * neuron.multiplier
        decayed = product >> neuron.shift
        membrane = neuron.integrate(carry, current)
        taken = decayed + current - membrane  # by a reset behind the decay
        for partial in (product, decayed, decayed + current, decayed - taken, membrane):
            assert bound.low <= int(partial.min())
            assert int(partial.max()) <= bound.high
        _, carry = neuron.update(carry, current)


def test_a_padded_window_holds_less():
    weight, bias = torch.zeros(1, 1, 1, 1, dtype=torch.int8), int32([100])
    conv = Synapse(weight, bias, max_input=255, bits=8)
    pool = Pool("sum", kernel=(3, 3), stride=(1, 1), padding=(1, 1))
    net = network((1, 2, 2), ("conv", conv), ("pool", pool), ("readout", Readout("none")))
    found = lbq.run_network(net, torch.zeros(1, 1, 1, 2, 2, dtype=torch.uint8), backend="dense")
    assert found.unique().tolist() == [400]  # four of nine taps
    bound = prove(net)["readout"]
    assert (bound.low, bound.high) == (0, 900)


@pytest.mark.parametrize("seed", range(60))
def test_the_first_bound_is_reached_on_both_sides_by_every_neuron(seed):
    net = one_layer(seed, timesteps=1)
    (proven,) = membrane_bounds(net)["neuron"]
    (membrane,) = membranes(net, extreme_frames(net))
    assert membrane.min(0).tolist() == proven.low.tolist()
    assert membrane.max(0).tolist() == proven.high.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_later_bounds_are_reached_where_every_current_is_possible(seed):
    """With weights of one, every integer current occurs: follow the exact set of carries."""
    dice = random.Random(seed)
    net = one_layer(seed, timesteps=3, inputs=2, outputs=1)
    weight = torch.tensor([[1, -1]], dtype=torch.int8)
    net = with_operators(net, Synapse, lambda synapse: replace(synapse, weight=weight))
    thresholds = net.operators["neuron"].thresholds // dice.choice([1, 3])
    amount = torch.minimum(net.operators["neuron"].reset_amount, thresholds[0])
    net = with_operator(net, "neuron", thresholds=thresholds, reset_amount=amount)
    neuron = net.operators["neuron"]
    low, high = (int(side[0]) for side in membrane_bounds(net)["neuron"][0])
    reached, all_currents = {0}, np.arange(low, high + 1)
    for proven in membrane_bounds(net)["neuron"]:
        carries = torch.tensor(sorted(reached), dtype=torch.int32).reshape(-1, 1)
        seen = set()
        for current in all_currents.tolist():
            now = torch.full_like(carries, current)
            seen |= set(neuron.integrate(carries, now).flatten().tolist())
        assert (min(seen), max(seen)) == (proven.low[0], proven.high[0])
        membrane = torch.tensor(sorted(seen), dtype=torch.int32).reshape(-1, 1)
        if neuron.resets_after_decay:
            reached = seen
        else:
            amounts = {"reset_amount": neuron.reset_amount, "reset": neuron.reset}
            still = IntegerNeuron(neuron.thresholds, multiplier=0, shift=0, **amounts)
            _, after = still.update(torch.zeros_like(membrane), membrane)
            reached = set(after.flatten().tolist())
        if len(reached) > 3000:
            break


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_network_stays_within_its_proof(seed):
    model = RandomNetwork(seed)
    inputs = torch.cat(
        [model.inputs(), model.inputs() * 0, model.inputs() * 0 + 255], dim=int(model.takes_frames)
    )
    net = to_fixed_point(lower(model, inputs.float()), pixels=None)
    proven = prove(net)
    for path, value in run_oracle(net, inputs).items():
        if path in proven and not isinstance(net.operators[path], IntegerNeuron):
            assert proven[path].low <= value.min() <= value.max() <= proven[path].high


def test_the_narrowest_width_is_picked():
    net = one_layer(0, timesteps=1)
    assert prove(net)["synapse"].bits == 16
    synapse = Synapse(torch.full((1, 2), 30000, dtype=torch.int16), max_input=255, bits=16)
    wide = network((2,), ("synapse", synapse), ("readout", Readout("none")))
    assert prove(wide)["synapse"].bits == 32


def test_what_could_overflow_is_refused_by_name():
    synapse = Synapse(torch.full((1, 600), 32767, dtype=torch.int16), max_input=255, bits=16)
    with pytest.raises(BoundError, match=r"deep\.synapse"):
        prove(network((600,), ("deep.synapse", synapse)))


def test_time_belongs_into_the_bound():
    """One step is removed whatever the level, so a membrane grows with every timestep."""
    changes = {"multiplier": 1, "shift": 0, "reset": "event", "resets_after_decay": False}
    short, long = (with_operator(one_layer(7, timesteps=t), "neuron", **changes) for t in (1, 12))
    assert prove(long)["neuron"].high > 5 * prove(short)["neuron"].high


def test_a_node_that_says_less_enters_than_does_is_refused():
    net = to_fixed_point(lower(lbq.resnet19(3, width=1 / 16).eval(), torch.zeros(2, 1, 2, 16, 16)))
    net = with_operator(net, "stages.0.0.synapse2.0", max_input=4)
    with pytest.raises(LoweringError, match=r"stages\.0\.0\.synapse2\.0: .* to 4 enter"):
        prove(net)
