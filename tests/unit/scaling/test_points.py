"""Tables of runs, rungs and budgets."""

import math
from pathlib import Path

import numpy as np
import pytest

from pretrain.errors import ConfigError
from pretrain.scaling.backtest import split
from pretrain.scaling.isoflop import isoflop
from pretrain.scaling.points import Points, RunPoint, read_csv
from tests.unit.scaling.conftest import Made


def test_columns_are_known_by_several_names_and_what_is_missing_follows(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("name,N,Training FLOP,loss\nsmall,1e8,6e18,3.5\n")
    (run,) = read_csv(path).runs
    assert (run.name, run.parameters, run.loss) == ("small", 1e8, 3.5)
    assert run.tokens == pytest.approx(1e10)
    path.write_text("params,D,loss,lr\n1e8,2e9,3.5,3e-4\n")
    (run,) = read_csv(path).runs
    assert run.flops == pytest.approx(6 * 1e8 * 2e9)
    assert run.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("N,loss\n1e8,3\n", "name a column loss, and two of parameters, tokens and flops"),
        ("N,D,loss\n1e8,two,3\n", "line 2: D is 'two', and no number"),
        ("N,D,loss\n1e8,1e9,nan\n", "loss of a run is nan, as of a run that diverged: leave it out"),
        ("N,D,loss\n", "no lines below"),
        ("", "no lines below"),
        ("N,D,loss\n\n1e8,1,000,3\n", "line 3 has 4 fields, and the line of names 3: write numbers without separators"),
        ("N,D,loss\n1e8,1e9\n", "line 2 has 2 fields, and the line of names 3"),
        ("N,D,loss\n1e8,1e9,1e308\n", "loss of a run is 1e\\+308, and no run has more than 1000: leave it out"),
        ("N,D,loss\n1e100,1e9,3\n", "parameters of a run is 1e\\+100, and no run has more than 1e\\+30"),
    ],
)
def test_a_table_that_is_none_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_csv(path)


def test_a_table_that_a_spreadsheet_has_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("N,D,loss\n1e8,2e9,3.5\n", encoding="utf-8-sig")
    assert read_csv(path).runs[0].parameters == 1e8


def test_sizes_within_a_tenth_are_one_rung(made: Made) -> None:
    points = made(sizes=(1e8, 1.05e8, 2e8), ratios=(10, 20))
    assert [len(rung) for rung in points.rungs()] == [4, 2]


def test_the_largest_size_is_left_out_or_the_most_compute_where_budgets_are_fixed(made: Made) -> None:
    rest, out = split(made())
    assert {run.parameters for run in out.runs} == {8e8}
    assert len(rest) == 9
    runs = tuple(
        RunPoint(parameters=n, tokens=c / (6 * n), loss=3.0, flops=c)
        for c in (1e18, 1e19, 1e20)
        for n in (1e8, 3e8, 1e9)
    )
    rest, out = split(Points(runs))
    assert {run.flops for run in out.runs} == {1e20}
    assert {run.flops for run in rest.runs} == {1e18, 1e19}
    with pytest.raises(ConfigError, match="all runs are of one size"):
        split(made(sizes=(1e8,)))


def test_isoflop_finds_the_lowest_point_of_each_budget_and_their_power() -> None:
    def run(flops: float, off: float) -> RunPoint:
        best = 0.1 * flops**0.5
        size = best * math.exp(off)
        return RunPoint(
            parameters=size, tokens=flops / (6 * size), loss=3 - 0.01 * math.log(flops) + 0.05 * off**2, flops=flops
        )

    runs = [run(flops, off) for flops in (1e18, 1e19, 1e20) for off in np.linspace(-1, 1.2, 5)]
    beyond = [run(1e21, off) for off in (0.5, 0.8, 1.1, 1.4)]  # the best size was not tried
    found = isoflop(Points(tuple(runs + beyond)))
    assert [valley.flops for valley in found.valleys] == pytest.approx([1e18, 1e19, 1e20])
    assert [valley.best_parameters for valley in found.valleys] == pytest.approx([1e8, 10**8.5, 1e9], rel=1e-6)
    assert found.exponent == pytest.approx(0.5)
    assert found.best_parameters(1e22) == pytest.approx(1e10)
