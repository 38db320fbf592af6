"""What a law says of runs that were not made, and when it says no bare number."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.errors import ConfigError
from pretrain.scaling import predict as module
from pretrain.scaling.best_size import why_unknown
from pretrain.scaling.fit import fit
from pretrain.scaling.forms import FORMS
from pretrain.scaling.isoflop import isoflop
from pretrain.scaling.law import Law, Tested, law_of, read
from pretrain.scaling.points import Points, RunPoint
from pretrain.scaling.predict import ASKABLE, predict
from pretrain.scaling.report.text import law_lines, prediction_lines
from tests.unit.scaling.conftest import Made, chinchilla_loss


def best_size(flops: float) -> float:
    """In closed form: Hoffmann et al. 2022, equation 4."""
    factor = (0.35 * 480 / (0.37 * 2100)) ** (1 / (0.35 + 0.37))
    return float(factor * (flops / 6) ** (0.37 / (0.35 + 0.37)))


def test_the_best_size_for_a_compute_is_that_of_the_closed_form(law: Law) -> None:
    found = predict(law, flops=5e20)
    assert found.parameters == pytest.approx(best_size(5e20), rel=0.02)
    assert 6 * found.parameters * found.tokens == pytest.approx(5e20)
    assert found.loss == pytest.approx(chinchilla_loss(found.parameters, found.tokens), rel=1e-4)
    assert found.chosen == ("parameters", "tokens")


def test_tokens_for_a_size_are_those_with_which_it_is_the_best_one(law: Law) -> None:
    by_size = predict(law, parameters=1e9)
    assert predict(law, flops=by_size.flops).parameters == pytest.approx(1e9, rel=0.02)
    by_tokens = predict(law, tokens=by_size.tokens)
    assert by_tokens.parameters == pytest.approx(1e9, rel=0.02)
    assert (by_size.chosen, by_tokens.chosen) == (("tokens",), ("parameters",))


def test_a_size_with_its_tokens_is_predicted_as_it_is(law: Law) -> None:
    found = predict(law, parameters=1.6e9, tokens=1e10)
    assert found.loss == pytest.approx(chinchilla_loss(1.6e9, 1e10), rel=1e-4)
    assert "compute" not in found.by_form  # which knows of compute that is spent well


def test_beyond_ten_times_the_compute_there_is_an_interval_and_no_number(made: Made) -> None:
    law = law_of(made(noise=0.002), "made", samples=4)
    near, far = (predict(law, flops=times * law.points.most_flops) for times in (9, 11))
    assert near.loss is not None
    assert near.low < near.loss < near.high
    assert far.loss is None
    assert far.reasons == ("this is 11 times the compute of the largest run, further than 10 times",)
    assert far.high / far.low > near.high / near.low


def test_a_law_whose_backtest_misses_gives_no_number(made: Made) -> None:
    law = law_of(made(lambda n, d: chinchilla_loss(n, d) * (1.05 if n > 5e8 else 1)), "made", samples=5)
    found = predict(law, flops=2 * law.points.most_flops)
    assert found.loss is None
    assert "fitted without the largest runs, the law misses them by up to" in found.reasons[0]
    assert found.high / found.low > 1.06


@pytest.mark.slow
def test_the_interval_holds_the_truth_for_noisy_runs(made: Made) -> None:
    law = law_of(made(noise=0.005), "made", samples=5)
    found = predict(law, parameters=2e9, tokens=4e10)
    assert found.low < chinchilla_loss(2e9, 4e10) < found.high


def test_rates_go_on_with_size_as_the_runs_own(law: Law) -> None:
    runs = tuple(replace(run, learning_rate=3 * run.parameters**-0.4) for run in law.points.runs)
    found = predict(replace(law, points=Points(runs)), parameters=1e9, tokens=1e10)
    assert found.learning_rate == pytest.approx(3 * 1e9**-0.4)
    assert predict(law, parameters=1e9, tokens=1e10).learning_rate is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "say --flops, or --parameters"),
        ({"flops": 1e20, "tokens": 1e9}, "say --flops, or --parameters"),
    ],
)
def test_what_says_too_little_or_too_much_is_refused(asked: dict[str, float], said: str, law: Law) -> None:
    with pytest.raises(ConfigError, match=said):
        predict(law, **asked)


def test_a_law_by_compute_alone_says_why_it_knows_no_sizes(made: Made) -> None:
    law = law_of(made(sizes=tuple(1e8 * 1.5**k for k in range(8)), ratios=(20,)), "made", samples=0)
    assert list(law.forms) == ["compute"]
    with pytest.raises(ConfigError, match="tells loss by compute alone"):
        predict(law, flops=1e20)


def test_a_law_is_read_as_it_was_saved(made: Made, tmp_path: Path) -> None:
    law = law_of(made(noise=0.002), "made", samples=4)
    law.save(tmp_path)
    assert predict(read(tmp_path), flops=1e20) == predict(law, flops=1e20)
    (tmp_path / "fit.json").write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path)
    with pytest.raises(ConfigError, match=r"has no fit\.json"):
        read(tmp_path / "elsewhere")


@pytest.mark.parametrize("asked", [
    {"flops": 1e300}, {"flops": 1e-300}, {"parameters": 1e200}, {"tokens": 1e200}, {"parameters": 0.5, "tokens": 1e9},
    {"parameters": 1e200, "tokens": 1e-200}, {"flops": math.nan}, {"flops": math.inf}, {"tokens": 0.0},
])  # fmt: skip
def test_what_lies_beyond_any_machine_is_refused(law: Law, asked: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="beyond what this law can be asked: its runs allow"):
        predict(law, **asked)


def test_what_can_be_asked_is_answered_up_to_its_ends(law: Law) -> None:
    runs = law.points.runs
    for name in ("flops", "parameters", "tokens"):
        for value in (
            min(getattr(run, name) for run in runs),
            ASKABLE / 1.01 * max(getattr(run, name) for run in runs),
        ):
            found = predict(law, **{name: value})
            assert found.low is not None
            assert found.high is not None
            assert all(map(math.isfinite, (found.low, found.high, found.parameters, found.tokens)))


@pytest.mark.parametrize(
    "asked", [{"tokens": 1}, {"parameters": 9e6}, {"flops": 1e16}, {"parameters": 1e9, "tokens": 9e7}]
)
def test_below_a_tenth_of_the_smallest_run_nothing_is_said(law: Law, asked: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="beyond what this law can be asked: its runs allow"):
        predict(law, **asked)


def test_a_run_that_the_law_chooses_is_no_smaller_either(law: Law, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_known", lambda *_: None)  # these points are not those that it was fitted to
    few = Points(tuple(replace(run, tokens=1e3 * run.tokens, flops=1e3 * run.flops) for run in law.points.runs))
    with pytest.raises(ConfigError, match=r"tokens of .*, less than a tenth of the smallest run's"):
        predict(replace(law, points=few), flops=1e20)


def test_sizes_and_tokens_have_a_limit_like_compute(law: Law) -> None:
    found = predict(law, parameters=1e8, tokens=1e12)  # 3 times the compute of the largest run
    assert found.loss is None
    assert found.reasons == ("this is 31 times the tokens of the largest run, further than 10 times",)


def test_without_a_backtest_there_is_neither_a_number_nor_an_interval(made: Made) -> None:
    law = law_of(made(sizes=(1e8, 2e8), noise=0.003), "made", samples=2)
    assert [one.backtest for one in law.forms.values()] == [None] * len(law.forms)
    assert len(law.forms) > 1
    found = predict(law, flops=1e20)
    assert (found.loss, found.low, found.high, found.best_parameters) == (None, None, None, None)
    said = "\n".join(prediction_lines(law, found))
    assert "95%" not in said
    assert "(the best by chinchilla, untested)" in said
    assert "no number and no interval, as\n            there is no backtest: without the largest runs, " in said
    for name, loss in found.by_form.items():
        assert f"            {name} says {loss.value:.4f}" in said
    assert "misses least" not in law_lines(law)[-1]
    assert "None has a backtest" in law_lines(law)[-1]
    assert "misses least on average" in law_lines(law_of(made(), "made", samples=0))[-1]


def by_chinchilla(points: Points) -> Law:
    """A law of one form without a backtest, as all forms take longer."""
    return Law(points, {"chinchilla": Tested(fit(FORMS["chinchilla"], points), None, "left out here")}, {}, "made")


RISES: dict[str, Callable[[float, float], float]] = {
    "size": lambda n, d: 3 + 0.1 * math.log(n / 1e8) + 100 / d**0.3,
    "tokens": lambda n, d: 2 + 100 / n**0.3,
}


@pytest.mark.parametrize("what", RISES)
def test_losses_that_do_not_fall_tell_no_best_size(made: Made, what: str) -> None:
    law = by_chinchilla(made(RISES[what]))
    for asked in ({"flops": 1e20}, {"parameters": 4e8}, {"tokens": 1e10}):
        with pytest.raises(
            ConfigError, match=f"made tells no best size, as losses of the runs do not fall with {what}"
        ):
            predict(law, **asked)
    found = predict(law, parameters=4e8, tokens=1e10)
    assert found.loss is None
    assert f"losses of the runs do not fall with {what} by more than they scatter" in found.reasons


def test_runs_of_one_loss_tell_no_best_size_by_any_way(made: Made) -> None:
    points = made(lambda n, d: 3.0)
    with pytest.raises(ConfigError, match="tells no best size, as losses of the runs do not fall with size"):
        predict(by_chinchilla(points), flops=1e20)
    at_a_budget = tuple(
        RunPoint(parameters=n, tokens=c / (6 * n), loss=3.0, flops=c)
        for c in (1e18, 1e19)
        for n in (1e8, 2e8, 3e8, 4e8)
    )
    assert isoflop(Points(at_a_budget)).valleys == ()


def test_an_exponent_at_a_bound_of_its_fit_tells_no_best_size(made: Made, law: Law) -> None:
    assert why_unknown(law.main.fitted, law.points) is None
    steep = made(lambda n, d: 1.8 + 0.5 * (1e8 / n) ** 4 + 2100 / d**0.37)
    with pytest.raises(ConfigError, match=r"as alpha of E \+ A / N\^alpha .* lies at a bound of its fit \(3\)"):
        predict(by_chinchilla(steep), flops=1e20)


@pytest.mark.parametrize("number", [0, 4])
def test_a_run_that_diverged_is_named(made: Made, number: int) -> None:
    runs = list(made(noise=0.002).runs)
    assert by_chinchilla(Points(tuple(runs))).diverged == []
    runs[number] = replace(runs[number], loss=1.5 * runs[number].loss)
    law = by_chinchilla(Points(tuple(runs)))
    (said,) = law.diverged
    assert said.startswith(f"{runs[number].name} has a loss of {runs[number].loss:.4g}, ")
    assert f"warning: {said}" in law_lines(law)
