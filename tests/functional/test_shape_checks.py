import pytest
import torch

import lbq.functional as lbqf


def test_a_wrong_shape_is_caught(request):
    """``.ci/test`` runs this folder and tests/neurons a second time with the checks on."""
    if not request.config.option.jaxtyping_packages:
        pytest.skip("needs --jaxtyping-packages=lbq,beartype.beartype")
    from jaxtyping import TypeCheckError  # noqa: PLC0415

    level, step = torch.ones(3), torch.tensor(0.5)
    lbqf.straight_through(level, torch.ones(3), step)
    with pytest.raises(TypeCheckError, match="straight_through"):
        lbqf.straight_through(level, torch.ones(1), step)  # broadcasts without the checks
