"""BurstLIF and the time wrappers are enough for networks that are not ours."""

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import LoweringError

T, B = 3, 4


def mlp():
    """Flat vectors, [B, features]."""
    return nn.Sequential(
        nn.Linear(12, 16),
        lbq.RepeatOverTime(T),
        lbq.BurstLIF(),
        nn.Linear(16, 16),
        lbq.BurstLIF(),
        nn.Linear(16, 5),
        lbq.MeanOverTime(),
    )


def cnn():
    """Images, [B, C, H, W]."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        lbq.RepeatOverTime(T),
        lbq.BurstLIF(),
        lbq.OverTime(nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)),
        lbq.BurstLIF(),
        lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
        lbq.MeanOverTime(),
    )


def conv1d():
    """Static signals, [B, C, L]."""
    return nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=1), nn.BatchNorm1d(8), lbq.RepeatOverTime(T), *_conv1d_tail()
    )


def conv1d_over_time():
    """A window of a signal at every timestep, [T, B, C, L]."""
    return nn.Sequential(
        lbq.OverTime(nn.Conv1d(2, 8, 3, padding=1), nn.BatchNorm1d(8)), *_conv1d_tail()
    )


def _conv1d_tail():
    return (
        lbq.BurstLIF(),
        lbq.OverTime(nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)),
        lbq.BurstLIF(),
        lbq.OverTime(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5)),
        lbq.MeanOverTime(),
    )


class Tokens(nn.Module):
    """Linear attention between tokens, [T, B, tokens, features]."""

    def __init__(self):
        super().__init__()
        self.embed, self.embedded = nn.Linear(6, 8), lbq.BurstLIF()
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.queries, self.keys, self.values, self.mixed = (lbq.BurstLIF() for _ in range(4))
        self.head, self.mean = nn.Linear(8, 5), lbq.MeanOverTime()

    def forward(self, tokens):
        tokens = self.embedded(self.embed(tokens))
        queries = self.queries(self.query(tokens))
        keys = self.keys(self.key(tokens))
        values = self.values(self.value(tokens))
        tokens = tokens + self.mixed(queries @ (keys.mT @ values) / 8)
        return self.mean(self.head(tokens).mean(2))


NETWORKS = {
    "mlp": (mlp, (B, 12), 0),
    "cnn": (cnn, (B, 3, 8, 8), 0),
    "conv1d": (conv1d, (B, 2, 16), 0),
    "conv1d over time": (conv1d_over_time, (T, B, 2, 16), 1),
    "tokens": (Tokens, (T, B, 7, 6), 1),
}


@pytest.fixture(params=NETWORKS)
def network(request):
    torch.manual_seed(0)
    build, shape, batch_axis = NETWORKS[request.param]
    return build(), torch.randint(0, 256, shape) / 255 - 0.5, batch_axis


def test_the_output_and_all_gradients_are_there(network):
    model, x, _ = network
    lbq.calibrate_steps(model, [x])
    logits = model(x)
    assert logits.shape == (B, 5)
    nn.functional.cross_entropy(logits, torch.arange(B)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    weights = [p for p in model.parameters() if p.dim() > 1]
    assert all(p.grad.abs().sum() > 0 for p in weights)


def test_a_step_of_training_lowers_the_loss(network):
    model, x, _ = network
    lbq.calibrate_steps(model, [x])
    optimizer = torch.optim.AdamW(lbq.param_groups(model, 0.01), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(x), torch.arange(B))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_no_sample_depends_on_another(network):
    model, x, batch_axis = network
    lbq.check_time(model, x, batch_axis=batch_axis)


def test_operations_are_counted(network):
    model, x, batch_axis = network
    lbq.calibrate_steps(model, [x])
    counts = lbq.count_ops(model, x, batch_axis=batch_axis)
    assert counts.num_images == B
    assert counts.timesteps == T
    with lbq.record_levels(model.eval()) as levels:
        model(x)
    active = {layer: int((found[0] > 0).sum()) for layer, found in levels.items()}
    for layer, expected in active.items():
        assert sum(each.active for each in counts.layers if each.layer == layer) == expected
    assert sum(active.values()) > 0
    assert counts.total().bit_sparse_acs > 0


def test_products_of_attention_are_counted():
    torch.manual_seed(0)
    counts = lbq.count_ops(Tokens(), 20 * torch.rand(T, B, 7, 6), batch_axis=1)
    assert not counts.uncounted
    assert {product.name for product in counts.products} == {"matmul", "matmul_2"}
    assert counts.total_products().unary > 0


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_vectors_and_images_become_integers(name):
    torch.manual_seed(0)
    build, shape, _ = NETWORKS[name]
    model, raw = build().eval(), torch.randint(0, 256, (32, *shape[1:]), dtype=torch.uint8)
    channels = shape[1]
    model.preprocessing = lbq.Pixels(mean=[0.5] * channels, std=[0.25] * channels)
    x = (raw / 255 - 0.5) / 0.25
    lbq.calibrate_steps(model, [x])
    net = lbq.quantize(model, x, bits=16)
    assert net.agreement.answers > 0.9
    dense = lbq.run_network(net, raw, backend="dense")
    for backend in ("native", "unary", "planes"):
        assert torch.equal(lbq.run_network(net, raw, backend=backend), dense)


@pytest.mark.parametrize(
    ("name", "batch_axis"), [("conv1d", 0), ("conv1d over time", 1), ("tokens", 1)]
)
def test_signals_and_tokens_become_integers(name, batch_axis):
    torch.manual_seed(0)
    build, shape, _ = NETWORKS[name]
    model, raw = build().eval(), torch.randint(0, 256, shape, dtype=torch.uint8)
    net = lbq.quantize(model, raw.float(), preprocessing=None, batch_axis=batch_axis)
    dense = lbq.run_network(net, raw, backend="dense")
    for backend in ("native", "unary", "planes"):
        assert torch.equal(lbq.run_network(net, raw, backend=backend), dense)


def test_four_axes_are_read_as_images_unless_the_batch_axis_is_given():
    build, shape, _ = NETWORKS["conv1d over time"]
    with pytest.raises(LoweringError, match="pass batch_axis=1"):
        lbq.quantize(build().eval(), torch.rand(shape), preprocessing=None)
