"""The best size for some compute by a form with its constants, and whether its fit tells one."""

import math

import numpy as np

from pretrain.errors import ConfigError
from pretrain.scaling.fit import HUBER, Fitted
from pretrain.scaling.points import Floats, Points

_SEARCHED = np.linspace(-12, 12, 4801)  # of log N about that with as many tokens as parameters
_TOLD_APART = 3
"""times the runs' median distance from the law: what losses fall by at least, from one end of the runs to the other"""
_AT_BOUND = 1e-3  # relative


def best_parameters(fitted: Fitted, factor: float, flops: float, theta: Floats | None = None) -> float:
    """The size of least loss at `flops` = factor x parameters x tokens."""
    middle = 0.5 * math.log(flops / factor)
    sizes = middle + _SEARCHED
    logs = np.array([sizes, 2 * middle - sizes, np.full_like(sizes, math.log(flops))])
    return float(np.exp(sizes[np.argmin(fitted.losses(logs, theta))]))


def flops_where_best(fitted: Fitted, factor: float, parameters: float | None, tokens: float | None) -> float:
    """The compute for which this size, or this many tokens, is best."""

    def too_little(flops: float) -> bool:
        best = best_parameters(fitted, factor, flops)
        return best < parameters if parameters is not None else flops / (factor * best) < (tokens or 0)

    scale = parameters or tokens or 1
    low, high = math.log(factor) + 2 * math.log(scale) - 11, math.log(factor) + 2 * math.log(scale) + 11
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if too_little(math.exp(middle)) else (low, middle)
    return math.exp(high)


def why_unknown(fitted: Fitted, points: Points) -> str | None:
    """Why a form of size and tokens tells no best size of these points: losses that do not fall with both, or an
    exponent that only the bounds of its fit hold. None if it tells one."""
    logs = points.logs
    scatter = float(np.median(np.abs(np.log(points.losses / fitted.losses(logs)))))
    for at, name in ((0, "size"), (1, "tokens")):
        ends = np.repeat(fitted.centre[:, None], 2, axis=1)
        ends[at] = logs[at].min(), logs[at].max()
        small, large = np.log(fitted.losses(ends))
        if small - large <= max(_TOLD_APART * scatter, HUBER):
            return f"losses of the runs do not fall with {name} by more than they scatter"
    for name, value, (low, high) in zip(fitted.form.names, fitted.theta, fitted.form.bounds, strict=True):
        if low is None or high is None:
            continue  # a coefficient
        if value <= low * (1 + _AT_BOUND) or value >= high * (1 - _AT_BOUND):
            return f"{name} of {fitted.form.formula} lies at a bound of its fit ({fitted.constants[name]:.3g})"
    return None


def check_known(fitted: Fitted, points: Points, origin: str) -> None:
    """Raises ConfigError where no best size is known."""
    if (why := why_unknown(fitted, points)) is not None:
        raise ConfigError(
            f"{origin} tells no best size, as {why}: ask with --parameters and --tokens together, or fit to more runs"
        )
