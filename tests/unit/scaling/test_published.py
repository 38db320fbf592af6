"""Laws fitted to runs that others published: their constants, and runs that were left out."""

import csv
from pathlib import Path

import pytest

from pretrain.scaling.backtest import backtest
from pretrain.scaling.fit import fit
from pretrain.scaling.forms import FORMS
from pretrain.scaling.isoflop import isoflop
from pretrain.scaling.law import law_of
from pretrain.scaling.points import Points, RunPoint, read_csv


@pytest.fixture(scope="module")
def chinchilla(reference: Path) -> Points:
    """Hoffmann et al. 2022, figure 4, as Besiroglu et al. 2024 (arXiv 2404.10102) read it off: without the five of
    highest loss."""
    points = read_csv(reference / "chinchilla_points.csv")
    return Points(tuple(sorted(points.runs, key=lambda run: run.loss)[:-5]))


def test_the_third_approach_finds_the_least_objective_of_chinchillas_points(chinchilla: Points) -> None:
    found = fit(FORMS["chinchilla"], chinchilla)
    assert found.objective == pytest.approx(1.01827e-3, rel=1e-5)
    wanted = {"E": 1.8172, "A": 477.8, "B": 2143, "alpha": 0.3473, "beta": 0.3672}
    assert found.constants == pytest.approx(wanted, rel=3e-4)


def test_isoflop_parabolas_of_chinchillas_points_give_the_published_exponent(chinchilla: Points) -> None:
    exponent = isoflop(chinchilla).exponent
    assert exponent == pytest.approx(0.49, abs=0.02)  # approach 2 in table 2: 0.49 (0.462 to 0.534)


def test_olmo_runs_up_to_1b_predict_3b_from_chinchillas_tokens_on(reference: Path) -> None:
    law = law_of(read_csv(reference / "olmo_ladder_points.csv"), "olmo", samples=0)
    test = law.main.backtest
    assert test is not None
    assert {row.run.parameters for row in test.rows} == {3169537280}
    judged = {round(row.run.tokens / row.run.parameters): row.error for row in test.rows}
    assert sorted(judged) == [10, 20, 40, 100, 200]
    assert max(abs(error) for ratio, error in judged.items() if ratio >= 20) < 0.012


@pytest.mark.parametrize(
    "dataset", ["c4_original", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rpj", "rw_original"))]
)
def test_gadre_runs_up_to_411m_predict_1b(reference: Path, dataset: str) -> None:
    with (reference / "gadre_points.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["dataset"] == dataset and "c4_val" in line["eval"]]
    runs = [
        RunPoint(parameters=size, tokens=tokens, loss=float(line["loss"]), flops=6 * size * tokens, name=line["model"])
        for line in lines
        if (size := float(line["params"])) < 2e9 and (tokens := float(line["tokens"]))
    ]
    law = law_of(Points(tuple(runs)), "gadre", samples=0)
    test = law.main.backtest
    assert test is not None
    assert {row.run.name for row in test.rows} == {"open_lm_1b"}
    assert max(run.parameters for run in runs if run.name != "open_lm_1b") == 411616256
    assert test.miss < 0.02


def test_a_backtest_of_a_form_without_a_floor_is_worse(reference: Path) -> None:
    points = read_csv(reference / "olmo_ladder_points.csv")
    kaplan, shared = (backtest(FORMS[name], points) for name in ("kaplan", "shared"))
    assert kaplan.mean_miss > 2 * shared.mean_miss
