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
    compare,
    compare_again,
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


@pytest.mark.parametrize(
    ("precision", "tokens", "apart", "same"),
    [
        ("fp32", 128, 2.9e-3, False),
        ("bf16", 128, 2.9e-3, True),
        ("bf16", 128, 3e-2, False),
        ("bf16", 1 << 20, 2.9e-3, False),
        ("fp16", 128, 2.9e-3, True),
        ("fp8", 128, 3.1e-2, True),
        ("fp8", 1 << 20, 3.1e-2, False),
    ],
)
def test_rounding_explains_more_of_the_mean_over_few_tokens(
    precision: str, tokens: int, apart: float, same: bool, tmp_path: Path
) -> None:
    numbers = {"grad_norm": 1.0, "learning_rate": 1e-3, "data_hash": ""}
    a, b = (
        RecordedRun(
            tmp_path,
            family_config("llama", precision=precision),
            {step: numbers | {"loss": 5.0 + off, "tokens": tokens * step} for step in (1, 2)},
            (),
        )
        for off in (0.0, apart)
    )
    losses = {one.quantity: one for one in compare(a, b)}["loss"]
    assert (losses.first is None) == same
    again = compare_again(b, {2: a.metrics[2]}, 1, exact=False)
    assert (again[0].first is None) == same


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
