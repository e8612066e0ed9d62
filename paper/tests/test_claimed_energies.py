import pytest
from paper_counts import table

from lbq.cost import EnergyModel
from lbq_paper.claims import ENERGIES

SPIKING = [claim for claim in ENERGIES if claim.acs_m is not None]


@pytest.mark.parametrize("claim", SPIKING, ids=lambda claim: claim.method)
def test_the_papers_convention_gives_the_papers_energies_and_ratios(claim):
    formations = 0 if claim.plane_formations_m is None else int(claim.plane_formations_m * 10**6)
    counted = table(int(claim.acs_m * 10**6), formations)
    row = EnergyModel(padding="counted").estimate(counted)["paper"]
    assert f"{row.burst_mj:.2f}" == str(claim.energy_mj)
    assert f"{row.ratio:.2f}" == str(claim.ratio)
    assert f"{row.ann_mj:.2f}" == "11.90"
