"""Calibration: the speed factor of a software stack, from the measured steps of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from pretrain.config.load import load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.layout.names import short_name
from pretrain.plan.device import find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import StackFactor, StackFile, constants_on, fitted_stacks
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.run_dir.paths import RunDir
from pretrain.run_dir.records import read_events, read_metrics

_MIN_STEPS = 10  # of fewer, the median says little
_WARMUP_STEPS = 3  # first steps of a start, which allocate and load kernels
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


def calibrate_run(run: Path, hardware: str, per_node: int | None) -> Calibration:
    """Calibrates from the last start of the run in the directory `run`, as `calibrate` does. Raises ConfigError if it
    has not started."""
    config, lines, ranks, first_step = load(RunConfig, RunDir(run).config), read_metrics(run), None, 0
    for event in read_events(run):
        if event["event"] == "started":
            ranks, first_step = event["ranks"], 0
        elif event["event"] == "resumed":
            first_step = event["step"]
    if ranks is None:
        raise ConfigError(f"{run} is no run that has started: give a run directory")
    last_start = [line for line in lines if line["step"] > first_step]
    return calibrate(config, ranks, last_start, hardware, per_node)


def calibrate(
    config: RunConfig, ranks: int, lines: Sequence[Mapping[str, Any]], hardware: str, per_node: int | None
) -> Calibration:
    """Calibrates from the lines of metrics.jsonl of one start of `config` on `ranks` devices, `per_node` to a node
    (default: as many as the hardware's file says). Raises ConfigError for too few steps, and for steps so short that no
    factor explains them."""
    device, layout = find_device(hardware), plan_layout(config, ranks)
    seconds = _full_steps(config, lines)
    if len(seconds) < _MIN_STEPS:
        raise ConfigError(
            f"only {len(seconds)} steps of the last start can be counted: {_MIN_STEPS} are needed, of full batches, "
            f"after the first {_WARMUP_STEPS}"
        )
    measured = float(np.median(seconds))
    per_node = min(per_node or device.devices, ranks)
    builder, c = WorkloadBuilder(config, device, per_node), constants_on(device, per_node)
    work = builder.build([LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)])

    def excess_s(factor: float) -> float:
        return float(step_seconds(work, c, factor).total[0]) - measured

    if excess_s(_FACTORS[0]) > 0:
        raise ConfigError(
            f"steps of {measured:.4g} s are shorter than what {hardware} is said to need for messages and waiting "
            f"alone, {excess_s(_FACTORS[0]) + measured:.4g} s: check its links and --gpus-per-node"
        )
    if excess_s(_FACTORS[1]) < 0:
        raise ConfigError(f"steps of {measured:.4g} s are no use of {hardware} that can be compared")
    factor = float(brentq(excess_s, *_FACTORS, rtol=1e-6))
    low, high = _spread()
    first, third = np.quantile(seconds, (0.25, 0.75))
    return Calibration(
        stack=StackFactor(factor, low, high),
        layout=layout,
        steps=len(seconds),
        seconds=measured,
        quartiles=(float(first), float(third)),
        estimate=excess_s(1.0) + measured,
    )


def _full_steps(config: RunConfig, lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of each step of a start that had a full batch, without the warm-up steps at its beginning."""
    return [
        float(line["step_seconds"])
        for before, line in zip(lines[_WARMUP_STEPS - 1 :], lines[_WARMUP_STEPS:], strict=False)
        if line["samples"] - before["samples"] == config.batch.sequences
    ]


def _spread() -> tuple[float, float]:
    """Error band (low, high) of estimates for other layouts and models once a stack's factor is known: the median over
    the stacks that come with the package."""
    known = [stack for name, stack in fitted_stacks().items() if name != "unknown"]
    return float(np.median([stack.low for stack in known])), float(np.median([stack.high for stack in known]))
