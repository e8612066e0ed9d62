import pytest
import torch
from torch import nn

from lbq.deploy.graph_builder import batch_norm_affine, fold_batch_norm
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
    gain, offset = batch_norm_affine(norm, path="norm")
    weight, bias = fold_batch_norm(conv.weight, conv.bias, gain, offset)
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(
        nn.functional.conv2d(images, weight, bias), norm(conv(images)), rtol=1e-12, atol=1e-12
    )


def test_a_norm_without_running_statistics_is_refused_by_name():
    with pytest.raises(LoweringError, match=r"stages\.0\.norm"):
        batch_norm_affine(nn.BatchNorm2d(3, track_running_stats=False), path="stages.0.norm")
