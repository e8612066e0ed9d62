from dataclasses import replace

import pytest

from lbq.cost import (
    Counts,
    CountTable,
    EdgeCounts,
    EnergyModel,
    LayerCounts,
    ProductCounts,
    SynapseSize,
)
from lbq.errors import CountError, FormatError, ParameterError


def synapse(name, **sizes):
    return SynapseSize(name=name, num_weights=9, inputs=4, **sizes)


def table(scale=1):
    counts = Counts(
        unary_acs=40 * scale,
        bit_sparse_acs=30 * scale,
        unit_event_acs=20 * scale,
        explicit_shifts=10 * scale,
    )
    identity = Counts(unary_acs=7, bit_sparse_acs=6, unit_event_acs=5)
    return CountTable(
        num_images=2,
        timesteps=2,
        synapses=(
            synapse("stem", macs=100, padded_macs=110, timesteps=1, has_real_input=True),
            synapse("conv", macs=600, padded_macs=640, timesteps=2, has_real_input=False),
        ),
        edges=(
            EdgeCounts(source="a", target="conv", t=0, is_identity=False, counts=counts),
            EdgeCounts(source="a", target="conv", t=1, is_identity=False, counts=counts),
            EdgeCounts(source="a", target="block", t=0, is_identity=True, counts=identity),
        ),
        layers=(
            LayerCounts(layer="a", t=0, neurons=10, active=4, max_level=5, plane_formations=6),
            LayerCounts(layer="a", t=1, neurons=10, active=6, max_level=5, plane_formations=8),
        ),
        untracked=("relu in 1",),
    )


def test_totals_leave_identities_apart():
    assert table().total() == Counts(
        unary_acs=80, bit_sparse_acs=60, unit_event_acs=40, explicit_shifts=20
    )
    assert table().identities().unary_acs == 7
    assert table().by_edge() == {("a", "conv"): table().total()}
    assert [c.unary_acs for c in table().by_timestep()] == [40, 40]


def test_macs_of_the_stem_and_of_the_ann():
    assert table().fp_macs() == 2 * 100
    assert table().ann_macs() == 100 + 300
    assert table().fp_macs(padding="counted") == 2 * 110
    assert table().ann_macs(padding="counted") == 110 + 320
    assert table().plane_formations() == 14
    assert table().active_ratio() == 0.25


def test_a_convention_for_padding_that_is_none_is_refused():
    with pytest.raises(ParameterError, match='"skipped" or "counted", got \'paper\''):
        table().ann_macs(padding="paper")


def test_a_synapse_whose_timesteps_are_unknown_is_named_and_the_ann_is_not_guessed():
    stem, conv = table().synapses
    unknown = replace(table(), synapses=(stem, replace(conv, timesteps=None)))
    assert str(unknown).endswith("Timesteps unknown, so MACs of the ANN are not given: conv.")
    for ask in (unknown.ann_macs, lambda: EnergyModel().estimate(unknown)):
        with pytest.raises(CountError, match="the number of timesteps of conv is unknown"):
            ask()


def test_a_table_of_nothing_says_so():
    text = str(replace(table(), num_images=0))
    assert text.startswith("nothing was counted")
    assert "with lbq.watch_levels(model, counter):" in text
    assert "0.000" not in text


def test_the_printed_table_names_its_convention_and_what_it_could_not_follow():
    text = str(table())
    assert "exact fan-out" in text
    assert "mean of 2 image(s), 2 timestep(s)" in text
    assert text.endswith("Not followed, so its synapses count as MACs: relu in 1.")


def test_columns_of_the_printed_table_stand_under_their_headings():
    heading, edge, total, *others = str(table()).splitlines()
    ends = [heading.index(name) + len(name) for name in ("active", "unary ACs", "bit-sparse")]
    for row in (edge, total):
        assert [row[:end].rstrip() == row[:end] for end in ends] == [True] * 3
        assert [row[end : end + 1] for end in ends] == [" "] * 3
    sums = [row for row in others if row.startswith(("FP MACs", "identity adds"))]
    assert [len(row) for row in sums] == [ends[1]] * 2


def test_the_printed_numbers_are_millions_per_image():
    million = 10**6
    big = replace(
        table(million), synapses=tuple(replace(s, macs=s.macs * million) for s in table().synapses)
    )
    text = str(big).splitlines()
    assert [row.split() for row in text[1:3]] == [
        ["a", "conv", "25.0%", "40.000", "30.000", "25.0%"],
        ["total", "25.0%", "40.000", "30.000", "25.0%"],
    ]
    lines = {row[:22].strip(): float(row[22:]) for row in text[3:8]}
    assert lines == {
        "unit-event ACs": 20.0,
        "explicit shifts": 10.0,
        "plane formations": 0.0,  # 14 of two images
        "FP MACs": 100.0,
        "identity adds (unary)": 0.0,
    }
    wide = replace(big, layers=tuple(replace(x, plane_formations=million) for x in big.layers))
    assert "plane formations             1.000" in str(wide)
    adds = replace(big.edges[2], counts=Counts(unary_acs=6 * million))
    assert "identity adds (unary)        3.000" in str(replace(big, edges=(*big.edges[:2], adds)))


def test_a_table_without_edges_is_printed_too():
    heading, total, *_ = str(replace(table(), edges=())).splitlines()
    assert heading.startswith("from   into")
    assert total.split() == ["total", "25.0%", "0.000", "0.000", "0.0%"]


def test_comparing_two_tables_prints_their_ratio():
    line = next(row for row in table(2).compare(table()).splitlines() if row.startswith("unary"))
    assert line.split()[-1] == "2.000"


def test_a_foreign_file_is_refused(tmp_path):
    older = '{"format": "lbq-counts-1"}'  # its MACs counted padding
    previous = '{"format": "lbq-counts-3"}'  # it had no products
    for text in ('{"format": "something"}', "not json", "[1]", older, previous):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(FormatError, match="not a count table"):
            CountTable.load(tmp_path / "other.json")


def test_products_are_summed_printed_and_compared_apart_from_accumulations(tmp_path):
    product = ProductCounts(
        name="kv", t=0, unary=4 * 10**6, bit_pairs=3 * 10**6, bit_serial=2 * 10**6, dense=10**7
    )
    edge = replace(table().edges[0], source="kv")
    counted = replace(table(), products=(product, replace(product, t=1)), edges=(edge,))
    assert counted.total() == table().edges[0].counts
    assert counted.total_products() == ProductCounts(
        name="total",
        t=0,
        unary=8 * 10**6,
        bit_pairs=6 * 10**6,
        bit_serial=4 * 10**6,
        dense=2 * 10**7,
    )
    rows = [row.split() for row in str(counted).splitlines()]
    assert ["level", "products,", "unary", "4.000"] in rows  # of two images
    assert rows[1][:3] == ["kv", "conv", "0.000"]  # no share of active neurons
    assert "level products" not in str(table())
    assert "level products, dense" in table().compare(counted)
    counted.save(tmp_path / "counts.json")
    assert CountTable.load(tmp_path / "counts.json") == counted
