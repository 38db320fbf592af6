"""Backtest of a form: it is fitted without the largest runs, and then predicts them."""

from dataclasses import dataclass

from pretrain.errors import ConfigError
from pretrain.scaling.fit import fit, fitted_to
from pretrain.scaling.forms import Form
from pretrain.scaling.points import Points, RunPoint

MISS = 0.02
"""Largest relative error of the loss: a law that misses the largest runs by more gives no single number."""
_FURTHER = 1.5
"""Least multiple of the compute of the smaller sizes that makes the largest size an extrapolation."""


@dataclass(frozen=True)
class Judged:
    """One run that was left out."""

    run: RunPoint
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.run.loss - 1


@dataclass(frozen=True)
class Backtest:
    rows: tuple[Judged, ...]
    further: float
    """compute of the largest run left out, as a multiple of that of the largest run fitted"""

    @property
    def miss(self) -> float:
        """Largest error."""
        return max(abs(row.error) for row in self.rows)

    @property
    def mean_miss(self) -> float:
        return sum(abs(row.error) for row in self.rows) / len(self.rows)


def split(points: Points) -> tuple[Points, Points]:
    """Runs that are fitted, and runs that are left out: the largest size; where that was trained with no more compute
    than smaller ones, as at a few fixed budgets, every run with more than a third of the most compute. Raises
    ConfigError where there is one size alone."""
    *smaller, largest = points.rungs()
    if not smaller:
        raise ConfigError("all runs are of one size: without a second one nothing can be said about larger ones")
    rest = Points(tuple(run for rung in smaller for run in rung.runs))
    if largest.most_flops > _FURTHER * rest.most_flops:
        return rest, largest
    limit = points.most_flops / 3
    return points.where(lambda run: run.flops <= limit), points.where(lambda run: run.flops > limit)


def backtest(form: Form, points: Points) -> Backtest:
    """Raises ConfigError where the smaller rungs are too few to fit the form to."""
    smaller, largest = split(points)
    try:
        fitted = fit(form, smaller)
    except ConfigError as error:
        raise ConfigError(f"without the largest runs, {error}") from None
    judged = fitted_to(form, largest)
    predicted = fitted.losses(judged.logs)
    rows = tuple(Judged(run, float(loss)) for run, loss in zip(judged.runs, predicted, strict=True))
    return Backtest(rows, largest.most_flops / smaller.most_flops)
