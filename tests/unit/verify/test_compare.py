"""What rounding explains between two runs: more with every step, and never everything."""

import pytest

from pretrain.verify.compare import BOUNDS, GROWTH_STEPS, MOST, Line, Measured, _growing


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("quantity", MOST)
def test_the_bound_grows_up_to_its_limit(precision: str, quantity: str) -> None:
    base = BOUNDS[precision][quantity]
    bounds = [_growing(base, MOST[quantity], step) for step in (0, GROWTH_STEPS, 1000, 10**6)]
    assert bounds[:2] == [base, 2 * base]
    assert bounds == sorted(bounds)
    assert bounds[-1] == MOST[quantity]


def test_what_is_not_a_number_departs() -> None:
    line = Line("loss", [Measured(1, 0.0), Measured(2, float("nan")), Measured(3, 1e-9)], lambda step: 1.0)
    assert line.first is not None
    assert line.first.step == line.largest.step == 2
