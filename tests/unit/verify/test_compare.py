"""What rounding explains between two runs: more with every step, and never everything."""

from pathlib import Path

import pytest

from pretrain.verify.compare import (
    BOUNDS,
    GROWTH_STEPS,
    MAX_BOUNDS,
    QuantityComparison,
    RecordedRun,
    StepDifference,
    _growing_bound,
)
from pretrain.verify.compare_report import show
from tests.helpers.families import family_config


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


@pytest.mark.parametrize("family", ["olmoe", "llama"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_flip_is_named_where_it_may_be_the_cause(
    family: str, exact: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RecordedRun(Path("a"), family_config(family), {1: {}, 2: {}}, ("one rank",))
    lines = [
        QuantityComparison("samples", [StepDifference(1, float(not exact))], lambda step: 0.0),
        QuantityComparison("loss", [StepDifference(2, 1e-3)], lambda step: 1e-5),
    ]
    assert not show(run, run, lines, None)
    assert ("that rounding sends elsewhere" in capsys.readouterr().out) == (exact and family == "olmoe")
    assert show(run, run, [], None)
    assert "rounding sends" not in capsys.readouterr().out
