import pytest
import torch
from torch import nn

from lbq.deploy.fold import fold_affine, norm_as_affine
from lbq.errors import LoweringError


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_a_folded_synapse_does_what_both_did(has_bias, affine):
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, bias=has_bias).double()
    norm = nn.BatchNorm2d(5, affine=affine).double().eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.1, 2)
    if affine:
        norm.weight.data.normal_()
        norm.bias.data.normal_()
    gain, offset = norm_as_affine(norm, path="norm")
    weight, bias = fold_affine(conv.weight, conv.bias, gain, offset)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(
        nn.functional.conv2d(images, weight, bias), norm(conv(images)), rtol=1e-12, atol=1e-12
    )


def test_a_norm_without_running_statistics_is_refused_by_name():
    with pytest.raises(LoweringError, match=r"stages\.0\.norm"):
        norm_as_affine(nn.BatchNorm2d(3, track_running_stats=False), path="stages.0.norm")
