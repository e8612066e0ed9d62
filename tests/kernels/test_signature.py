import pytest

from lbq.errors import ParameterError
from lbq.kernels import ScanOptions


@pytest.mark.parametrize("max_level", [0, 256])
def test_a_level_that_fits_no_byte_is_refused(max_level):
    with pytest.raises(ParameterError, match=r"1\.\.255"):
        ScanOptions(max_level=max_level, lo=1.0, hi=5.0)


def test_an_unknown_reset_is_refused():
    with pytest.raises(ParameterError, match="got 'evnt'"):
        ScanOptions(max_level=5, lo=1.0, hi=5.0, reset_mode="evnt")
