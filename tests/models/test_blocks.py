import torch
from torch import nn

from lbq.models import BasicBlock, MSBlock, SEWBlock
from lbq.neurons import BurstLIF


def neuron(channels):
    return BurstLIF(step=0.5)


def test_the_basic_block_adds_currents_before_its_neuron():
    block = BasicBlock(4, 4, stride=1, neuron=neuron).eval()
    bursts = torch.randint(0, 3, (2, 3, 4, 5, 5)).float()
    currents = block.synapse2(block.neuron1(block.synapse1(bursts))) + bursts
    assert torch.equal(block(bursts), block.neuron2(currents))


def test_the_sew_block_adds_bursts():
    block = SEWBlock(4, 8, stride=2, neuron=neuron).eval()
    bursts = torch.randint(0, 3, (2, 3, 4, 6, 6)).float()
    branch = block.neuron2(block.synapse2(block.neuron1(block.synapse1(bursts))))
    assert torch.equal(block(bursts), branch + block.shortcut_neuron(block.shortcut(bursts)))
    assert isinstance(SEWBlock(4, 4, stride=1, neuron=neuron).shortcut_neuron, nn.Identity)


def test_no_synapse_of_an_ms_block_reads_a_current():
    for inputs, outputs, stride in [(4, 4, 1), (4, 8, 2)]:
        block, seen = MSBlock(inputs, outputs, stride=stride, neuron=neuron).eval(), []
        for module in block.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_pre_hook(lambda conv, args, seen=seen: seen.append(args[0]))
        block(torch.randn(2, 3, inputs, 6, 6))
        assert seen
        assert all(torch.equal(2 * x, (2 * x).round()) for x in seen)  # multiples of the step


def test_an_ms_block_keeps_the_current_on_its_shortcut():
    block = MSBlock(4, 4, stride=1, neuron=neuron).eval()
    nn.init.zeros_(block.synapse2[0].weight)
    currents = torch.randn(2, 3, 4, 5, 5)
    assert torch.equal(block(currents), currents)
