"""Fits a form to points, as Chinchilla's third approach does: the sum of Huber losses of the errors of log loss, made
small by L-BFGS; here from the best starts that variable projection finds. And again on resampled points (bootstrap).

The sum, not the mean: divided by the number of points it is so small that an optimizer stops early.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from pretrain.errors import ConfigError
from pretrain.scaling.forms import Form
from pretrain.scaling.points import Floats, Points

HUBER = 1e-3  # Hoffmann et al. 2022, appendix D.2
_STARTS = 3
_VARIED = 0.02  # of logarithms
_SAMPLE_STEPS = (
    300  # of L-BFGS, from the constants of all points: what is left to gain is far less than samples differ by
)
_DRAWS = 50  # until a sample of the points can be fitted


@dataclass(frozen=True)
class Fitted:
    """A form with its constants."""

    form: Form
    theta: Floats
    centre: Floats
    """centre of the logarithms of N, D and C"""
    objective: float
    """sum of Huber losses, delta = 1e-3"""
    samples: Floats
    """theta of each bootstrap sample: [samples, constants]; there may be none"""

    @property
    def constants(self) -> dict[str, float]:
        return dict(zip(self.form.names, self.form.constants(self.theta, self.centre), strict=True))

    def losses(self, logs: Floats, theta: Floats | None = None) -> Floats:
        """Predicted for the logarithms of N, D and C: [3, points] -> [points]."""
        return np.exp(self.form.evaluate(self.theta if theta is None else theta, logs - self.centre[:, None])[0])

    def interval(self, name: str) -> tuple[float, float]:
        """Interval in which a constant lies in 95% of the bootstrap samples."""
        at = self.form.names.index(name)
        values = [self.form.constants(theta, self.centre)[at] for theta in self.samples]
        low, high = np.percentile(values, [2.5, 97.5])
        return float(low), float(high)


def fit(form: Form, points: Points, samples: int = 0, seed: int = 0) -> Fitted:
    """Raises ConfigError where there are no more points than constants, or they differ in too little."""
    points = fitted_to(form, points)
    constants = len(form.names)
    if len(points) <= constants:
        raise ConfigError(
            f"{form.formula} has {constants} constants, and there are {len(points)} points "
            f"{'that no other one beats with less compute ' if form.of_compute else ''}for it: {constants + 1} or "
            "more are needed"
        )
    if not form.of_compute and not _varied(points):
        raise ConfigError(
            f"{form.formula} cannot be fitted to these {len(points)} points, as their tokens follow from their sizes: "
            "two or more sizes, each with several numbers of tokens, are needed"
        )
    logs, losses = points.logs, points.losses
    centre: Floats = logs.mean(axis=1)
    x = logs - centre[:, None]
    starts = sorted(form.starts(x, losses), key=lambda theta: _objective(theta, form, x, losses)[0])[:_STARTS]
    theta, objective = min((_descend(form, start, x, losses) for start in starts), key=lambda descent: descent[1])
    return Fitted(
        form, theta, centre, objective, _resampled(form, theta, points, centre=centre, samples=samples, seed=seed)
    )


def fitted_to(form: Form, points: Points) -> Points:
    """Points that a form applies to: all of them or, for a form of compute, those on the frontier."""
    if not form.of_compute:
        return points
    best, frontier = float("inf"), []
    for run in sorted(points.runs, key=lambda run: (run.flops, run.loss)):
        if run.loss < best:
            best = run.loss
            frontier.append(run)
    return Points(tuple(frontier))


def _varied(points: Points) -> bool:
    """Whether sizes differ, and tokens do at one size: of log N and log D neither is a straight line of the other."""
    sizes, tokens, _ = points.logs - points.logs.mean(axis=1, keepdims=True)
    spread = float(sizes @ sizes)
    residual = tokens - sizes * float(sizes @ tokens) / spread if spread else tokens
    return bool(np.std(sizes) > _VARIED and np.std(residual) > _VARIED)


def _objective(theta: Floats, form: Form, x: Floats, losses: Floats) -> tuple[float, Floats]:
    """Sum of Huber losses in units of delta^2, and its gradient."""
    y, derivatives = form.evaluate(theta, x)
    error = (y - np.log(losses)) / HUBER
    size = np.abs(error)
    value = np.where(size <= 1, 0.5 * error**2, size - 0.5).sum()
    return float(value), derivatives @ np.clip(error, -1, 1) / HUBER


def _descend(
    form: Form, start: Floats, x: Floats, losses: Floats, steps: int = 3000
) -> tuple[Floats, float]:  # fmt: skip
    scale = HUBER  # gradients of order one
    result = minimize(
        lambda theta: tuple(scale * part for part in _objective(theta, form, x, losses)),
        start, jac=True, method="L-BFGS-B", bounds=form.bounds,
        options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-13, "gtol": 1e-9},
    )  # fmt: skip
    return result.x, float(result.fun) / scale * HUBER**2


def _resampled(form: Form, theta: Floats, points: Points, *, centre: Floats, samples: int, seed: int) -> Floats:
    """theta for points drawn with replacement: [samples, constants]."""
    draw = np.random.default_rng(seed)
    logs, losses = points.logs - centre[:, None], points.losses
    thetas = []
    for _ in range(samples):
        for _ in range(_DRAWS):
            numbers = draw.integers(len(points), size=len(points))
            if len(set(numbers)) > len(form.names) and (form.of_compute or _varied(points.chosen(numbers))):
                break
        else:
            continue  # hardly any sample of so few points has something to fit
        thetas.append(_descend(form, theta, logs[:, numbers], losses[numbers], _SAMPLE_STEPS)[0])
    return np.array(thetas).reshape(-1, len(form.names))
