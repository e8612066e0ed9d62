"""Neurons as users write them: a declaration, and nothing else of the library is changed."""

import pytest
import torch
from torch import nn

import lbq
from lbq.errors import ParameterError, ShapeError
from lbq.kernels import force_implementation


class Coarse(lbq.Neuron):
    """Levels 0, 1, 2 and 4 at learned thresholds; forgets its membrane when it fires."""

    def __init__(self):
        super().__init__()
        self.gaps = nn.Parameter(torch.tensor([-0.5, -0.7, 0.0]))

    def spec(self):
        return lbq.NeuronSpec(
            thresholds=self.gaps.exp().cumsum(0),
            values=(1, 2, 4),
            decay=0.5,
            reset="zero",
            surrogate=lbq.Window("triangle", width=1.0),
        )


class Rounding(lbq.Neuron):
    """The membrane rounded to 0..4, with a learned decay for every channel."""

    def __init__(self, channels=4):
        super().__init__()
        self.raw_decay = nn.Parameter(torch.linspace(-2, 1, channels))

    def spec(self):
        return lbq.NeuronSpec(
            thresholds=(0.5, 1.5, 2.5, 3.5),
            is_strict=(True, False, True, False),  # half to even
            decay=self.raw_decay.sigmoid(),
            reset="level",
            surrogate=lbq.Plateau(0, 4),
        )


class Asymmetric(lbq.Neuron):
    """Levels -1, 0 and 1, with another threshold on each side."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Parameter(torch.ones(1)), nn.Parameter(torch.full((1,), 1.7))

    def spec(self):
        return lbq.NeuronSpec(
            thresholds=self.up,
            negative=self.down,
            reset="event",
            surrogate=lbq.Window("box", width=1.5),
        )


USERS = {"coarse": Coarse, "rounding": Rounding, "asymmetric": Asymmetric}
users = pytest.mark.parametrize("build", USERS.values(), ids=USERS)


@pytest.fixture(params=USERS.values(), ids=USERS)
def neuron(request):
    return request.param()


def levels_of(neuron, currents):
    with lbq.record_levels(neuron) as levels, torch.no_grad():
        neuron(currents)
    return torch.cat(levels[""])


def loop(neuron, currents):
    """The levels of the three, as their docstrings say."""
    levels, v = torch.zeros_like(currents), torch.zeros_like(currents[0])
    for t, current in enumerate(currents):
        if isinstance(neuron, Coarse):
            u, edges = 0.5 * v + current, neuron.gaps.exp().cumsum(0)
            s = sum((u >= edge) * jump for edge, jump in zip(edges, (1, 1, 2), strict=True))
            v = torch.where(s > 0, 0, u)
        elif isinstance(neuron, Rounding):
            u = neuron.raw_decay.sigmoid().reshape(-1, 1, 1) * v + current
            s = u.clamp(0, 4).round()
            v = u - s
        else:
            u = 0.5 * v + current
            s = (u >= neuron.up).float() - (u <= -neuron.down).float()
            v = u - s
        levels[t] = s
    return levels.detach()


def test_levels_are_those_of_a_loop(neuron, currents):
    levels = levels_of(neuron, currents)
    assert torch.equal(levels.to(currents.dtype), loop(neuron, currents))
    assert levels.unique().numel() == {Coarse: 4, Rounding: 5, Asymmetric: 3}[type(neuron)]
    assert levels.max() == neuron.max_level
    assert (levels.dtype == torch.int8) == neuron.is_signed == isinstance(neuron, Asymmetric)


def test_every_parameter_has_a_gradient(neuron, currents):
    neuron(currents.requires_grad_()).square().sum().backward()
    for name, parameter in neuron.named_parameters():
        assert parameter.grad.abs().min() > 0, name
    assert (currents.grad != 0).float().mean() > 0.2


def test_native_kernels_run_them(neuron, currents):
    with force_implementation("plain"):
        plain = neuron(currents)
    out = neuron(currents)
    assert type(out.grad_fn).__name__ == "NativeNeuronScanBackward"
    assert torch.equal(out, plain)


def test_a_stream_gives_the_same_bits(neuron, currents):
    carry, pieces = None, []
    for current in currents.split(1):
        piece, carry = neuron.stream(current, carry)
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces), neuron(currents))


def test_autocast_flips_no_level(neuron, currents):
    expected = levels_of(neuron, currents.bfloat16().float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(levels_of(neuron, currents.bfloat16()), expected)


def test_compiled_and_exported_it_is_the_same(neuron, currents):
    expected = neuron(currents)
    compiled = torch.compile(neuron, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(currents), expected)
    exported = torch.export.export(neuron, (currents,)).module()
    assert torch.equal(exported(currents), expected)


def network(build):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 16), nn.Unflatten(1, (4, 2, 2)), lbq.RepeatOverTime(2),
        build(), lbq.OverTime(nn.Flatten(), nn.Linear(16, 4)), lbq.MeanOverTime(),
    )  # fmt: skip


@users
def test_fit_trains_them(build, tmp_path):
    images = torch.randn(64, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(images, images.flatten(1)[:, :4].argmax(1))
    model = network(build)
    before = [p.detach().clone() for p in model[4].parameters()]
    config = lbq.TrainConfig(epochs=3, batch=16)
    result = lbq.fit(
        model, data, data, config, tmp_path / "run", options=lbq.RunOptions(device="cpu")
    )
    assert result is not None
    after = list(model[4].parameters())
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@users
def test_their_operations_are_counted_as_by_a_loop(build):
    model = network(build).eval()
    images = torch.randn(8, 3, 2, 2)
    total = lbq.count_ops(model, images).total()
    levels = levels_of(model[4], model[:4](images))
    planes = sum((levels.abs().int() >> k) & 1 for k in range(3))
    assert total.bit_sparse_acs == planes.sum() * 4  # a fan-out of 4


def test_a_declaration_that_says_too_much_or_too_little_is_refused():
    for arguments, message in [
        ({}, "step and max_level.*got neither"),
        ({"step": 1.0, "max_level": 2, "thresholds": (1.0,)}, "got both"),
        ({"step": 1.0}, "needs max_level"),
        ({"step": 1.0, "max_level": 2, "scale": 0.5}, "its step is its scale"),
        ({"thresholds": ()}, "at least one threshold"),
        ({"thresholds": (1.0, 2.0), "values": (1,)}, "one level for each of 2"),
        ({"thresholds": (1.0, 2.0), "values": (2, 1)}, "do not fall"),
        ({"thresholds": (2.0, 1.0)}, "must rise"),
        ({"thresholds": (1.0,), "values": (300,)}, r"1\.\.255"),
        ({"thresholds": (1.0,), "values": (200,), "negative": "mirrored"}, "at most 127"),
        ({"thresholds": (1.0,), "negative": "mirror"}, "mirrored"),
        ({"thresholds": (1.0,), "is_strict": (True, False)}, "one entry for each of 1"),
        ({"thresholds": (1.0,), "reset": "soft"}, "reset must be"),
        ({"thresholds": (1.0,), "reset": "zero", "after_decay": True}, "next timestep"),
        ({"thresholds": (1.0, 2.0), "resets_with_gradient": True}, "levels up to 2"),
        ({"thresholds": (1.0,), "surrogate": "atan"}, "Plateau or a Window"),
    ]:
        with pytest.raises(ParameterError, match=message):
            lbq.NeuronSpec(**arguments)
    with pytest.raises(ParameterError, match="no gradient flows"):
        lbq.Plateau(1, 1)
    with pytest.raises(ParameterError, match='"triangle"'):
        lbq.Window("round")
    with pytest.raises(ParameterError, match="positive width"):
        lbq.Window(width=0.0)


def test_coefficients_that_do_not_fit_the_currents_are_refused():
    with pytest.raises(ShapeError, match=r"the decay of a neuron has shape \(4,\)"):
        Rounding(4)(torch.zeros(2, 1, 3, 5))


def test_a_neuron_that_declares_nothing_says_so():
    class Empty(lbq.Neuron):
        pass

    with pytest.raises(NotImplementedError, match=r"Empty declares nothing.*spec\(\)"):
        Empty()(torch.zeros(1, 1, 1))
