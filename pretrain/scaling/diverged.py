"""Runs whose loss is so far above a law that they may have diverged."""

import numpy as np

from pretrain.errors import ConfigError
from pretrain.scaling.fit import Fitted, fit, fitted_to
from pretrain.scaling.points import Points, RunPoint

_ABOVE = 0.05  # of log loss
_TIMES = 10  # the runs' median distance from the law


def diverged(fitted: Fitted, points: Points) -> list[str]:
    """A sentence on each run whose loss is more than 5%, and more than ten times the median distance of all runs, above
    the law. The run of highest loss, towards which a law bends where it is the smallest one, is compared with a fit to
    the others, if these are enough."""
    points = fitted_to(fitted.form, points)
    above, limit = _above(fitted, points, points)
    highest = max(range(len(points)), key=lambda number: points.runs[number].loss)
    if above[highest] <= limit:
        others = Points(tuple(run for number, run in enumerate(points.runs) if number != highest))
        try:
            of_others = fit(fitted.form, others)
        except ConfigError:
            pass
        else:
            (of_highest,), limit_of_others = _above(of_others, Points((points.runs[highest],)), others)
            if of_highest > limit_of_others:
                return [_sentence(points.runs[highest], of_highest)]
    return [_sentence(run, by) for run, by in zip(points.runs, above, strict=True) if by > limit]


def _above(fitted: Fitted, judged: Points, points: Points) -> tuple[list[float], float]:
    """Distances of the judged runs above the law, in log loss, and the limit by the scatter of `points`."""
    scatter = float(np.median(np.abs(np.log(points.losses / fitted.losses(points.logs)))))
    above = np.log(judged.losses / fitted.losses(judged.logs))
    return [float(one) for one in above], max(_ABOVE, _TIMES * scatter)


def _sentence(run: RunPoint, above: float) -> str:
    return (
        f"{run.called} has a loss of {run.loss:.4g}, {100 * np.expm1(above):.0f}% above the law of the others, as if "
        "it had diverged: leave it out"
    )
