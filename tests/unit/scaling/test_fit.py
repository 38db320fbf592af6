"""Forms fitted to points that follow them, and to points that no form can be told from."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from pretrain.errors import ConfigError
from pretrain.scaling.fit import fit, fitted_to
from pretrain.scaling.forms import FORMS
from pretrain.scaling.points import Points, RunPoint
from tests.unit.scaling.conftest import Made, chinchilla_loss

LAWS: dict[str, tuple[Callable[[float, float], float], dict[str, float]]] = {
    "chinchilla": (chinchilla_loss, {"E": 1.8, "A": 480, "alpha": 0.35, "B": 2100, "beta": 0.37}),
    "shared": (lambda n, d: 1.7 + 300 / n**0.3 + 700 / d**0.3, {"E": 1.7, "A": 300, "B": 700, "alpha": 0.3}),
    "kaplan": (
        lambda n, d: ((6.4e13 / n) ** (0.076 / 0.103) + 1.8e13 / d) ** 0.103,
        {"Nc": 6.4e13, "alpha_N": 0.076, "Dc": 1.8e13, "alpha_D": 0.103},
    ),
    "compute": (lambda n, d: 1.9 + 90 / (6 * n * d) ** 0.1, {"E": 1.9, "K": 90, "gamma": 0.1}),
}


@pytest.mark.parametrize("name", LAWS)
def test_a_form_finds_the_constants_of_its_own_points(name: str, made: Made) -> None:
    law, constants = LAWS[name]
    found = fit(FORMS[name], made(law))
    assert found.objective < 1e-9
    assert found.constants == pytest.approx(constants, rel=0.02)


@pytest.mark.parametrize("name", FORMS)
def test_derivatives_are_those_of_the_form(name: str, made: Made) -> None:
    form, points = FORMS[name], made()
    x = points.logs - points.logs.mean(axis=1, keepdims=True)
    theta = next(form.starts(x, points.losses))
    _, derivatives = form.evaluate(theta, x)
    for at in range(len(theta)):
        step = np.zeros_like(theta)
        step[at] = 1e-6
        slope = (form.evaluate(theta + step, x)[0] - form.evaluate(theta - step, x)[0]) / 2e-6
        np.testing.assert_allclose(derivatives[at], slope, rtol=1e-4, atol=1e-8)


def test_an_outlier_moves_the_law_by_a_fiftieth_of_itself_at_most(made: Made) -> None:
    clean = made(sizes=(5e7, 1e8, 2e8, 4e8, 8e8), ratios=(5, 10, 20, 40))
    first, *others = clean.runs
    spoiled = Points(
        (RunPoint(parameters=first.parameters, tokens=first.tokens, loss=1.1 * first.loss, flops=first.flops), *others)
    )
    large = np.log([[1e10], [2e11], [1.2e22]])
    found = (float(fit(FORMS["chinchilla"], points).losses(large)[0]) for points in (clean, spoiled))
    assert next(found) == pytest.approx(next(found), rel=0.1 / 50)


def test_bootstrap_intervals_hold_the_constant_and_widen_with_noise(made: Made) -> None:
    widths = []
    for noise in (0.002, 0.02):
        points = made(sizes=(5e7, 1e8, 2e8, 4e8, 8e8), noise=noise)
        low, high = fit(FORMS["shared"], points, samples=20).interval("alpha")
        widths.append(high - low)
    assert 0 < widths[0] < widths[1]


def test_fewer_points_than_constants_are_refused_with_both_numbers(made: Made) -> None:
    with pytest.raises(ConfigError, match="has 5 constants, and there are 4 points for it: 6 or more are needed"):
        fit(FORMS["chinchilla"], made(sizes=(1e8, 2e8), ratios=(10, 20)))


def test_tokens_that_follow_from_sizes_are_refused(made: Made) -> None:
    with pytest.raises(ConfigError, match="as their tokens follow from their sizes"):
        fit(FORMS["chinchilla"], made(sizes=tuple(1e8 * 1.5**k for k in range(8)), ratios=(20,)))


def test_loss_by_compute_is_fitted_to_the_frontier_alone(made: Made) -> None:
    points = made()
    kept = fitted_to(FORMS["compute"], points).runs
    assert 3 < len(kept) < len(points)
    for run in kept:
        assert not any(other.flops <= run.flops and other.loss < run.loss for other in points.runs)
    assert math.isclose(min(run.loss for run in kept), min(points.losses))
