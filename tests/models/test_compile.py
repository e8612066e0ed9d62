"""The whole network through torch.compile."""

import torch

import lbq
from lbq.neurons import named_neurons


def test_compiled_resnet20_agrees_with_eager_and_flips_almost_no_level():
    torch.manual_seed(0)
    model = lbq.resnet20(10)  # the paper's width
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        lbq.calibrate_steps(model, [images])
        for _ in range(10):
            model(images)  # batch norm gets to know the data, so that all layers fire
    model.eval()
    levels = []
    for _, neuron in named_neurons(model):
        neuron.emit.register_forward_hook(lambda module, args, output: levels.append(output))

    def run(images):
        levels.clear()
        return model(images), list(levels)

    with torch.no_grad():
        logits, expected = run(images)
        compiled_logits, found = torch.compile(run, fullgraph=True)(images)
    flipped = sum(int((a != b).sum()) for a, b in zip(found, expected, strict=True))
    total = sum(level.numel() for level in expected)
    assert len(expected) == 19
    assert total > 3_000_000
    assert all(level.any() for level in expected)
    assert flipped / total < 1e-5
    torch.testing.assert_close(compiled_logits, logits, rtol=1e-3, atol=1e-3)
