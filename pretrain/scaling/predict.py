"""Prediction of a run that was not made: its loss, the best size and tokens for its compute, its rate.

A prediction is an interval. It holds a bare number as well only where the law has earned one: where its backtest missed
by at most 2%, and the run has at most ten times the compute, the size and the tokens of the largest ones it was fitted
to. Without a backtest nothing is known of how far a form misses: there is neither a number nor an interval, but what
each form says.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pretrain.errors import ConfigError
from pretrain.scaling.backtest import MISS
from pretrain.scaling.best_size import best_parameters, check_known, flops_where_best, why_unknown
from pretrain.scaling.fit import Fitted, fitted_to
from pretrain.scaling.law import Law, Tested
from pretrain.scaling.points import Floats

FURTHEST = 10
"""Multiple of the compute, parameters or tokens of the largest run, up to which a law gives a number; and what those of
the smallest run may be divided by. Below that a law says nothing: its powers grow without a limit, and no loss does."""
ASKABLE = 1e12
"""times as much as the largest run: of compute, parameters or tokens. A law says nothing of what lies beyond, and
numbers that no machine has room for begin there"""
_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True)
class Range:
    """A value and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction of one run."""

    parameters: float
    tokens: float
    flops: float
    chosen: tuple[str, ...]
    """names of the figures above that the law chose as the best for the compute"""
    loss: float | None
    """predicted loss; None: see `reasons`"""
    low: float | None
    high: float | None
    """ends of the interval; None: no form has a backtest"""
    reasons: tuple[str, ...]
    """reasons why there is no single number"""
    by_form: dict[str, Range]
    """loss by each form, with its bootstrap interval"""
    best_parameters: Range | None
    """best size for the compute, with the bootstrap interval of the leading form; None also without a backtest"""
    learning_rate: float | None
    """learning rate extrapolated over size from the runs' own; None if these are not known"""


def predict(
    law: Law, flops: float | None = None, parameters: float | None = None, tokens: float | None = None
) -> Prediction:
    """Predicts the run with this compute, or with this size and this many tokens, or with one of the two and the best
    other. Raises ConfigError where that says too much or too little, no form knows sizes or which is the best, or the
    run is far smaller than those of the law."""
    given = [value for value in (flops, parameters, tokens) if value is not None]
    if not given or len(given) > 2 or (flops is not None and len(given) > 1):
        raise ConfigError("say --flops, or --parameters, or --tokens, or the last two together")
    for name, value in (("flops", flops), ("parameters", parameters), ("tokens", tokens)):
        if value is not None and not is_askable(law, name, value):
            low, high = _bounds(law, name)
            raise ConfigError(
                f"{name} of {value:g} are beyond what this law can be asked: its runs allow {low:.3g} to {high:.3g}"
            )
    main, factor = law.main, law.points.flops_per_parameter
    if main.fitted.form.of_compute:
        raise ConfigError(
            f"{law.origin} tells loss by compute alone, as every size has one number of tokens: sizes cannot be "
            "compared; add runs of the same sizes with other numbers of tokens"
        )
    if parameters is not None and tokens is not None:
        return _prediction(law, parameters, factor * parameters * tokens, ())
    check_known(main.fitted, law.points, law.origin)
    if flops is not None:
        return _prediction(law, best_parameters(main.fitted, factor, flops), flops, ("parameters", "tokens"))
    flops = flops_where_best(main.fitted, factor, parameters, tokens)
    if parameters is not None:
        return _prediction(law, parameters, flops, ("tokens",))
    assert tokens is not None
    return _prediction(law, flops / (factor * tokens), flops, ("parameters",))


def is_askable(law: Law, name: str, value: float) -> bool:
    """Whether a law can be asked about a run with this value of `name`: flops, parameters or tokens."""
    low, high = _bounds(law, name)
    return low <= value <= high


def _bounds(law: Law, name: str) -> tuple[float, float]:
    values = [getattr(run, name) for run in law.points.runs]
    return max(1.0, min(values) / FURTHEST), max(values) * ASKABLE


def _prediction(law: Law, parameters: float, flops: float, chosen: tuple[str, ...]) -> Prediction:
    factor = law.points.flops_per_parameter
    tokens = flops / (factor * parameters)
    _check_least(law, {"flops": flops, "parameters": parameters, "tokens": tokens})
    times = _times_beyond(law, {"compute": flops, "parameters": parameters, "tokens": tokens})
    logs = np.log([[parameters], [tokens], [flops]])
    main = law.main
    ranges = {
        name: _range(law, one.fitted, logs)
        for name, one in law.forms.items()
        if chosen or not one.fitted.form.of_compute  # which knows of compute that is spent well
    }
    loss = ranges[main.fitted.form.name].value
    trusted = [ranges[name] for name, one in law.forms.items() if name in ranges and _passed(one)]
    spans = [ranges[main.fitted.form.name], *trusted]
    miss = _expected_miss(main, max(times.values()))
    reasons = tuple(_reasons(law, main, times))
    rate = law.rate
    return Prediction(
        parameters=parameters,
        tokens=tokens,
        flops=flops,
        chosen=chosen,
        loss=None if reasons else loss,
        low=None if miss is None else min(loss * (1 - miss), *(span.low for span in spans)),
        high=None if miss is None else max(loss * (1 + miss), *(span.high for span in spans)),
        reasons=reasons,
        by_form=ranges,
        best_parameters=_best(main.fitted, factor, flops) if len(chosen) == 2 and miss is not None else None,
        learning_rate=rate[0] * parameters ** rate[1] if rate is not None else None,
    )


def _range(law: Law, fitted: Fitted, logs: Floats) -> Range:
    """With the scatter of the runs about the law, as another run would have it."""
    value = float(fitted.losses(logs)[0])
    points = fitted_to(fitted.form, law.points)
    scatter = np.log(points.losses / fitted.losses(points.logs))
    sampled = np.array([fitted.losses(logs, theta)[0] for theta in fitted.samples] or [value])
    low, high = np.percentile(np.outer(sampled, np.exp(scatter)), _PERCENTILES)
    return Range(value, min(value, float(low)), max(value, float(high)))


def _best(fitted: Fitted, factor: float, flops: float) -> Range:
    value = best_parameters(fitted, factor, flops)
    sampled = [best_parameters(fitted, factor, flops, theta) for theta in fitted.samples] or [value]
    low, high = np.percentile(sampled, _PERCENTILES)
    return Range(value, float(low), float(high))


def _passed(one: Tested) -> bool:
    return one.backtest is not None and one.backtest.miss <= MISS


def _check_least(law: Law, run: Mapping[str, float]) -> None:
    """Raises ConfigError for a run that is far smaller than those of the law, also where the law has chosen it so."""
    for name, value in run.items():
        low, _ = _bounds(law, name)
        if value < low * (1 - 1e-9):
            raise ConfigError(
                f"that run has {name} of {value:.3g}, less than a tenth of the smallest run's: the law is asked from "
                f"{low:.3g} on"
            )


def _times_beyond(law: Law, run: Mapping[str, float]) -> dict[str, float]:
    """Multiple of the largest run, of each quantity."""
    largest = law.points.logs.max(axis=1)
    most = dict(zip(("parameters", "tokens", "compute"), np.exp(largest), strict=True))
    return {name: float(value / most[name]) for name, value in run.items()}


def _expected_miss(main: Tested, times: float) -> float | None:
    """Expected error: the backtest's largest, multiplied, where this goes further than the backtest did, by the ratio
    of both in logarithms; 0.9 at most. None without a backtest."""
    if main.backtest is None:
        return None
    reach = math.log(max(times, 1.0))
    tested = math.log(max(main.backtest.further, math.e**0.5))
    return min(main.backtest.miss * max(1.0, reach / tested), 0.9)


def _reasons(law: Law, main: Tested, times: Mapping[str, float]) -> list[str]:
    reasons = []
    if main.backtest is None:
        reasons.append(f"there is no backtest: {main.untested}")
    elif main.backtest.miss > MISS:
        reasons.append(
            f"fitted without the largest runs, the law misses them by up to {100 * main.backtest.miss:.1f}%, more than "
            f"{100 * MISS:g}%"
        )
    if (why := why_unknown(main.fitted, law.points)) is not None:
        reasons.append(why)
    reasons += [
        f"this is {multiple:,.0f} times the {name} of the largest run, further than {FURTHEST} times"
        for name, multiple in times.items()
        if multiple > FURTHEST
    ]
    return reasons
