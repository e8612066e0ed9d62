import pytest

from lbq.errors import ParameterError
from lbq.neurons import BoxET, ClipBox, MatchedBox, ReLSGET, Surrogate, TailedBox


@pytest.mark.parametrize(
    ("surrogate", "lo", "hi", "tail", "learned"),
    [
        (ReLSGET(), 1.0, 5.0, 0.5, True),
        (ReLSGET(0.3, learn=False), 1.0, 5.0, 0.3, False),
        (BoxET(), 0.5, 5.5, None, False),
        (MatchedBox(), 1.0, 5.0, None, False),
        (ClipBox(), 0.0, 5.0, None, False),
        (TailedBox(), 0.5, 5.5, 0.5, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Surrogate) else "",
)
def test_each_member_is_a_point_of_the_family(surrogate, lo, hi, tail, learned):
    assert surrogate.lo == lo
    assert surrogate.hi(5) == hi
    strength = surrogate.tail()
    assert strength is None if tail is None else strength.item() == pytest.approx(tail)
    assert bool(list(surrogate.parameters())) == learned


@pytest.mark.parametrize("tail", [0.0, 1.0, -0.1])
def test_a_tail_outside_its_range_is_refused(tail):
    with pytest.raises(ParameterError, match="strictly between 0 and 1"):
        ReLSGET(tail)
