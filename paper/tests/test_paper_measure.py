import math

import pytest
import torch
from tiny import tiny_recipe

import lbq
from lbq.analysis.layer_stats import LevelCounts
from lbq.data import open_data
from lbq.train import ModelConfig, NeuronConfig, build_network
from lbq_paper.measure import levels_of, measure


@pytest.fixture
def measured(tmp_path):
    def run(neuron, **options):
        recipe = tiny_recipe(
            model=ModelConfig(width=1 / 64, blocks=(1, 1, 1), timesteps=2, neuron=neuron), **options
        )
        data = open_data(recipe.data, tmp_path)
        torch.manual_seed(0)
        model = build_network(recipe.model, num_classes=data.num_classes).eval()
        return model, data, measure(model, data, recipe, device=torch.device("cpu"))

    return run


def test_counts_and_levels_are_those_of_all_test_samples(measured):
    model, data, found = measured(NeuronConfig(max_level=3, step=0.25))
    images = torch.cat([batch.x for batch in lbq.data.eval_batches(data, batch=30)])
    seen = {}
    counter = lbq.OpCounter(model, images[:1])
    with (
        lbq.watch_levels(model, counter),
        torch.no_grad(),
        lbq.watch_levels(model, lambda name, t, level: seen.setdefault(name, []).append(level)),
    ):
        model(images)
    table = counter.table()
    total, stem = table.total(), table.synapses[0]
    assert found["counts"] == {
        "num_images": 30,
        "macs_padding": "counted",
        "ann_macs": sum(s.padded_macs // s.timesteps for s in table.synapses),
        "fp_macs": 30 * stem.padded_macs,
        "unary_acs": total.unary_acs,
        "bit_sparse_acs": total.bit_sparse_acs,
        "unit_event_acs": total.unit_event_acs,
        "explicit_shifts": total.explicit_shifts,
        "plane_formations": sum(
            int((level >> bit & 1).sum()) for each in seen.values() for level in each
            for bit in (0, 1)
        ),
        "identity_unary_acs": table.identities().unary_acs,
        "untracked": [],
        "uncounted": [],
    }  # fmt: skip
    assert total.unit_event_acs < total.bit_sparse_acs < total.unary_acs
    shares = [(torch.stack(each) > 0).double().mean().item() for each in seen.values()]
    assert found["active_ratio"] == pytest.approx(sum(shares) / len(shares), abs=1e-6)
    assert [layer["layer"] for layer in found["layers"]] == list(seen)
    for layer in found["layers"]:
        levels = torch.stack(seen[layer["layer"]])
        active = levels[levels > 0].double()
        assert layer["active"] == pytest.approx(len(active) / levels.numel(), abs=1e-6)
        shares = [(active == k).double().mean().item() for k in (1, 2, 3)]
        assert layer["levels"] == pytest.approx(shares, abs=1e-6)
        assert layer["step"] == pytest.approx([0.25], abs=1e-6)
        assert layer["tail"] == [0.5]


@pytest.mark.parametrize("kind", ["binary", "ternary", "ternary-original", "lmht", "ilif", "mlf"])
def test_every_other_neuron_can_be_measured(measured, kind):
    _, _, found = measured(NeuronConfig(kind=kind))
    counts = found["counts"]
    assert counts["untracked"] == counts["uncounted"] == []
    assert 0 < counts["unit_event_acs"] <= counts["bit_sparse_acs"] <= counts["unary_acs"]
    assert 0 < found["active_ratio"] < 1


def test_a_network_without_levels_has_macs(measured):
    _, _, found = measured(NeuronConfig(kind="relu"))
    counts = found["counts"]
    assert counts["fp_macs"] == 30 * counts["ann_macs"] > 0
    assert found["layers"] == []
    assert "unary_acs" not in counts


def test_a_step_for_every_channel_is_written_down(measured):
    _, _, found = measured(NeuronConfig(step_per_channel=True))
    assert [len(layer["step"]) for layer in found["layers"]] == [2, 2, 2, 4, 4, 8, 8]


def test_shares_and_entropy_of_levels():
    levels = LevelCounts({"x": 4})
    levels("x", 0, torch.tensor([[0, 0, 1, -1]], dtype=torch.int8))
    levels("x", 1, torch.tensor([[0, 2, 2, 0]], dtype=torch.int8))
    found = levels_of(levels.profile().layers[0])
    assert found["active"] == 0.5
    assert found["levels"] == [0.5, 0.5, 0, 0]
    assert found["entropy"] == pytest.approx(math.log(2) / math.log(4))


def test_a_silent_layer_has_no_distribution():
    levels = LevelCounts({"x": 5})
    levels("x", 0, torch.zeros(2, 3, dtype=torch.uint8))
    found = levels_of(levels.profile().layers[0])
    assert found == {"active": 0, "levels": [], "entropy": None}
