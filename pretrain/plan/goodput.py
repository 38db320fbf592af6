"""Goodput of a long run on nodes that fail, and the best interval between checkpoints. Plain arithmetic."""

import math
from dataclasses import dataclass

FAILURES_PER_GPU_HOUR = 419 / (54 * 24 * 16_384)
"""unexpected interruptions of Llama 3's training: Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.4"""

_DAY_S = 86_400
_NEVER = 1e-6  # failures a day: once in 2,700 years


@dataclass(frozen=True)
class Failures:
    """Expected failures of a cluster, and what saving and restarting take."""

    save_s: float = 10.0
    """seconds that training pauses for each checkpoint"""
    restart_s: float = 600.0
    """seconds from a failure to the next step"""
    per_gpu_hour: float | None = None
    """failures per GPU-hour; None: the rate of Llama 3"""


@dataclass(frozen=True)
class Goodput:
    """Goodput of a run that saves every `every_steps` steps."""

    every_steps: int
    share: float
    """share of the time spent on steps that are not lost to a failure"""
    failures_per_day: float


def best_goodput(step_s: float, gpus: int, failures: Failures) -> Goodput:
    """The number of steps between checkpoints that loses least: around sqrt(2 save_s / rate) seconds (Young 1974, "A
    first order approximation to the optimum checkpoint interval"), in whole steps."""
    per_hour = FAILURES_PER_GPU_HOUR if failures.per_gpu_hour is None else failures.per_gpu_hour
    rate = per_hour * gpus / 3600
    if rate * _DAY_S < _NEVER:
        return Goodput(max(1, round(_DAY_S / step_s)), 1.0, 0.0)
    middle = math.sqrt(2 * max(failures.save_s, step_s * 1e-3) / rate) / step_s
    tried = {max(1, round(middle * 1.02**k)) for k in range(-60, 61)}
    share, every = max((goodput(n * step_s, failures.save_s, failures.restart_s, rate), -n) for n in tried)
    return Goodput(-every, share, rate * _DAY_S)


def goodput(work_s: float, save_s: float, restart_s: float, failures_per_s: float) -> float:
    """Share of the time that is work when a checkpoint follows every `work_s` seconds of it and failures come at any
    moment, at a rate: the expected time until work and save are through without one is (1 / rate + restart) (exp(rate
    (work + save)) - 1) (Daly 2006, "A higher order estimate of the optimum checkpoint interval", equation 13)."""
    if failures_per_s == 0:
        return work_s / (work_s + save_s)
    exponent = failures_per_s * (work_s + save_s)
    if exponent > 500:
        return 0.0
    return work_s / ((1 / failures_per_s + restart_s) * math.expm1(exponent))
