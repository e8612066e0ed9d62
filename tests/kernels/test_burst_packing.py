"""Bursts kept as packed levels: the same bits back, the same gradients, fewer bytes."""

import ctypes
import gc
from contextlib import nullcontext

import pytest
import torch
from kernels.isas import ISAS, require_native
from measure import bytes_kept
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lbq
from lbq.kernels import force_implementation
from lbq.kernels.burst_packing import PackedBursts, levels_per_byte, run_of
from lbq.neurons import named_neurons

require_native()

BF16 = torch.bfloat16
LAYOUTS = ("first", "last", "sequence", "features")
SHAPES = {
    "first": (6, 5, 7, 11),
    "last": (6, 5, 7, 11),
    "sequence": (2, 3, 5, 7, 11),
    "features": (40, 37),
}


def draw_bursts(layout, dtype, max_level, per_channel, seed=0):
    """Random bursts in memory order ``layout``, and their step."""
    generator = torch.Generator().manual_seed(seed)
    shape = SHAPES[layout]
    axis = {"sequence": 2}.get(layout, 1)
    channels = (shape[axis], *[1] * (len(shape) - axis - 1)) if per_channel else (1,)
    wide = torch.promote_types(dtype, torch.float32)
    step = (0.1 + torch.rand(channels, generator=generator)).to(wide)
    levels = torch.randint(0, min(max_level, 100) + 1, shape, generator=generator)
    bursts = (step * levels).to(dtype)
    if layout == "last":
        bursts = bursts.contiguous(memory_format=torch.channels_last)
    if layout == "sequence":
        merged = bursts.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        bursts = merged.unflatten(0, shape[:2])
    return bursts, step


def pack(values, step, max_level):
    run = run_of(values, step)
    return None if run is None else PackedBursts.of(values, step, max_level, run)


def same_bits(a, b):
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return a.stride() == b.stride() and torch.equal(a.view(bits), b.view(bits))


@pytest.mark.parametrize("max_level", [1, 2, 3, 5, 15, 16, 255])
@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16, torch.float64])
def test_bursts_come_back_with_the_same_bits_and_strides(dtype, max_level):
    for layout in LAYOUTS:
        for per_channel in (False, True):
            bursts, step = draw_bursts(layout, dtype, max_level, per_channel)
            packed = pack(bursts, step, max_level)
            assert packed is not None, (layout, per_channel)
            step.zero_()  # what was packed does not depend on what happens to the step
            assert same_bits(packed.unpack(), bursts)
            count = -(-bursts.numel() // levels_per_byte(max_level))
            assert packed.levels.numel() == packed.levels.untyped_storage().nbytes() == count


def test_a_byte_holds_as_many_levels_as_digits():
    assert [levels_per_byte(n) for n in (1, 2, 3, 5, 6, 15, 16, 255)] == [8, 5, 4, 3, 2, 2, 1, 1]


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_packs_the_same_bytes(isa):
    for layout in LAYOUTS:
        bursts, step = draw_bursts(layout, BF16, 5, per_channel=True)
        expected = pack(bursts, step, 5)
        torch.ops.lbq.set_isa(isa)
        try:
            packed = pack(bursts, step, 5)
            assert same_bits(packed.unpack(), bursts)
        finally:
            torch.ops.lbq.set_isa(ISAS[0])
        assert torch.equal(packed.levels, expected.levels)


@pytest.mark.parametrize("dtype", [torch.float32, BF16, torch.float16])  # torch packs the last
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -0.0, -1.0, 0.4, 6.0])
def test_one_value_that_is_no_burst_is_enough_to_refuse(dtype, wrong):
    for per_channel in (False, True):
        bursts, step = draw_bursts("last", dtype, 5, per_channel)
        for index in (0, 1000, bursts.numel() - 1):
            changed = bursts.clone()
            place = torch.unravel_index(torch.tensor(index), changed.shape)
            channel_step = step.expand(changed.shape[1:])[place[1], place[2], place[3]]
            changed[place] = (wrong * channel_step).to(dtype) if wrong else wrong
            assert pack(changed, step, 5) is None, index
    assert pack(bursts, step, 5) is not None


def test_what_is_not_dense_is_refused():
    bursts, step = draw_bursts("first", torch.float32, 5, per_channel=False)
    for view in (bursts[..., ::2], bursts.transpose(0, 3), bursts[:1].expand(6, -1, -1, -1)):
        assert pack(view, step, 5) is None
    per_channel = draw_bursts("first", torch.float32, 5, per_channel=True)[1]
    assert pack(bursts.flatten(1), per_channel, 5) is None  # channels are gone


class Branches(nn.Module):
    """As a user might write it: bursts read by two convolutions, a pool, a linear layer."""

    def __init__(self, timesteps=2, **neuron):
        super().__init__()
        torch.manual_seed(0)
        neuron = {"step": 0.2, **neuron}
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.repeat = lbq.RepeatOverTime(timesteps)
        self.neuron1 = lbq.BurstLIF(**neuron)
        self.left = lbq.OverTime(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.right = lbq.OverTime(nn.Conv2d(8, 8, 1))
        self.neuron2 = lbq.BurstLIF(**neuron | {"step": lbq.LearnedStep(0.3, channels=8)})
        self.pool = lbq.OverTime(nn.MaxPool2d(2), nn.Conv2d(8, 4, 3), nn.Flatten())
        self.neuron3 = lbq.BurstLIF(**neuron)
        self.head = nn.Sequential(lbq.OverTime(nn.Linear(4 * 6 * 6, 10)), lbq.MeanOverTime())

    def forward(self, x):
        bursts = self.neuron1(self.repeat(self.stem(x)))
        bursts = self.neuron2(self.left(bursts) + self.right(bursts))
        return self.head(self.neuron3(self.pool(bursts)))


def resnet(**options):
    return lbq.resnet20(10, width=1 / 8, **options)


def side_of(model):
    return 16 if isinstance(model, Branches) else 32


def step(model, *, packs, half=False, last=False, seed=0):
    """Loss, levels and gradients of a training step; ``packs`` may be a context manager."""
    torch.manual_seed(seed)
    x, target = torch.randn(4, 3, side_of(model), side_of(model)), torch.arange(4)
    if last:
        model, x = (each.to(memory_format=torch.channels_last) for each in (model, x))
    model.zero_grad()
    with (
        lbq.record_levels(model) as levels,
        lbq.pack_bursts() if packs else nullcontext(),
        torch.autocast("cpu", dtype=BF16, enabled=half),
    ):
        loss = F.cross_entropy(model(x).float(), target)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    return loss.detach(), {k: v[0].clone() for k, v in levels.items()}, gradients


def check_same_bits(model, **options):
    plain, packed = (step(model, packs=packs, **options) for packs in (False, True))
    assert torch.equal(plain[0], packed[0])
    assert any(levels.any() for levels in plain[1].values())
    for expected, found in zip(plain[1:], packed[1:], strict=True):
        assert expected.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert all(grad.any() for name, grad in packed[2].items() if name.endswith("weight"))


@pytest.mark.parametrize("timesteps", [1, 2])
@pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("fused", [False, True], ids=["separate", "fused"])
def test_resnet20_has_the_same_levels_and_gradients(fused, half, last, timesteps):
    check_same_bits(resnet(timesteps=timesteps, fused=fused), half=half, last=last)


def test_fused_neurons_with_a_step_per_channel_are_packed_too():
    def neuron(channels):
        return lbq.BurstLIF(step=lbq.LearnedStep(0.5, channels=channels))

    model = resnet(neuron=neuron, fused=True)
    check_same_bits(model, half=True, last=True)
    kept = [kept_by(model, packs=packs, half=True) for packs in (False, True)]
    one_step = resnet(fused=True).to(memory_format=torch.channels_last)
    assert kept[1] < 1.01 * kept_by(one_step, packs=True, half=True) < 0.7 * kept[0]


class Joined(nn.Module):
    """Two neurons in one tensor, and one neuron at two places."""

    def __init__(self, steps):
        super().__init__()
        torch.manual_seed(0)
        self.neurons = nn.ModuleList(lbq.BurstLIF(step=step) for step in steps)
        self.conv = lbq.OverTime(nn.Conv2d(6, 3, 3, padding=1))
        self.head = nn.Sequential(nn.Flatten(2), nn.LazyLinear(10), lbq.MeanOverTime())

    def forward(self, x):
        x = x.expand(2, *x.shape)
        joined = self.conv(torch.cat([neuron(x) for neuron in self.neurons], 2))
        return self.head(self.neurons[0](joined))


@pytest.mark.parametrize("steps", [(0.3, 0.3), (0.3, 0.5)])
def test_several_neurons_in_one_tensor_have_the_same_gradients(steps):
    model = Joined(steps)
    model(torch.randn(4, 3, 32, 32))
    plain, packed = (step(model, packs=packs) for packs in (False, True))
    assert torch.equal(plain[0], packed[0])
    for name, expected in plain[2].items():
        assert torch.equal(expected, packed[2][name]), name


@pytest.mark.parametrize("block", ["sew", "ms"])
def test_other_blocks_have_the_same_gradients(block):
    check_same_bits(resnet(block=block, fused=True), half=True, last=True)


@pytest.mark.parametrize(
    "neuron",
    [
        {},
        {"max_level": 1, "step": 0.05},
        {"max_level": 200},
        {"max_level": 4, "level_set": "powers"},
        {"keep": "currents"},
        {"learn_decay": True, "detach_carry": True},
    ],
)
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_a_users_network_has_the_same_gradients(neuron, half):
    for timesteps in (1, 3):
        for last in (False, True):
            check_same_bits(Branches(timesteps, **neuron), half=half, last=last)


def test_plain_torch_packs_too():
    with force_implementation("plain"):
        check_same_bits(Branches())


def forward_of(model, *, packs, half=False):
    x = torch.randn(4, 3, side_of(model), side_of(model))

    def forward():
        with (
            lbq.pack_bursts() if packs else nullcontext(),
            torch.autocast("cpu", dtype=BF16, enabled=half),
        ):
            return model(x).float().sum()

    return forward


def kept_by(model, **options):
    return bytes_kept(forward_of(model, **options))


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
def test_bursts_take_a_third_of_a_byte(half):
    """Four convolutions and the linear layer read 4 x 2 sequences: exactly what they keep less."""
    model = Branches()
    with lbq.record_levels(model) as levels:
        model(torch.randn(4, 3, 16, 16))
    sizes = [levels[f"neuron{k}"][0].numel() for k in (1, 2, 3)]
    pooled = sizes[1] // 4  # max-pooled bursts are bursts
    width = 2 if half else 4
    # the first neuron keeps its repeated currents and not its membranes; in bf16 all of them do
    membranes = [4 * size for size in sizes]
    currents = [width * sizes[0] // 2, *(width * size for size in sizes[1:])]
    less = sum(membranes) - sum(currents) if half else membranes[0] - currents[0]
    steps = {"neuron1": 4, "neuron2": 32, "neuron3": 4}
    for size in (*sizes, pooled):
        less += width * size - -(-size // 3)
    found = kept_by(model, packs=False, half=half) - kept_by(model, packs=True, half=half)
    copies = 2 * (steps["neuron1"] + 2 * steps["neuron2"] + steps["neuron3"])  # of steps, at most
    assert less - copies <= found <= less


def test_bursts_that_two_layers_read_are_kept_once():
    torch.manual_seed(0)
    currents = torch.randn(2, 4, 8, 16, 16, requires_grad=True)
    neuron = lbq.BurstLIF(step=0.5)
    convs = [nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 1)]

    def read(count, change=lambda bursts: None):
        def forward():
            with lbq.pack_bursts():
                bursts = neuron(currents)
                first = convs[0](bursts.flatten(0, 1)).sum()
                change(bursts)  # in place: other bursts, which need their own levels
                return first + (convs[1](bursts.flatten(0, 1)).sum() if count > 1 else 0)

        return forward

    once, twice = (bytes_kept(read(count)) for count in (1, 2))
    changed = bytes_kept(read(2, lambda bursts: bursts.clamp_(max=1.0)))
    weight = 4 * convs[1].weight.numel()
    assert twice - once == weight
    assert changed - twice >= currents.numel() // 3


def test_memory_that_is_used_again_is_not_taken_for_the_bursts_before():
    """Each turn's bursts are freed before the next ones take their place."""
    torch.manual_seed(0)
    neuron, conv = lbq.BurstLIF(step=0.5), nn.Conv2d(8, 8, 3)
    sequences = (3 * torch.randn(20, 2, 4, 8, 16, 16)).requires_grad_()
    gradients = []
    for packs in (False, True):
        conv.zero_grad()
        with lbq.pack_bursts() if packs else nullcontext():
            loss = sum(conv(neuron(each).flatten(0, 1)).square().sum() for each in sequences)
        loss.backward()
        gradients.append(conv.weight.grad.clone())
    assert torch.equal(*gradients)


def test_the_figure_is_what_the_heap_holds():
    """The bytes that a forward pass leaves on the heap, other than weights and inputs."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("needs glibc")

    class Heap(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]

    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Heap

    def used():
        gc.collect()
        found = mallinfo()
        return found.h + found.e  # uordblks and hblkhd

    model = resnet(fused=True).to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 32, 32).to(memory_format=torch.channels_last)
    grown = {}
    for packs in (False, True):

        def forward(packs=packs):
            with (
                lbq.pack_bursts() if packs else nullcontext(),
                torch.autocast("cpu", dtype=BF16),
            ):
                return model(x).float().sum()

        forward().backward()  # allocates gradients, and what is built once
        before = used()
        loss = forward()
        grown[packs] = used() - before
        del loss
    counted = {packs: kept_by_last(model, x, packs) for packs in (False, True)}
    less = grown[False] - grown[True]
    assert less > 0.35 * grown[False]
    assert abs(less - (counted[False] - counted[True])) < 0.02 * grown[False]


def kept_by_last(model, x, packs):
    def forward():
        with lbq.pack_bursts() if packs else nullcontext(), torch.autocast("cpu", dtype=BF16):
            return model(x).float().sum()

    return bytes_kept(forward)


def gradients_after(change, *, packs, before=False):
    """Gradients of a convolution of bursts that are changed before or after it reads them."""
    torch.manual_seed(0)
    currents = (3 * torch.randn(2, 4, 8, 16, 16)).requires_grad_()
    neuron, conv = lbq.BurstLIF(step=0.5), nn.Conv2d(8, 8, 3)
    with lbq.pack_bursts() if packs else nullcontext():
        bursts = neuron(currents)
        if before:
            change(bursts)
        out = conv(bursts.flatten(0, 1))
        if not before:
            change(bursts)
    out.square().sum().backward()
    return conv.weight.grad, currents.grad


@pytest.mark.parametrize(
    "change",
    [
        lambda bursts: bursts.mul_(2),
        lambda bursts: bursts.mul_(0.3),
        lambda bursts: bursts.data.mul_(2),
        lambda bursts: bursts.data.add_(0.1),
        lambda bursts: bursts.detach()[0].fill_(torch.nan),
        lambda bursts: bursts.clamp_(max=1.0),
    ],
)
def test_bursts_that_were_changed_in_place_before_are_kept_as_they_are(change):
    expected = gradients_after(change, packs=False, before=True)
    found = gradients_after(change, packs=True, before=True)
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))


def test_bursts_that_are_changed_in_place_afterwards_give_the_right_gradient():
    expected = gradients_after(lambda bursts: None, packs=False)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients_after(lambda bursts: bursts.mul_(2), packs=False)
    found = gradients_after(lambda bursts: bursts.mul_(2), packs=True)
    assert torch.equal(found[0], expected[0])  # the weights; the bursts themselves count double


def test_other_tensors_that_are_changed_in_place_raise_as_without_packing():
    x = torch.randn(2000, requires_grad=True)
    for change in (lambda y: y.mul_(2), lambda y: y[:5].zero_()):
        with lbq.pack_bursts():
            y = x.exp()
            out = (y * y).sum()
            with torch.no_grad():
                change(y)
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.* expected 0"):
            out.backward()


def test_a_nan_stays_a_nan():
    torch.manual_seed(0)
    model, gradients = Branches(), []
    x = torch.randn(4, 3, 16, 16)
    x[2, 1, 5, 5] = torch.nan
    for packs in (False, True):
        model.zero_grad()
        model.eval()  # one NaN would be a NaN everywhere
        with lbq.pack_bursts() if packs else nullcontext():
            loss = model(x).sum()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert gradients[0][0].isnan().any()
    for a, b in zip(*gradients, strict=True):
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.nan_to_num(), b.nan_to_num())


def test_two_forwards_before_their_backwards_and_a_backward_twice():
    model = Branches()
    expected = [step(model, packs=False, seed=seed)[2] for seed in (1, 2)]
    model.zero_grad()
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with lbq.pack_bursts():
            losses.append(F.cross_entropy(model(torch.randn(4, 3, 16, 16)), torch.arange(4)))
    for loss in losses:
        loss.backward(retain_graph=True)
    for name, p in model.named_parameters():
        assert torch.equal(p.grad, expected[0][name] + expected[1][name])
    model.zero_grad()
    losses[1].backward()
    assert all(torch.equal(p.grad, expected[1][name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_layers_have_the_same_gradients(use_reentrant):
    class Checkpointed(Branches):
        def forward(self, x):
            bursts = self.neuron1(self.repeat(self.stem(x)))
            middle = lambda b: self.neuron2(self.left(b) + self.right(b))  # noqa: E731
            bursts = checkpoint(middle, bursts, use_reentrant=use_reentrant)
            return self.head(self.neuron3(self.pool(bursts)))

    model = Checkpointed().eval()  # batch norm would see the recomputed batch twice
    check_same_bits(model)


def test_a_checkpoint_that_packs_inside_has_the_same_gradients():
    model = Branches().eval()
    expected = step(model, packs=False)[2]
    model.zero_grad()
    torch.manual_seed(0)

    def run(x):
        with lbq.pack_bursts():
            return model(x)

    x = torch.randn(4, 3, 16, 16)
    F.cross_entropy(checkpoint(run, x, use_reentrant=False), torch.arange(4)).backward()
    assert all(torch.equal(p.grad, expected[name]) for name, p in model.named_parameters())


def test_levels_are_freed_with_the_graph():
    def alive():
        gc.collect()
        return sum(type(each) is PackedBursts for each in gc.get_objects())

    forward = forward_of(Branches(), packs=True)
    loss = forward()
    assert alive() == 5  # three sequences, the pooled one, and the first for its second reader
    loss.backward()
    assert alive() == 0  # though the loss is alive
    loss = forward()
    del loss
    assert alive() == 0


def test_nothing_is_packed_outside_of_the_block():
    model = Branches()
    before = kept_by(model, packs=False)
    with pytest.raises(ZeroDivisionError), lbq.pack_bursts():
        1 / 0  # noqa: B018
    assert kept_by(model, packs=False) == before > kept_by(model, packs=True)


def test_full_backward_hooks_see_the_same_and_do_not_stop_packing():
    model = Branches()
    before = kept_by(model, packs=True)
    seen = []
    handles = [
        neuron.register_full_backward_hook(lambda module, into, out: seen.append(out[0].clone()))
        for _, neuron in named_neurons(model)
    ]
    check_same_bits(model)
    assert len(seen) == 6
    assert all(torch.equal(a, b) for a, b in zip(seen[:3], seen[3:], strict=True))
    assert kept_by(model, packs=True) == before
    for handle in handles:
        handle.remove()


def test_a_compiled_model_runs_inside_the_block_without_packing():
    torch.manual_seed(0)
    model = nn.Sequential(lbq.BurstLIF(step=0.3), nn.Linear(40, 40), lbq.BurstLIF(step=0.3))
    compiled, x, gradients = torch.compile(model), torch.randn(2, 30, 40), []
    for run, packs in ((model, False), (compiled, True)):
        model.zero_grad()
        with lbq.pack_bursts() if packs else nullcontext():
            loss = run(x).square().sum()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
