"""Einsums in any spelling: lowered as the operators they stand for, or refused by their letters."""

import pytest
import torch
from equivalence import engines
from lowering.test_supported_networks import Net, burst, conv, in_float64, in_integers, over, seeded
from torch import einsum, nn

import lbq
from lbq.cost import read_connectivity
from lbq.errors import LoweringError

VECTORS, MAPS = (2, 3, 6), (2, 3, 3, 4, 4)  # [T, B, features], [T, B, C, H, W]


def on(shape, do, *weights):
    """A network that does something to levels, by weights of these shapes and neurons ``n``."""

    def build():
        parts = {f"w{n}": nn.Parameter(torch.randn(size)) for n, size in enumerate(weights)}
        first = nn.Linear(6, 6) if shape == VECTORS else over(conv(3, 4))
        neurons = nn.ModuleList(burst() for _ in range(4))
        return Net(
            lambda s, x: do(s.n, s.m(s.first(x)), *(getattr(s, name) for name in parts)),
            **{"first": first, "m": burst(), "n": neurons, **parts},
        )

    return build, shape


def vectors(do, *weights):
    return on(VECTORS, lambda n, x, *w: do(x, *w), *weights)


def maps(do, *weights):
    return on(MAPS, lambda n, x, *w: do(x, *w), *weights)


def written_into(x, w):
    """In-place code is captured in another way."""
    y = x.clone()
    y += x
    return einsum("tbi,oi->tbo", y, w).mean(0)


def folded(n, x, w, v):
    y = 3 * einsum("tbchw,oc->tbohw", x, w) + 0.7
    return einsum("tbchw,ochw->tbo", n[0](y), v).mean(0)


def attended(n, x, *weights):
    """Two heads over the positions of maps, without a softmax."""
    x = einsum("tbchw->tbhwc", x).flatten(2, 3)
    q, k, v = (n[i](einsum("tbni,hdi->tbhnd", x, weights[i])) for i in range(3))
    y = einsum("tbhnm,tbhmd->tbhnd", einsum("tbhnd,tbhmd->tbhnm", q, k), v)
    return einsum("tbhnd,ohd->tbno", n[3](y), weights[3]).mean((0, 2))


def squared(n, x, w):
    """Channels by channels, summed over positions."""
    return einsum("tbcd,od->tbco", n[0](einsum("tbchw,tbdhw->tbcd", x, x)), w).mean(0)


EXACT = {
    # products with a weight
    "named": vectors(lambda x, w: einsum("tbi,oi->tbo", x, w).mean(0), (5, 6)),
    "weight transposed": vectors(lambda x, w: einsum("tbi,io->tbo", x, w).mean(0), (6, 5)),
    "weight first": vectors(lambda x, w: einsum("oi,tbi->tbo", w, x).mean(0), (5, 6)),
    "implicit": vectors(lambda x, w: einsum("tbi,oi", x, w).mean(2), (5, 6)),  # [b, o, t]
    "capitals": vectors(lambda x, w: einsum("z A q, q B", x, w).mean(2), (6, 5)),  # [A, B, z]
    "ellipsis": vectors(lambda x, w: einsum("...i,oi->...o", x, w).mean(0), (5, 6)),
    "implicit ellipsis": vectors(lambda x, w: einsum("...c,dc", x, w).mean(0), (5, 6)),
    "ellipsis behind": maps(lambda x, w: einsum("oc,tbc...->tbo...", w, x).mean(0), (5, 4)),
    "numbers": vectors(lambda x, w: einsum(x, [..., 1], w, [2, 1], [..., 2]).mean(0), (5, 6)),
    "written into": vectors(written_into, (5, 6)),
    "batch before time": vectors(
        lambda x, w: einsum("bti,oi->obt", x.transpose(0, 1), w).mean(2).mT, (5, 6)
    ),
    "one output": vectors(lambda x, w: einsum("tbi,i->tb", x, w)[..., None].mean(0), (6,)),
    "channels": maps(lambda x, w: einsum("tbchw,oc->tbhwo", x, w).mean(0), (5, 4)),
    "rows": maps(lambda x, w: einsum("tbchw,vh->tbcvw", x, w).mean(0), (3, 4)),
    "whole maps": maps(lambda x, w: einsum("tbchw,ochw->tbo", x, w).mean(0), (5, 4, 4, 4)),
    "several letters": maps(lambda x, w: einsum("tbchw,dwce->tbehd", x, w).mean(0), (2, 4, 4, 3)),
    "merged time and batch": vectors(
        lambda x, w: einsum("ni,oi->no", x.flatten(0, 1), w).unflatten(0, (2, -1)).mean(0), (5, 6)
    ),
    "two weights of one value": vectors(
        lambda x, w, v: (einsum("tbi,oi->tbo", x, w) + einsum("tbi,oi->tbo", x, v)).mean(0),
        *((5, 6), (5, 6)),
    ),
    "outer product": vectors(lambda x, w: einsum("tbi,o->tbio", x, w).mean(0), (5,)),
    # sums
    "over time": vectors(lambda x, w: einsum("tbc->bc", einsum("tbi,ci->tbc", x, w)), (5, 6)),
    "over time and space": maps(
        lambda x, w: einsum("tbohw->bo", einsum("tbchw,oc->tbohw", x, w)), (5, 4)
    ),
    "over space": maps(
        lambda x, w: einsum("tbc,oc->tbo", einsum("tbc...->tbc", x), w).mean(0), (5, 4)
    ),
    "over channels": maps(
        lambda x, w: einsum("tbhw,ohw->tbo", einsum("tbchw->tbhw", x), w).mean(0), (5, 4, 4)
    ),
    # moves
    "moved": maps(
        lambda x, w: einsum("tbwhc,ocw->tboh", einsum("tbchw->tbwhc", x), w).mean(0), (5, 4, 4)
    ),
    # products of levels, and more
    "attention": on(MAPS, attended, (2, 3, 4), (2, 3, 4), (2, 3, 4), (5, 2, 3)),
    "squared": on(MAPS, squared, (5, 4)),
    "constants behind": on(MAPS, folded, (3, 4), (5, 3, 4, 4)),
}

REORDERED = ("attention", "over time and space")
"""Lowering multiplies in another order, with fewer products."""

REFUSED = {
    "diagonal": (maps(lambda x: einsum("tbchh->tbch", x)), '"h" in "tbchh->tbch" is twice'),
    "three operands": (
        vectors(lambda x, w, v: einsum("tbi,oi,po->tbp", x, w, v), (5, 6), (5, 5)),
        "has 3 operands; write an einsum per product",
    ),
    "length 1": (vectors(lambda x, w: einsum("tbi,oi", x, w), (5, 1)), '"i" .* is 6 and 1 long'),
    "data summed alone": (
        vectors(lambda x, w: einsum("tbi,oi->bo", x, w), (5, 6)),
        '"t" .* one operand before the product; keep it',
    ),
    "weight summed alone": (
        vectors(lambda x, w: einsum("...i,oij->...o", x, w), (5, 6, 2)),
        '"j" .* one operand before the product; keep it',
    ),
    "ellipsis summed alone": (
        maps(lambda x, w: einsum("tbc...,oc->tbo", x, w), (5, 4)),
        '"..." in .* one operand before the product',
    ),
    "weight over time": (
        vectors(lambda x, w: einsum("tbi,ot->bio", x, w), (5, 2)),
        '"t" in "tbi,ot->bio" is time, .* not in weights',
    ),
    "weight per timestep": (
        vectors(lambda x, w: einsum("tbi,toi->tbo", x, w), (2, 5, 6)),
        '"t" .* is time',
    ),
    "weight per channel": (
        vectors(lambda x, w: einsum("tbi,i->tbi", x, w), (6,)),
        r'"i" .* stays .* write x \* weight, or a convolution with groups',
    ),
    "weight per group": (
        maps(lambda x, w: einsum("tbchw,cow->tbcho", x, w), (4, 5, 4)),
        '"c" .* stays',
    ),
    "element by element": (
        vectors(lambda x: einsum("tbi,tbi->tbi", x, x)),
        r"multiplies element by element; write a \* b",
    ),
    "time by time": (
        vectors(lambda x: einsum("tbi,sbi->bts", x, x)),
        '"t" .* is time, .* keep it in values',
    ),
    "sample by sample": (vectors(lambda x: einsum("tbi,tci->tbc", x, x)), '"b" .* is the batch'),
    "batch and time": (
        vectors(lambda x: einsum("ni,mi->nm", x.flatten(0, 1), x.flatten(0, 1))),
        '"n" .* is time',
    ),
    "over the batch": (vectors(lambda x: einsum("tbi->ti", x)), "computes along the batch"),
    "levels over time": (
        vectors(lambda x, w: einsum("bi,oi->bo", einsum("tbi->bi", x), w), (5, 6)),
        "levels over time; average behind the classifier",
    ),
    "currents": (
        vectors(lambda x, w: einsum("tbi,tbj->tbij", x, einsum("tbi,oi->tbo", x, w)), (5, 6)),
        "multiplies currents",
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_it_is_exact_and_its_integers_are_the_same_everywhere(name, tmp_path):
    build, shape = EXACT[name]
    in_float64(build, shape)
    integers, raw, answer = in_integers(build, shape)
    found = engines.answers(integers, raw, tmp_path)
    assert {"native", "bundle"} <= found.keys()
    assert not any(engines.disagreements(found).values())
    dense = lbq.run_network(integers, raw, backend="dense")
    error = (dense * integers.logit_scale - answer).abs().mean()
    assert error < 0.1 * answer.abs().mean()


@pytest.mark.parametrize("name", EXACT)
def test_the_trained_network_is_counted_like_the_lowered_one(name):
    build, shape = EXACT[name]
    model, x = seeded(build), torch.randn(shape)
    trained = lbq.count_ops(model, x, batch_axis=1)
    lowered = lbq.count_ops(lbq.lower(model, x, batch_axis=1), x)
    assert trained.total() == lowered.total()
    if name not in REORDERED:
        assert trained.total_products() == lowered.total_products()
        assert trained.ann_macs() == lowered.ann_macs()
    products = lbq.audit(model, x, batch_axis=1).products
    assert products.total().unary_acs == trained.total().unary_acs
    assert not products.unchecked


@pytest.mark.parametrize("name", REFUSED)
def test_other_einsums_are_refused_by_the_letter(name):
    (build, shape), why = REFUSED[name]
    with pytest.raises(LoweringError, match=f"einsum in the network itself .*{why}"):
        lbq.lower(seeded(build), torch.randn(shape), batch_axis=1)


def test_a_refused_product_is_said_to_be_uncounted():
    (build, shape), _ = REFUSED["weight per timestep"]
    found = read_connectivity(seeded(build), torch.randn(shape)[:, :1], batch_axis=1)
    assert found.uncounted == found.untracked == ["einsum in the network itself"]
