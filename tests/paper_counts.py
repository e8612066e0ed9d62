"""Counts of the paper's ResNet-20: shared by the tests of prices and of the paper's claims."""

from lbq.cost import Counts, CountTable, EdgeCounts, LayerCounts, SynapseSize

ANN_MACS, STEM_MACS, NEURONS = 2_587_235_328, 3_538_944, 1_507_328


EXACT_MACS, EXACT_STEM_MACS = 2_358_000_000, 3_400_000
"""The same without padding, roughly."""


def table(acs, formations):
    """The paper's ResNet-20 at T=2 with these counts for one image."""
    body = {"timesteps": 2, "num_weights": 17_000_000, "inputs": NEURONS, "has_real_input": False}
    stem = {"timesteps": 1, "num_weights": 3456, "inputs": 3072, "has_real_input": True}
    return CountTable(
        num_images=1,
        timesteps=2,
        synapses=(
            SynapseSize(name="stem", macs=EXACT_STEM_MACS, padded_macs=STEM_MACS, **stem),
            SynapseSize(
                name="body",
                macs=2 * (EXACT_MACS - EXACT_STEM_MACS),
                padded_macs=2 * (ANN_MACS - STEM_MACS),
                **body,
            ),
        ),
        edges=(
            EdgeCounts(
                source="a",
                target="body",
                t=0,
                is_identity=False,
                counts=Counts(unary_acs=2 * acs, bit_sparse_acs=acs),
            ),
        ),
        layers=(
            LayerCounts(
                layer="a", t=0, neurons=NEURONS, active=1, max_level=5, plane_formations=formations
            ),
            LayerCounts(layer="a", t=1, neurons=NEURONS, active=1, max_level=5, plane_formations=0),
        ),
    )
