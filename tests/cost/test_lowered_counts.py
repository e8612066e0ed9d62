"""Counts read from a lowered graph, against a loop that performs every operation one by one."""

import itertools
import math
import random
from collections import Counter
from typing import NamedTuple

import pytest
import torch

import lbq
from lbq.errors import CountError
from lbq.graph.graph import INPUT, GraphBuilder
from lbq.graph.operators import (
    Concat,
    GraphError,
    IntegerNeuron,
    LevelNeuron,
    Matmul,
    Move,
    Multiply,
    Pool,
    Readout,
    RealNeuron,
    Rearrange,
    Shortcut,
    Slice,
    Synapse,
    Upsample,
    ZeroPad,
)
from lbq.graph.operators.moves import Roll
from lbq.kernels.native_scan import isa

T, B = 2, 2


# --- the loop: values are dictionaries from an index to an element


class Element(NamedTuple):
    number: int
    terms: frozenset | None = None
    """Of a sum pool: the levels that it adds, as (path, index, level)."""
    is_product: bool = False


ZERO = Element(0, frozenset())


def indices(shape):
    return itertools.product(*map(range, shape))


def terms_of(element, path, index):
    """The levels that enter a synapse as this element, each known by where it was last one."""
    if element.terms is not None:
        return element.terms
    return frozenset({(path, index, element.number)})


def windows(node, kernel, dilation, space, place):
    """Yield (tap, position) for every tap of a window that reads no padding."""
    for tap in indices(kernel):
        at = tuple(
            p * s - pad + k * d
            for p, s, pad, k, d in zip(place, node.stride, node.padding, tap, dilation, strict=True)
        )
        if all(0 <= a < n for a, n in zip(at, space, strict=True)):
            yield tap, at


def pool_by_hand(node, path, entering, space, out):
    found = {}
    for channel, *place in indices(out):
        taps = windows(node, node.kernel, [1] * len(space), space, place)
        seen = [(channel, *at) for _, at in taps]
        elements = [entering[index] for index in seen]
        if all(element is ZERO for element in elements):
            found[channel, *place] = ZERO
            continue
        is_product = any(element.is_product for element in elements)
        if node.kind == "max":
            element = Element(max(e.number for e in elements), None, is_product)
        else:
            terms = (terms_of(entering[index], path, index) for index in seen)
            number = sum(e.number for e in elements)
            element = Element(number, frozenset().union(*terms), is_product)
        found[channel, *place] = element
    return found


def move_by_hand(node, parts, shapes, out):
    if isinstance(node, Rearrange):
        strides = [math.prod(node.sizes[i + 1 :]) for i in range(len(node.sizes))]
        flat = [parts[0][index] for index in indices(shapes[0])]
        sizes = [node.sizes[axis] for axis in node.order]
        moved = [
            flat[sum(strides[axis] * i for axis, i in zip(node.order, index, strict=True))]
            for index in indices(sizes)
        ]
        return dict(zip(indices(out), moved, strict=True))
    found = {}
    for index in indices(out):
        part, source = 0, list(index)
        if isinstance(node, Concat):
            while source[node.axis] >= shapes[part][node.axis]:
                source[node.axis] -= shapes[part][node.axis]
                part += 1
        elif isinstance(node, Slice):
            source[node.axis] = node.start + node.step * source[node.axis]
        elif isinstance(node, Roll):
            at = node.start + node.step * source[node.axis]
            source[node.axis] = at % shapes[0][node.axis]
        elif isinstance(node, Upsample):
            pairs = list(zip(source[1:], node.factors, strict=True))
            if node.fill == "zeros" and any(i % f for i, f in pairs):
                found[index] = ZERO
                continue
            source[1:] = [i // f for i, f in pairs]
        else:
            source[1:] = [i - before for i, before in zip(source[1:], node.before, strict=True)]
        element = parts[part].get(tuple(source), ZERO)
        if isinstance(node, Concat) and element.terms:  # two ways of one level count twice
            terms = frozenset(((part, path), at, level) for path, at, level in element.terms)
            element = element._replace(terms=terms)
        found[index] = element
    return found


def pairs_by_hand(node, shapes, out):
    """Yield the index of a product's output and those of the two factors, pair by pair."""
    for index in indices(out):
        if isinstance(node, Matmul):
            group, row, column = index
            for n in range(shapes[0][2]):
                yield index, (group, row, n), (group, n, column)
        else:
            yield (
                index,
                *(
                    tuple(i if n > 1 else 0 for i, n in zip(index, shape, strict=True))
                    for shape in shapes
                ),
            )


def synapse_by_hand(node, space, out):
    """Yield (output, index of an input) for every weight that meets an input."""
    if isinstance(node, Shortcut):
        yield from ((index, index) for index in indices(out))
    elif node.is_linear:
        yield from itertools.product(indices(out), indices(space))
    else:
        per_group, groups = node.weight.shape[1], node.groups
        for output, *place in indices(out):
            first = output // (out[0] // groups) * per_group
            taps = windows(node, node.weight.shape[2:], node.dilation, space[1:], place)
            for (_, at), channel in itertools.product(taps, range(per_group)):
                yield (output, *place), (first + channel, *at)


def count_by_hand(network, levels):
    """Perform everything for one sample at one timestep."""
    shapes, done = {path: v.shape for path, v in network.values().items()}, {}
    ranges = {path: value.max_level for path, value in network.values().items()}
    counts, macs = Counter(), Counter()
    for path, node, names in network.nodes:
        entering = [done.get(name) for name in names]
        sizes, out = [shapes[name] for name in names], shapes[path]
        if isinstance(node, LevelNeuron):
            at = levels[path]
            done[path] = {i: Element(int(at[i])) for i in indices(out)}
        elif isinstance(node, Synapse | Shortcut) and entering[0] is not None:
            (values,), (name,) = entering, names
            met = {
                (output, term)
                for output, index in synapse_by_hand(node, sizes[0], out)
                if not (isinstance(node, Shortcut) and values[index].is_product)
                for term in terms_of(values[index], name, index)
            }
            target = path.rpartition(".")[0] if isinstance(node, Shortcut) else path
            for _, (_, _, signed) in met:
                level = abs(signed)
                counts[target, "unary"] += level
                counts[target, "bit_sparse"] += level.bit_count()
                counts[target, "shifts"] += (level >> 1).bit_count()
                counts[target, "events"] += level > 0
        elif isinstance(node, Matmul | Multiply):
            found = dict.fromkeys(indices(out), 0)
            keeps_left = ranges[names[0]] > ranges[names[1]]
            for index, one, two in pairs_by_hand(node, sizes, out):
                a, b = entering[0][one].number, entering[1][two].number
                found[index] += a * b
                a, b = abs(a), abs(b)
                serial, integer = (b, a) if keeps_left else (a, b)
                counts[path, "unary"] += a * b
                counts[path, "bit_pairs"] += a.bit_count() * b.bit_count()
                counts[path, "bit_serial"] += serial.bit_count() * (integer > 0)
                counts[path, "dense"] += 1
            done[path] = {i: Element(n, None, True) for i, n in found.items()}
        elif entering[0] is not None and isinstance(node, Pool):
            done[path] = pool_by_hand(node, names[0], entering[0], sizes[0][1:], out)
        elif entering[0] is not None and isinstance(node, Move):
            done[path] = move_by_hand(node, entering, sizes, out)
        if isinstance(node, Synapse):
            is_zero = entering[0] or {}
            reads = synapse_by_hand(node, sizes[0], out)
            macs[path] = sum(is_zero.get(index) is not ZERO for _, index in reads)
    return counts, macs


# --- random graphs


class Graph:
    """Grows a lowered network of real weights by random operators."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        rank = self.rng.choice([1, 2, 3, 3])
        shape = (self.rng.choice([2, 4]), *(self.rng.randint(3, 5) for _ in range(rank - 1)))
        self.graph = GraphBuilder(timesteps=T, input_shape=shape, takes_frames=True)
        self.values = dict(self.graph.finish().values())
        self.sums, self.pooled_products = set(), set()
        self.products, self.read = set(), set()
        self.neuron(self.synapse(INPUT))
        for _ in range(self.rng.randint(4, 10)):
            self.grow()
        for path in [p for p, v in self.values.items() if p != INPUT and p not in self.read]:
            current = path if self.values[path].max_level is None else self.synapse(path)
            self.add("out", Readout("mean"), current)

    def add(self, path, node, *inputs):
        """Add a node; return None if it cannot read these inputs."""
        try:
            value = node.infer([self.values[name] for name in inputs], timesteps=T)
        except GraphError:
            return None
        if value.size > 400:
            return None
        path = self.graph.add(path, node, *inputs)
        self.values[path] = value
        self.read.update(inputs)
        for marked in (self.sums, self.products, self.pooled_products):
            if marked & set(inputs) and isinstance(node, Move | Pool):
                marked.add(path)
        return path

    def synapse(self, path):
        rng, value = self.rng, self.values[path]
        channels, *space = value.shape
        options = {"max_input": value.max_level}
        if space and rng.random() < 0.7:
            groups = rng.choice([g for g in (1, 2) if channels % g == 0])
            axes = range(len(space))
            kernel = [rng.randint(1, min(3, n)) for n in space]
            weight = torch.randn(2 * groups, channels // groups, *kernel)
            made = self.add(
                "block.synapse",
                Synapse(
                    weight,
                    stride=tuple(rng.randint(1, 2) for _ in axes),
                    padding=tuple(rng.randint(0, 2) for _ in axes),
                    dilation=tuple(rng.randint(1, 2) for _ in axes),
                    groups=groups,
                    **options,
                ),
                path,
            )
            if made:
                return made
        return self.add("synapse", Synapse(torch.randn(3, value.size), **options), path)

    def neuron(self, current):
        is_signed = self.rng.random() < 0.2
        node = RealNeuron(
            torch.rand(self.rng.choice([1, 3, 5, 20]), 1).cumsum(0) * 0.3,
            decay=torch.tensor([0.5]),
            reset_amount=torch.tensor([0.5]),
            reset="event",
            is_signed=is_signed,
        )
        return self.add("neuron", node, current)

    def grow(self):
        rng = self.rng
        levels = [p for p, v in self.values.items() if v.max_level is not None]
        path = rng.choice(levels[-4:])
        step = rng.choice([self.layer] * 3 + [self.shortcut, self.pool, self.pool] + [
            self.move, self.move, self.move, self.multiply, self.matmul])  # fmt: skip
        step(path, levels)

    def layer(self, path, levels):
        self.neuron(self.synapse(path))

    def shortcut(self, path, levels):
        if path not in self.pooled_products:
            channels = self.values[path].shape[0]
            node = Shortcut(torch.rand(channels), max_input=self.values[path].max_level)
            self.neuron(self.add("identity.shortcut", node, path))

    def pool(self, path, levels):
        rng, (_, *space) = self.rng, self.values[path].shape
        kind = "sum" if path in self.sums else rng.choice(["max", "sum"])
        if not space:
            return
        kernel = tuple(rng.randint(1, min(3, n)) for n in space)
        made = self.add(
            f"{kind}_pool",
            Pool(
                kind,
                kernel=kernel,
                stride=tuple(rng.randint(1, 2) for _ in space),
                padding=tuple(rng.randint(0, k // 2) for k in kernel),
            ),
            path,
        )
        if made and kind == "sum":
            self.sums.add(made)
        if made and made in self.products and kind == "max":
            self.pooled_products.add(made)

    def move(self, path, levels):
        rng, shape = self.rng, self.values[path].shape
        axis, space = rng.randrange(len(shape)), range(len(shape) - 1)
        kinds = ["concat", "concat", "slice", "roll", "rearrange"] + ["upsample", "pad"] * bool(
            space
        )
        kind = rng.choice(kinds)
        if kind == "concat":
            others = [p for p in levels if _fits(self.values[p].shape, shape, axis)]
            parts = [path, *rng.choices(others, k=rng.randint(1, 2))]
            rng.shuffle(parts)
            self.add("concat", Concat(axis=axis), *parts)
        elif kind == "slice" and not (axis == 0 and path in self.sums):
            start = rng.randrange(shape[axis])
            stop = rng.randint(start + 1, shape[axis])
            node = Slice(axis=axis, start=start, stop=stop, step=rng.randint(1, 2))
            self.add("slice", node, path)
        elif kind == "roll" and not (axis == 0 and path in self.sums):
            start, step = rng.randrange(shape[axis]), rng.choice([1, -1])
            self.add("roll", Roll(axis=axis, start=start, step=step), path)
        elif kind == "rearrange" and path in self.sums:
            flat = (math.prod(shape),)
            self.add("flat", Rearrange(sizes=flat, order=(0,), shape=flat), path)
        elif kind == "rearrange":
            order = tuple(rng.sample(range(len(shape)), len(shape)))
            out = tuple(shape[i] for i in order)
            self.add("turn", Rearrange(sizes=shape, order=order, shape=out), path)
        elif kind == "upsample":
            factors = tuple(rng.randint(1, 2) for _ in space)
            self.add("up", Upsample(factors=factors, fill=rng.choice(["nearest", "zeros"])), path)
        elif kind == "pad":
            before, after = (tuple(rng.randint(0, 2) for _ in space) for _ in range(2))
            self.add("pad", ZeroPad(before=before, after=after), path)

    def multiply(self, path, levels):
        self.products.add(self.add("multiply", Multiply(), path, self.rng.choice(levels)))

    def matmul(self, path, levels):
        groups, rows, n = (*self.values[path].shape, 1, 1)[:3]
        right = self.rng.choice(levels)
        columns, rest = divmod(self.values[right].size, groups * n)
        if rest == 0 and not {path, right} & self.sums:
            left = self.as_shape(path, (groups, rows, n))
            right = self.as_shape(right, (groups, n, columns))
            self.products.add(self.add("matmul", Matmul(), left, right))

    def as_shape(self, path, shape):
        size = (self.values[path].size,)
        return self.add("matrix", Rearrange(sizes=size, order=(0,), shape=shape), path)


def _fits(one, two, axis):
    return len(one) == len(two) and all(
        a == b for i, (a, b) in enumerate(zip(one, two, strict=True)) if i != axis
    )


def counted(table):
    """The counts of a table by target and timestep."""
    found = Counter()
    for edge in table.edges:
        c = edge.counts
        found[edge.target, "unary", edge.t] += c.unary_acs
        found[edge.target, "bit_sparse", edge.t] += c.bit_sparse_acs
        found[edge.target, "shifts", edge.t] += c.explicit_shifts
        found[edge.target, "events", edge.t] += c.unit_event_acs
    for product in table.products:
        for name in ("unary", "bit_pairs", "bit_serial", "dense"):
            found[product.name, name, product.t] += getattr(product, name)
    return +found


def run(network, inputs):
    counter, levels = lbq.OpCounter(network), {}

    def watch(layer, t, level):
        levels[layer, t] = torch.cat([levels.get((layer, t), level[:0]), level])
        counter(layer, t, level)

    for part in inputs.split(1, dim=1):  # one sample per run
        lbq.run_network(network, part, watch=watch)
    return counter.table(), levels


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_what_a_loop_performs_on_random_graphs(seed):
    for draw in range(5):
        graph = Graph(1000 * seed + draw)
        network = graph.graph.finish()
        table, levels = run(network, 3 * torch.randn(T, B, *network.input_shape))
        performed = Counter()
        for t, b in itertools.product(range(T), range(B)):
            at = {layer: level[b] for (layer, when), level in levels.items() if when == t}
            counts, macs = count_by_hand(network, at)
            performed.update({(*key, t): count for key, count in counts.items()})
        assert counted(table) == +performed
        assert {s.name: s.macs for s in table.synapses} == {k: T * n for k, n in macs.items()}
        assert not table.untracked


# --- single rules


def small_network(shape):
    """A network whose two neurons, a and b, emit levels of this shape."""
    network = GraphBuilder(timesteps=T, input_shape=shape, takes_frames=True)
    for name in "ab":
        weight = torch.randn(shape[0], shape[0], *[1] * (len(shape) - 1))
        current = network.add(f"{name}_synapse", Synapse(weight, max_input=None), INPUT)
        thresholds = torch.tensor([[0.2], [0.6], [1.0]])
        neuron = RealNeuron(
            thresholds, decay=torch.zeros(1), reset_amount=torch.ones(1), reset="none"
        )
        network.add(name, neuron, current)
    return network


def read_out(network, path):
    network.add("readout", Readout("mean"), path)
    return network.finish()


def test_joined_levels_are_counted_for_each_neuron_that_emitted_them():
    network = small_network((2, 3, 3))
    network.add("join", Concat(axis=0), "a", "b")
    network.add("conv", Synapse(torch.randn(5, 4, 1, 1), max_input=3), "join")
    table, levels = run(read_out(network, "conv"), torch.randn(T, B, 2, 3, 3))
    for name in "ab":
        emitted = sum(int(levels[name, t].sum()) for t in range(T))
        assert table.by_edge()[name, "conv"].unary_acs == 5 * emitted


def test_levels_that_are_split_and_joined_many_times_are_counted_once():
    network, path = small_network((2, 3, 3)), "a"
    for _ in range(30):  # a billion ways
        halves = [network.add("part", Slice(axis=0, start=n, stop=n + 1), path) for n in (1, 0)]
        path = network.add("swapped", Concat(axis=0), *halves)
        path = network.add("turn", Rearrange(sizes=(2, 9), order=(0, 1), shape=(2, 3, 3)), path)
    network.add("conv", Synapse(torch.randn(5, 2, 1, 1), max_input=3), path)
    table, levels = run(read_out(network, "conv"), torch.randn(T, B, 2, 3, 3))
    assert len(table.edges) == T
    assert table.total().unary_acs == 5 * sum(int(levels["a", t].sum()) for t in range(T))


def test_attention_is_counted_token_by_token_in_three_conventions():
    network = small_network((3, 4, 5))  # heads, width, tokens
    turn = Rearrange(sizes=(3, 4, 5), order=(0, 2, 1), shape=(3, 5, 4))
    network.add("v", turn, "b")
    network.add("kv", Matmul(), "a", "v")
    network.add("out", Shortcut(torch.ones(1), max_input=45), "kv")
    table, levels = run(read_out(network, "out"), torch.randn(T, B, 3, 4, 5))
    k, v = (torch.cat([levels[name, t] for t in range(T)]).long() for name in "ab")
    bits_k, bits_v = (torch.tensor([0, 1, 1, 2])[x].sum(2) for x in (k, v))  # of every token
    total = table.total_products()
    assert total.unary == int((k.sum(2) * v.sum(2)).sum())
    assert total.bit_pairs == int((bits_k * bits_v).sum())
    assert total.bit_serial == int((bits_k * (v > 0).sum(2)).sum())
    assert total.dense == T * B * 3 * 4 * 5 * 4
    assert not table.edges  # the sums of a product are no accumulations


def test_the_larger_operand_of_a_product_is_kept_as_an_integer():
    network = small_network((3, 4, 4))
    network.add("scores", Matmul(), "a", "b")  # to 36
    network.add("mixed", Matmul(), "scores", "b")
    network.add("out", Shortcut(torch.ones(1), max_input=432), "mixed")
    table, levels = run(read_out(network, "out"), torch.randn(T, B, 3, 4, 4))
    a, b = (torch.cat([levels[name, t] for t in range(T)]).double() for name in "ab")
    bits = torch.tensor([0, 1, 1, 2])[b.long()].sum(-1)
    counted = sum(p.bit_serial for p in table.products if p.name == "mixed")
    assert counted == int((bits * ((a @ b) > 0).sum(-2)).sum())


def test_zeros_between_the_positions_of_a_transposed_convolution_are_no_macs():
    network = small_network((2, 3, 3))
    network.add("up", Upsample(factors=(2, 2), fill="zeros"), "a")
    network.add("pad", ZeroPad(before=(1, 1), after=(1, 1)), "up")
    network.add("conv", Synapse(torch.randn(5, 2, 2, 2), max_input=3), "pad")
    table, levels = run(read_out(network, "conv"), torch.randn(T, B, 2, 3, 3))
    conv = table.synapses[-1]
    assert conv.macs == conv.padded_macs == T * (2 * 3 * 3) * (5 * 2 * 2)
    assert conv.inputs == 2 * 3 * 3
    emitted = sum(int(levels["a", t].sum()) for t in range(T))
    assert table.total().unary_acs == emitted * 5 * 2 * 2


def test_a_maximum_of_sums_is_listed_and_its_synapse_costs_macs():
    network = small_network((2, 4, 4))
    network.add("sum", Pool("sum", kernel=(2, 2)), "a")
    network.add("max", Pool("max", kernel=(3, 3)), "sum")
    network.add("conv", Synapse(torch.randn(5, 2, 1, 1), max_input=12), "max")
    table, _ = run(read_out(network, "conv"), torch.randn(T, B, 2, 4, 4))
    assert table.untracked == ("maximum of sums in max",)
    assert table.synapses[-1].has_real_input
    assert not table.edges


def test_sums_that_change_places_before_a_convolution_are_refused():
    network = small_network((2, 4, 4))
    network.add("sum", Pool("sum", kernel=(2, 2)), "a")
    network.add("turn", Rearrange(sizes=(2, 3, 3), order=(0, 2, 1), shape=(2, 3, 3)), "sum")
    network.add("conv", Synapse(torch.randn(5, 2, 1, 1), max_input=12), "turn")
    with pytest.raises(CountError, match=r"turn moves sums of levels.*before conv"):
        lbq.OpCounter(read_out(network, "conv"))


def test_a_shortcut_behind_overlapping_sums_adds_a_level_to_each_of_them():
    network = small_network((2, 4))
    network.add("sum", Pool("sum", kernel=(2,)), "a")
    network.add("flat", Rearrange(sizes=(6,), order=(0,), shape=(6,)), "sum")
    network.add("block.shortcut", Shortcut(torch.ones(1), max_input=6), "flat")
    table, levels = run(read_out(network, "block.shortcut"), torch.randn(T, B, 2, 4))
    windows = torch.tensor([1, 2, 2, 1])
    expected = sum(int((levels["a", t].long() * windows).sum()) for t in range(T))
    assert table.identities().unary_acs == expected


def test_sums_that_are_multiplied_are_listed_as_uncounted():
    network = small_network((2, 4, 4))
    network.add("sum", Pool("sum", kernel=(2, 2), stride=(2, 2)), "a")
    network.add("square", Multiply(), "sum", "sum")
    network.add("out", Shortcut(torch.ones(1), max_input=144), "square")
    table, _ = run(read_out(network, "out"), torch.randn(T, B, 2, 4, 4))
    assert table.uncounted == ("additions of the pools before square",)
    assert table.total_products().dense == T * B * 2 * 2 * 2


def test_levels_that_meet_come_from_one_run():
    network = small_network((3, 4, 4))
    network.add("scores", Matmul(), "a", "b")
    network.add("out", Shortcut(torch.ones(1), max_input=36), "scores")
    counter = lbq.OpCounter(read_out(network, "out"))
    level = torch.ones(2, 3, 4, 4, dtype=torch.uint8)
    counter("a", 0, level)
    with pytest.raises(CountError, match="a emitted levels at timestep 1 twice before b did"):
        counter("a", 0, level)
    with pytest.raises(CountError, match=r"have batches of \[2, 1\]"):
        counter("b", 0, level[:1])


def test_macs_of_products_are_listed_with_those_of_synapses():
    network = small_network((3, 4, 4))
    network.add("scores", Matmul(), "a", "b")
    network.add("out", Shortcut(torch.ones(1), max_input=36), "scores")
    network = read_out(network, "out")
    found = lbq.count_macs(network, network.example())
    assert found == {"a_synapse": T * 144, "b_synapse": T * 144, "scores": T * 3 * 4 * 4 * 4}


def integer_attention():
    """An integer network that multiplies the levels of two neurons."""
    network = GraphBuilder(timesteps=T, input_shape=(2, 4), takes_frames=True, logit_scale=1.0)
    for name in "qk":
        weight = torch.randint(-9, 10, (2, 2, 1), dtype=torch.int8)
        synapse = Synapse(weight, max_input=255, bits=8)
        current = network.add(f"{name}_synapse", synapse, INPUT)
        thresholds = torch.tensor([[100], [400], [900]], dtype=torch.int32).expand(3, 2).clone()
        reset_amount = torch.tensor([100, 100], dtype=torch.int32)
        neuron = IntegerNeuron(
            thresholds, multiplier=1, shift=1, reset_amount=reset_amount, reset="event"
        )
        network.add(name, neuron, current)
    for name, shape in (("q", (2, 4, 1)), ("k", (2, 1, 4))):
        network.add(f"{name}_heads", Rearrange(sizes=(8,), order=(0,), shape=shape), name)
    network.add("scores", Matmul(), "q_heads", "k_heads")
    weight = torch.randint(-9, 10, (3, 32), dtype=torch.int8)
    network.add("out", Synapse(weight, max_input=9, bits=8), "scores")
    network.add("readout", Readout("sum"), "out")
    return network.finish()


@pytest.mark.parametrize("backend", ["dense", "planes", "native"])
def test_every_backend_counts_an_integer_network_alike(backend):
    if backend == "native" and isa() is None:
        pytest.skip("the native library is not built here")
    torch.manual_seed(0)
    network, inputs = integer_attention(), torch.randint(0, 256, (T, 7, 2, 4), dtype=torch.uint8)
    expected, levels = run(network, inputs)
    counter = lbq.OpCounter(network)
    lbq.run_network(network, inputs, backend=backend, watch=counter)
    assert counter.table() == expected
    q, k = (torch.cat([levels[name, t] for t in range(T)]).long() for name in "qk")
    scores = q.unsqueeze(-1) * k.unsqueeze(-2)
    assert expected.total_products().unary == int(scores.sum()) > 0
    assert expected.by_edge() == {("scores", "out"): expected.total()}
    assert expected.total().unary_acs == 3 * int(scores.sum())
