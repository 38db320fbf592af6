"""What rounding explains between two runs: more with every step, and never everything."""

import pytest

from pretrain.verify.compare import BOUNDS, GROWTH_STEPS, MAX_BOUNDS, QuantityComparison, StepDifference, _growing_bound


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("quantity", MAX_BOUNDS)
def test_the_bound_grows_up_to_its_limit(precision: str, quantity: str) -> None:
    base = BOUNDS[precision][quantity]
    bounds = [_growing_bound(base, MAX_BOUNDS[quantity], step) for step in (0, GROWTH_STEPS, 1000, 10**6)]
    assert bounds[:2] == [base, 2 * base]
    assert bounds == sorted(bounds)
    assert bounds[-1] == MAX_BOUNDS[quantity]


def test_what_is_not_a_number_departs() -> None:
    line = QuantityComparison(
        "loss", [StepDifference(1, 0.0), StepDifference(2, float("nan")), StepDifference(3, 1e-9)], lambda step: 1.0
    )
    assert line.first is not None
    assert line.first.step == line.largest.step == 2
