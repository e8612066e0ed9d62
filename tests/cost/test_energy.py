from dataclasses import replace

import pytest
import torch
from paper_counts import ANN_MACS, EXACT_MACS, EXACT_STEM_MACS, table
from torch import nn

import lbq
from lbq.cost import (
    HAN_2016,
    HOROWITZ_2014,
    EnergyModel,
    ProductCounts,
)
from lbq.functional.op_costs import AC_PJ, FORMATION_PJ, MAC_PJ
from lbq.neurons import BinaryLIF, TernaryLIF


@pytest.mark.parametrize(
    ("name", "mac_pj", "ac_pj"),
    [
        ("int8, 8-bit sums", 0.23, 0.03),
        ("int8, 32-bit sums", 0.3, 0.1),
        ("float16", 1.5, 0.4),
        ("int4, 32-bit sums", 0.15, 0.1),
    ],
)
def test_both_sides_are_priced_in_the_same_precision(name, mac_pj, ac_pj):
    report = EnergyModel().estimate(table(945_690_000, 695_000))
    assert report[name].ann_mj == pytest.approx(mac_pj * EXACT_MACS / 1e9)
    assert report[name].burst_mj == pytest.approx(
        (mac_pj * EXACT_STEM_MACS + ac_pj * 945_690_000 + 0.1 * 695_000) / 1e9
    )
    # the paper's float32 network costs more than an int8 ANN
    assert report["paper"].burst_mj > report["int8, 8-bit sums"].ann_mj


def test_a_ratio_has_one_rule_for_padding_on_both_sides():
    exact, papers = (
        EnergyModel(padding=padding).estimate(table(945_690_000, 695_000))["paper"]
        for padding in ("skipped", "counted")
    )
    assert EnergyModel().estimate(table(945_690_000, 695_000))["paper"] == exact
    assert exact.ann_mj == pytest.approx(4.6 * EXACT_MACS / 1e9)
    assert papers.ann_mj == pytest.approx(4.6 * ANN_MACS / 1e9)
    assert exact.convention.endswith("padding is not counted")
    assert papers.convention.endswith("padding is counted in MACs only")


def test_prices_are_those_of_one_image():
    one = EnergyModel().estimate(table(1000, 10))
    seven = EnergyModel().estimate(replace(table(7000, 70), num_images=7))
    for row, same in zip(one.arithmetic + one.memory, seven.arithmetic + seven.memory, strict=True):
        assert (same.ann_mj, same.burst_mj) == pytest.approx((row.ann_mj, row.burst_mj))


def test_all_energies_are_printed_in_microjoules():
    assert "mJ" not in str(EnergyModel().estimate(table(10**9, 10**7)))
    stem, body = table(1000, 10).synapses
    small = (replace(stem, macs=10_000), replace(body, macs=80_000))
    report = EnergyModel().estimate(replace(table(1000, 10), synapses=small))
    heading, _, row, *_ = str(report).splitlines()
    assert heading.split()[-7:-3] == ["ANN,", "uJ", "this,", "uJ"]
    name, ann, burst, ratio = row.split()
    assert (name, float(ann)) == ("paper", 50_000 * 4.6e-6)
    assert float(burst) == pytest.approx((10_000 * 4.6 + 1000 * 0.9 + 10 * 0.1) * 1e-6, abs=5e-4)
    assert float(ratio) == pytest.approx(report["paper"].ratio, abs=5e-3)


@pytest.mark.parametrize("neuron", [BinaryLIF, TernaryLIF])
def test_binary_and_ternary_networks_form_no_planes(neuron):
    model, frames = nn.Sequential(neuron(), nn.Linear(4, 5)), torch.full((1, 1, 4), 3.0)
    counter = lbq.OpCounter(model, frames)
    with lbq.watch_levels(model, counter):
        model(frames)
    assert counter.table().total().unit_event_acs == 20
    price = EnergyModel().estimate(counter.table())["paper"]
    assert price.burst_mj == pytest.approx(0.9 * 20 / 1e9)


def test_the_papers_prices_have_one_value():
    assert HOROWITZ_2014.fp32_multiply + HOROWITZ_2014.fp32_add == pytest.approx(MAC_PJ)
    assert (HOROWITZ_2014.fp32_add, HOROWITZ_2014.int32_add) == (AC_PJ, FORMATION_PJ)


def test_memory_is_priced_apart():
    report = EnergyModel().estimate(table(1, 1))
    assert report["DRAM"].ann_mj == pytest.approx(report.ann_traffic.total * 162.5 / 1e9)
    assert report["1 MB SRAM"].burst_mj == pytest.approx(report.burst_traffic.total * 12.5 / 1e9)
    small = EnergyModel(technology=HAN_2016).estimate(table(1, 1))
    assert small["32 KB SRAM"].ann_mj == pytest.approx(report.ann_traffic.total * 1.25 / 1e9)


def test_every_printed_row_says_its_convention_and_the_source_of_its_prices():
    report = EnergyModel().estimate(table(945_690_000, 695_000))
    text = str(report)
    for row in (*report.arithmetic, *report.memory):
        assert f"{row.name}: {row.convention}" in text
    assert HOROWITZ_2014.source in text
    assert "13.72" in str(EnergyModel(padding="counted").estimate(table(945_690_000, 695_000)))


def test_a_price_says_what_its_counts_leave_out():
    counted = replace(table(1, 1), untracked=("relu in 1",), uncounted=("lstm in 2",))
    text = str(EnergyModel().estimate(counted))
    assert "count as MACs: relu in 1." in text
    assert "Not counted at all: lstm in 2." in text


def with_products(images=1):
    counted = tuple(
        ProductCounts(
            name="kv",
            t=t,
            unary=40 * images,
            bit_pairs=30 * images,
            bit_serial=20 * images,
            dense=10**6 * images,
        )
        for t in range(2)
    )
    return replace(table(1000 * images, 10 * images), num_images=images, products=counted)


def test_products_of_levels_without_a_price_are_left_out_and_named():
    plain, report = (EnergyModel().estimate(t) for t in (table(1000, 10), with_products()))
    assert report.arithmetic == plain.arithmetic
    assert "Products of levels have no price (EnergyModel.product_pj), left out: kv." in str(report)
    assert not plain.notes


@pytest.mark.parametrize(("kind", "count"), [("unary", 80), ("bit_pairs", 60), ("bit_serial", 40)])
@pytest.mark.parametrize("images", [1, 7])
def test_products_of_levels_are_priced_on_request(kind, count, images):
    plain = EnergyModel().estimate(table(1000, 10))["paper"]
    report = EnergyModel(product_pj=5.0, product_kind=kind).estimate(with_products(images))
    assert report["paper"].burst_mj - plain.burst_mj == pytest.approx(5 * count / 1e9)
    assert report["paper"].ann_mj - plain.ann_mj == pytest.approx(4.6 * 10**6 / 1e9)  # once
    assert f"5.0 pJ per product of levels ({kind})" in report["paper"].convention
    assert "left out" not in str(report)
