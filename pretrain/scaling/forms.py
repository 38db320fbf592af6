"""Forms of scaling laws: loss as a function of parameters N, tokens D or compute C.

Each gives the logarithm of the loss and its derivatives, so that residuals are relative errors. Logarithms are taken
about a centre (of the points that a law is fitted to): coefficients and exponents then hardly depend on each other, and
L-BFGS takes tens of steps instead of thousands.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.optimize import nnls

from pretrain.scaling.points import Floats

Bounds = tuple[tuple[float | None, float | None], ...]
_EXPONENT = (1e-3, 3.0)
_LEAST_LOG = -12.0  # of a coefficient about the centre: nothing, as a number whose logarithm is finite
_EXPONENTS = np.geomspace(0.05, 1.2, 14)


class Form(ABC):
    """One form of a scaling law. `x` are logarithms of N, D and C about their centre: [3, points]."""

    name: str
    formula: str
    source: str
    names: tuple[str, ...]
    """names of its constants"""
    bounds: Bounds
    """bounds of the fitted parameters, `theta`"""
    of_compute = False
    """Whether the form is a function of compute only, spent at its best."""

    @abstractmethod
    def evaluate(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        """Logarithm of the loss [points], and its derivatives by theta [constants, points]."""

    @abstractmethod
    def starts(self, x: Floats, losses: Floats) -> Iterator[Floats]:
        """Starting points of the fit, by variable projection. For exponents on a grid the rest is linear, and solved
        for."""

    @abstractmethod
    def constants(self, theta: Floats, centre: Floats) -> tuple[float, ...]:
        """Constants of the formula, in the order of `names`."""


class Chinchilla(Form):
    name = "chinchilla"
    formula = "E + A / N^alpha + B / D^beta"
    source = "Hoffmann et al. 2022, arXiv 2203.15556, approach 3"
    names = ("E", "A", "alpha", "B", "beta")
    bounds: Bounds = ((_LEAST_LOG, None), (_LEAST_LOG, None), _EXPONENT, (_LEAST_LOG, None), _EXPONENT)

    def evaluate(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        e, a, alpha, b, beta = theta
        n, d, _ = x
        y, (of_e, of_a, of_b) = _log_sum(np.array([np.full_like(n, e), a - alpha * n, b - beta * d]))
        return y, np.array([of_e, of_a, -n * of_a, of_b, -d * of_b])

    def starts(self, x: Floats, losses: Floats) -> Iterator[Floats]:
        for alpha, beta in product(_EXPONENTS, _EXPONENTS):
            e, a, b = _projected([np.zeros_like(x[0]), -alpha * x[0], -beta * x[1]], losses)
            yield np.array([e, a, alpha, b, beta])

    def constants(self, theta: Floats, centre: Floats) -> tuple[float, ...]:
        e, a, alpha, b, beta = map(float, theta)
        return math.exp(e), math.exp(a + alpha * centre[0]), alpha, math.exp(b + beta * centre[1]), beta


class SharedExponent(Form):
    name = "shared"
    formula = "E + A / N^alpha + B / D^alpha"
    source = "approach 3 with alpha = beta, as Muennighoff et al. 2023, arXiv 2305.16264"
    names = ("E", "A", "B", "alpha")
    bounds: Bounds = ((_LEAST_LOG, None), (_LEAST_LOG, None), (_LEAST_LOG, None), _EXPONENT)

    def evaluate(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        e, a, b, alpha = theta
        n, d, _ = x
        y, (of_e, of_a, of_b) = _log_sum(np.array([np.full_like(n, e), a - alpha * n, b - alpha * d]))
        return y, np.array([of_e, of_a, of_b, -n * of_a - d * of_b])

    def starts(self, x: Floats, losses: Floats) -> Iterator[Floats]:
        for alpha in _EXPONENTS:
            e, a, b = _projected([np.zeros_like(x[0]), -alpha * x[0], -alpha * x[1]], losses)
            yield np.array([e, a, b, alpha])

    def constants(self, theta: Floats, centre: Floats) -> tuple[float, ...]:
        e, a, b, alpha = map(float, theta)
        return math.exp(e), math.exp(a + alpha * centre[0]), math.exp(b + alpha * centre[1]), alpha


class Kaplan(Form):
    name = "kaplan"
    formula = "((Nc / N)^(alpha_N / alpha_D) + Dc / D)^alpha_D"
    source = "Kaplan et al. 2020, arXiv 2001.08361, equation 1.5: no loss is left at infinite size"
    names = ("Nc", "alpha_N", "Dc", "alpha_D")
    bounds: Bounds = ((None, None), (1e-2, 10.0), (None, None), (1e-2, 3.0))

    def evaluate(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        p, q, r, s = theta  # q: alpha_N / alpha_D, s: alpha_D
        n, d, _ = x
        y, (of_p, of_r) = _log_sum(np.array([p - q * n, r - d]))
        return s * y, np.array([s * of_p, -s * n * of_p, s * of_r, y])

    def starts(self, x: Floats, losses: Floats) -> Iterator[Floats]:
        middle = math.exp(float(np.log(losses).mean()))
        for q, s in product(np.geomspace(0.3, 3, 8), np.geomspace(0.04, 0.6, 8)):
            p, r = _projected([-q * x[0], -x[1]], (losses / middle) ** (1 / s))
            yield np.array([p + math.log(middle) / s, q, r + math.log(middle) / s, s])

    def constants(self, theta: Floats, centre: Floats) -> tuple[float, ...]:
        p, q, r, s = map(float, theta)
        return math.exp(min(centre[0] + p / q, 700)), q * s, math.exp(min(centre[1] + r, 700)), s


class OfCompute(Form):
    name = "compute"
    formula = "E + K / C^gamma"
    source = "of the runs that no other one beats with less compute; Kaplan et al. 2020's L(C), with a floor"
    names = ("E", "K", "gamma")
    bounds: Bounds = ((_LEAST_LOG, None), (_LEAST_LOG, None), _EXPONENT)
    of_compute = True

    def evaluate(self, theta: Floats, x: Floats) -> tuple[Floats, Floats]:
        e, k, gamma = theta
        c = x[2]
        y, (of_e, of_k) = _log_sum(np.array([np.full_like(c, e), k - gamma * c]))
        return y, np.array([of_e, of_k, -c * of_k])

    def starts(self, x: Floats, losses: Floats) -> Iterator[Floats]:
        for gamma in np.geomspace(0.02, 0.8, 14):
            e, k = _projected([np.zeros_like(x[2]), -gamma * x[2]], losses)
            yield np.array([e, k, gamma])

    def constants(self, theta: Floats, centre: Floats) -> tuple[float, ...]:
        e, k, gamma = map(float, theta)
        return math.exp(e), math.exp(k + gamma * centre[2]), gamma


FORMS: dict[str, Form] = {form.name: form for form in (Chinchilla(), SharedExponent(), Kaplan(), OfCompute())}


def _log_sum(terms: Floats) -> tuple[Floats, Floats]:
    """log(sum(exp(terms))) over the first axis, and the share of each term."""
    total = np.logaddexp.reduce(terms, axis=0)
    return total, np.exp(terms - total)


def _projected(logs: list[Floats], losses: Floats) -> list[float]:
    """Logarithms of the coefficients, none of them negative, with which the columns exp(logs) come nearest to the
    losses, in relative error."""
    columns = np.exp(np.array(logs)) / losses
    coefficients, _ = nnls(columns.T, np.ones_like(losses))
    return [math.log(value) if value > math.exp(_LEAST_LOG) else _LEAST_LOG for value in coefficients]
