"""Calibration: the speed factor of a software stack, from the measured steps of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.layout.names import short_name
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import StackFactor, StackFile, constants_on, fitted_stacks
from pretrain.plan.estimate.seconds import step_seconds

LEAST = 10  # steps, or their median says little
_WARMING = 3  # first steps of a start, which allocate and load kernels
_FACTORS = 1e-3, 1e4


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Speed factor of a run's software stack, and the measured steps that it comes from."""

    stack: StackFactor
    layout: Layout
    steps: int
    """number of steps that were counted"""
    seconds: float
    """median seconds of these steps"""
    quartiles: tuple[float, float]
    estimate: float
    """estimated seconds of a step with a factor of 1, which assumes nothing about the software"""

    def file(self, run: str, hardware: str) -> StackFile:
        """File that `--stack` reads."""
        source = f"{self.steps} steps of {run} on {short_name(self.layout)}, {hardware}: median {self.seconds:.4g} s"
        return StackFile(source=source, factor=self.stack.factor, low=self.stack.low, high=self.stack.high)


def calibrated(
    config: RunConfig, ranks: int, lines: Sequence[Mapping[str, Any]], hardware: str, per_node: int | None
) -> Calibration:
    """Calibrates from the lines of metrics.jsonl of one start of `config` on `ranks` devices, `per_node` to a node
    (default: as many as the hardware's file says). Raises ConfigError for too few steps, and for steps so short that no
    factor explains them."""
    device, layout = find_device(hardware), plan_layout(config, ranks)
    seconds = _full_steps(config, lines)
    if len(seconds) < LEAST:
        raise ConfigError(
            f"only {len(seconds)} steps of the last start can be counted: {LEAST} are needed, of whole batches, after "
            f"the first {_WARMING}"
        )
    measured = float(np.median(seconds))
    per_node = min(per_node or device.devices, ranks)
    builder, c = WorkloadBuilder(config, device, per_node), constants_on(device, per_node)
    work = builder.build([LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)])

    def beyond(factor: float) -> float:
        return float(step_seconds(work, c, factor).total[0]) - measured

    if beyond(_FACTORS[0]) > 0:
        raise ConfigError(
            f"steps of {measured:.4g} s are shorter than what {hardware} is said to need for messages and waiting "
            f"alone, {beyond(_FACTORS[0]) + measured:.4g} s: check its links and --gpus-per-node"
        )
    if beyond(_FACTORS[1]) < 0:
        raise ConfigError(f"steps of {measured:.4g} s are no use of {hardware} that can be compared")
    factor = float(brentq(beyond, *_FACTORS, rtol=1e-6))
    low, high = _spread()
    first, third = np.quantile(seconds, (0.25, 0.75))
    return Calibration(
        stack=StackFactor(factor, low, high),
        layout=layout,
        steps=len(seconds),
        seconds=measured,
        quartiles=(float(first), float(third)),
        estimate=beyond(1.0) + measured,
    )


def _full_steps(config: RunConfig, lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each step of a start that had a full batch, without the warm-up steps at its beginning."""
    found = []
    for before, line in zip(lines[_WARMING - 1 :], lines[_WARMING:], strict=False):
        if line["samples"] - before["samples"] == config.batch.sequences:
            found.append(float(line["step_seconds"]))
    return found


def _spread() -> tuple[float, float]:
    """Error band (low, high) of estimates for other layouts and models once a stack's factor is known: the median over
    the stacks that come with the package."""
    known = [stack for name, stack in fitted_stacks().items() if name != "unknown"]
    return float(np.median([stack.low for stack in known])), float(np.median([stack.high for stack in known]))
