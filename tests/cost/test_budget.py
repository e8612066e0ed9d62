"""The cost in the loss is what the counter counts; its gradient, that of the count in between."""

import copy
import random

import pytest
import torch
import user_networks
from lowering import test_user_networks
from torch import nn
from torch.nn import functional as F

import lbq
from lbq.cost.budget import CostBudget
from lbq.errors import CountError, ParameterError
from lbq.kernels.level_cost import LevelCost
from lbq.neurons import LMHT, IntegerLIF, OriginalTernaryLIF, TernaryLIF

COUNTS = {"popcount": "bit_sparse_acs", "unary": "unary_acs", "events": "unit_event_acs"}


def counted(model, x, table, axis=None):
    """Accumulations of synapses; additions of bursts themselves are not part of a budget."""
    found = lbq.count_ops(model, x, batch_axis=axis)
    edges = (edge for edge in found.edges if not edge.is_identity)
    return sum(getattr(edge.counts, COUNTS[table]) for edge in edges)


GATED = {"gated", "qk_attention"}
"""A synapse reads products of levels."""
NAMES = user_networks.NETWORKS.keys() - test_user_networks.REFUSED.keys() - GATED - {"shared"}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_cost_is_that_of_the_counter(name):
    model, axis = test_user_networks.build(name)
    x = torch.randn(test_user_networks.batch_of(name, axis, 3))
    one = x.narrow(axis, 0, 1)
    for table in COUNTS:
        budget = CostBudget(model, one, table=table, budget=0.1, batch_axis=axis)
        model(x)
        cost = budget.cost
        budget.remove()
        assert cost == counted(model, x, table, axis)


class Joined(nn.Module):
    """Levels and their largest neighbours, side by side."""

    def forward(self, levels):
        return torch.cat([levels, F.max_pool2d(levels, 3, 1, 1)], 1)


def random_neuron(rng, *, is_signed):
    signed = [
        lambda: TernaryLIF(step=0.3),
        lambda: TernaryLIF(step=lbq.LearnedStep(0.2, channels=4)),
        lambda: OriginalTernaryLIF(step=0.7),
    ]
    others = [
        lambda: lbq.BurstLIF(rng.choice([1, 3, 7, 20]), step=0.2),
        lambda: IntegerLIF(4, is_normalised=True),
        lambda: LMHT(2, 3),
    ]
    return rng.choice(signed if is_signed else others)()


def random_network(seed):
    """Two neurons with different levels; pools, upsampling and concatenation between them."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    between, channels = [], 4
    for kind in rng.choices(("pool", "neighbours", "joined", "larger"), k=rng.randint(1, 2)):
        between.append(
            {
                "pool": nn.MaxPool2d(2),
                "neighbours": nn.MaxPool2d(3, 1, 1),
                "joined": Joined(),
                "larger": nn.Upsample(scale_factor=2),
            }[kind]
        )
        channels *= 2 if kind == "joined" else 1
    conv = nn.Conv2d(channels, 4, rng.choice([1, 3]), padding=1)
    body = [
        nn.Conv2d(1, 4, 3),
        lbq.RepeatOverTime(2),
        random_neuron(rng, is_signed=seed % 2 == 0),
        lbq.OverTime(*between, conv),
        random_neuron(rng, is_signed=seed % 3 == 0),
        lbq.OverTime(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
        lbq.MeanOverTime(),
    ]
    return nn.Sequential(*body).eval(), nn.Sequential(*between), conv


def expected_slopes(neuron, levels, between, conv, table):
    """Return (c(S + 1) - c(S - 1)) / 2 at what enters the convolution, taken back to the levels."""
    given = levels.flatten(0, 1).double().requires_grad_()
    entering = between(given) if len(between) else given * 1
    reached = torch.ones(1, *conv(entering.float()).shape[1:], dtype=torch.float64)
    weight = torch.ones_like(conv.weight, dtype=torch.float64)
    fan_out = F.conv_transpose2d(reached, weight, padding=conv.padding)[0, 0]
    most, least = neuron.max_level, -neuron.max_level if neuron.is_signed else 0
    cost = {"unary": abs, "popcount": lambda s: abs(s).bit_count(), "events": lambda s: s != 0}

    def slope(level):
        above, below = min(level + 1, most), max(level - 1, least)
        return (cost[table](above) - cost[table](below)) / 2

    slopes = [slope(int(level)) for level in entering.detach().flatten().tolist()]
    slopes = torch.tensor(slopes, dtype=torch.float64).reshape(entering.shape) * fan_out
    return torch.autograd.grad(entering, given, slopes)[0].view_as(levels)


@pytest.mark.parametrize("seed", range(16))
def test_cost_and_slope_are_right_for_signed_and_for_moved_levels(seed):
    model, between, conv = random_network(seed)
    first, x = model[2], 2 * torch.randn(3, 1, 8, 8)
    step = first.scale if isinstance(first, IntegerLIF) else first.step
    step = step().detach() if callable(step) else torch.as_tensor(step)
    bursts, levels = [], []
    first.output.register_forward_pre_hook(lambda _, args: bursts.append(args[0]))
    first.emit.register_forward_hook(lambda _, args, out: levels.append(out))
    found = lbq.count_ops(model, x)
    for table, name in COUNTS.items():
        budget = CostBudget(model, x[:1], table=table, budget=0.1, floor=0)
        model(x)
        assert budget.cost == getattr(found.total(), name)
        (slopes,) = torch.autograd.grad(budget._terms[0], bursts[-1])
        budget.remove()
        expected = expected_slopes(first, levels[-1], between, conv, table)
        expected = (expected / step.reshape(-1, 1, 1)).float()
        torch.testing.assert_close(slopes, expected, rtol=1e-5, atol=1e-5)


def test_a_product_of_one_neurons_levels_before_a_synapse_is_refused_by_its_path():
    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.neuron, self.last = nn.Linear(4, 4), lbq.BurstLIF(), nn.Linear(4, 2)

        def forward(self, x):
            bursts = self.neuron(lbq.RepeatOverTime(2)(self.first(x)))
            return self.last(bursts * bursts).mean(0)

    with pytest.raises(CountError, match="last reads products of the levels of neuron"):
        CostBudget(Squared(), torch.randn(1, 4), budget=0.1)


@pytest.mark.parametrize("name", sorted(GATED))
def test_products_of_levels_before_a_synapse_are_refused_by_its_path(name):
    model, axis = test_user_networks.build(name)
    x = torch.randn(test_user_networks.batch_of(name, axis, 1))
    with pytest.raises(CountError, match=r"body\.0\.out\.0\.0 reads levels of several neurons"):
        CostBudget(model, x, budget=0.1, batch_axis=axis)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("most", [1, 5, 20])
@pytest.mark.parametrize("is_last", [False, True])
def test_native_and_plain_torch_agree(dtype, most, is_last):
    shape, generator = (2, 3, 5, 7, 9), torch.Generator().manual_seed(most)
    levels = torch.randint(0, most + 1, shape, dtype=torch.uint8, generator=generator)
    grad = torch.randn(shape, generator=generator).to(dtype)
    if is_last:
        levels, grad = (x.movedim(2, -1).contiguous().movedim(-1, 2) for x in (levels, grad))
    table = torch.randint(1, 9, (most + 1,), generator=generator).double()
    table[0] = 0
    cost = LevelCost(torch.randint(1, 99, (1, 7, 9), generator=generator), table)
    assert cost._is_native(levels)
    plain = LevelCost(cost.fan_out, table)
    plain.__dict__["_is_exact"] = False  # too large for float32
    for one, other in zip(cost.sums(levels), plain.sums(levels), strict=True):
        assert float(one) == float(other)
    scale = torch.tensor(0.37)
    found, expected = (c.add_gradient(grad, levels, scale) for c in (cost, plain))
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


class Layer(nn.Module):
    """One neuron between two linear layers; its currents are a parameter."""

    def __init__(self, step, max_level=5):
        super().__init__()
        self.currents = nn.Parameter(torch.zeros(1, 1, 6, dtype=torch.float64))
        self.neuron = lbq.BurstLIF(max_level, step=lbq.LearnedStep(step))
        self.linear = nn.Linear(6, 4, bias=False)

    def forward(self, x):
        return self.linear(self.neuron(self.currents + 0 * x)).mean(0)


def expected_count(table, membrane, step):
    """Mean of 4 * c(level) over noise of up to one step, by many samples of the noise."""
    noise = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    levels = (membrane / step + noise).floor().clamp(0, len(table) - 1).long()
    return 4 * float(torch.tensor(table, dtype=torch.float64)[levels].mean())


@pytest.mark.parametrize("max_level", [5, 20])
def test_the_gradient_equals_finite_differences_of_the_expected_count(max_level):
    model, x = Layer(0.5, max_level).double(), torch.zeros(1, 1, 6, dtype=torch.float64)
    # in steps, between the first and the last threshold: beyond, the surrogate has tails
    inside = [1.8, 1.2, 2.7, 3.4, 4.5, 4.9] if max_level == 5 else [1.3, 3.9, 7.4, 12.2, 15.6, 19.5]
    model.currents.data[:] = 0.5 * torch.tensor(inside, dtype=torch.float64)
    budget = CostBudget(model, x, budget=1e-9, weight=1.0, floor=0, batch_axis=1)
    model(x)
    budget().backward()
    unit = 1e-9 * 24  # one accumulation, in units of the budget
    table = [level.bit_count() for level in range(max_level + 1)]
    slopes = []
    for membrane in model.currents.detach().flatten().tolist():
        above, below = (expected_count(table, membrane + d, 0.5) for d in (0.01, -0.01))
        slopes.append((above - below) / 0.02)
    found = model.currents.grad.flatten() * unit
    torch.testing.assert_close(found, torch.tensor(slopes, dtype=torch.float64), rtol=0, atol=0.02)
    raw = model.neuron.step.raw_step
    by_step = -sum(slope * u for slope, u in zip(slopes, inside, strict=True))  # u = U / step
    chain = torch.autograd.grad(model.neuron.step(), raw)[0]
    torch.testing.assert_close(raw.grad * unit, by_step * chain.double(), rtol=0, atol=0.1)


def small():
    torch.manual_seed(0)
    return lbq.resnet20(10, width=1 / 16, blocks=(1, 1, 1))


def gradients(model, budget=None):
    torch.manual_seed(1)
    x, y = torch.randn(4, 3, 16, 16), torch.arange(4)
    loss = F.cross_entropy(model(x), y)
    (loss if budget is None else loss + budget()).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_weight_zero_gives_the_same_bits():
    expected, model = gradients(small()), small()
    budget = CostBudget(model, torch.randn(1, 3, 16, 16), budget=0.01, weight=0)
    found = gradients(model, budget)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_training_comes_below_the_budget_and_no_layer_dies():
    model, x = small(), torch.randn(8, 3, 16, 16)
    start = CostBudget(model, x[:1], budget=1.0)
    model(x)
    before = start.cost_per_mac
    start.remove()
    budget = CostBudget(model, x[:1], budget=before / 2, weight=3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), torch.arange(8)) + budget()).backward()
        optimizer.step()
    assert budget.cost_per_mac < 0.6 * before
    with lbq.record_levels(model) as levels:
        model(x)
    assert min(float((found[0] != 0).float().mean()) for found in levels.values()) > 0


def test_wrong_arguments_are_told():
    model, x = small(), torch.randn(1, 3, 16, 16)
    for wrong in (0, -1, float("nan"), float("inf"), "half"):
        with pytest.raises(ParameterError, match="budget must be above 0"):
            CostBudget(model, x, budget=wrong)
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="weight must be at least 0"):
            CostBudget(model, x, budget=1, weight=wrong)
        with pytest.raises(ParameterError, match="floor must be at least 0"):
            CostBudget(model, x, budget=1, floor=wrong)
        with pytest.raises(ParameterError, match="finite and not negative"):
            CostBudget(model, x, budget=1, table=[0, 1, 2, 3, 4, wrong])
    with pytest.raises(ParameterError, match="table must be"):
        CostBudget(model, x, budget=1, table="bits")
    with pytest.raises(ParameterError, match=r"levels 0\.\.5"):
        CostBudget(model, x, budget=1, table=[0, 1, 2])
    with pytest.raises(CountError, match="run the model"):
        CostBudget(model, x, budget=1)()
    assert copy.deepcopy(model) is not None


def test_fit_trains_to_a_budget_and_logs_its_cost(tmp_path):
    def images():
        torch.manual_seed(3)
        return torch.randn(64, 3, 16, 16), torch.arange(64) % 10

    def trained(folder, budget, **options):
        model, records = small(), []
        config = lbq.TrainConfig(
            epochs=6,
            batch=16,
            optim=lbq.train.OptimConfig(lr=0.05),
            budget=budget,
            cost=lbq.train.CostConfig(**options),
        )
        run = lbq.RunOptions(log_every=1)
        data, out = images(), tmp_path / folder
        lbq.fit(model, data, data, config, out, options=run, callbacks=[records.append])
        return model, [r["cost_per_mac"] for r in records if "cost_per_mac" in r]

    plain, none = trained("plain", None)
    same, watched = trained("same", 1.0, weight=0)
    assert none == []
    for one, other in zip(plain.parameters(), same.parameters(), strict=True):
        assert torch.equal(one, other)  # weight 0 changes no bit
    _, limited = trained("limited", watched[-1] / 2, weight=3.0, ramp_epochs=1)
    assert limited[-1] < 0.7 * watched[-1]
