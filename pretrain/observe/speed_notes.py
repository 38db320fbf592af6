"""Sentences of a start about its speed: the time that its first step spent on compiling kernels, and after some steps
its MFU beside what the planner expects and what a run of such a model reached."""

import os
import statistics
from collections.abc import Iterator

from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout
from pretrain.process import compilation

_MUCH_COMPILING_S = 1.0
_STEPS = 50
"""until MFU is compared"""
_WARM_UP = 10
"""first steps of a start, which compile and fill caches"""
_SLOW = 0.75
"""share of a measured MFU below which a run that is not planned is slow"""


class SpeedNotes:
    """Sentences about the speed of a start, each once."""

    def __init__(self, config: RunConfig, layout: Layout, device_name: str) -> None:
        self._config, self._layout, self._device_name = config, layout, device_name
        self._steps, self._compiled_before_s = 0, compilation.seconds()
        self._found: list[float] = []
        """MFU of each step so far"""

    def after(self, step: int, seconds: float, mfu: float | None) -> Iterator[str]:
        """Sentences that are due after a step, of any number, which took `seconds`."""
        self._steps += 1
        compiling_s = compilation.seconds() - self._compiled_before_s
        if self._steps == 1 and compiling_s >= _MUCH_COMPILING_S:
            yield (
                f"step {step:,} took {seconds:.1f} s. Compiling kernels has taken {compiling_s:.1f} s; later starts "
                f"find them in {' and '.join(compilation.folders())}"
            )
        if mfu is None or len(self._found) == _STEPS:
            return
        self._found.append(mfu)
        if len(self._found) == _STEPS and (comparison := self._comparison(statistics.median(self._found[_WARM_UP:]))):
            yield comparison

    def _comparison(self, mfu: float) -> str | None:
        """None where there is nothing to compare with. The planner takes a fraction of a second."""
        # Imported now: most runs are over or on a CPU before they need these.
        from pretrain.plan.hardware import hardware_name
        from pretrain.plan.measured_steps import nearest_step

        hardware = hardware_name(self._device_name)
        if hardware is None:
            return None
        planned, row = self._planned(hardware), nearest_step(self._config, hardware)
        slow, others = 0.0, []
        if row is not None:
            slow = _SLOW * row.mfu
            others.append(f"{row.case} reached {row.mfu:.1%} on one {row.hardware}")
        if planned is not None:
            slow, expected, high = planned
            others.insert(0, f"the plan expects {expected:.1%} ({slow:.0%} to {high:.0%} in 8 of 10 runs)")
        if not others:
            return None
        hint = ". docs/performance.md has what slows a step" if mfu < slow else ""
        return f"speed: MFU {mfu:.1%}, the median of {_STEPS - _WARM_UP} steps; {'; '.join(others)}{hint}"

    def _planned(self, hardware: str) -> tuple[float, float, float] | None:
        """MFU that 8 of 10 runs reach at least, expected MFU, and MFU that 8 of 10 reach at most; None of a model that
        is not planned, or does not fit by plan."""
        from pretrain.plan.goodput import Failures
        from pretrain.plan.plan_report import Prices, figures
        from pretrain.plan.planner import make_plan

        world = self._layout.world
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        try:
            plan = make_plan(
                self._config,
                hardware,
                world,
                per_node=per_node,
                stack_name="unknown",
                target="throughput",
                top=1,
                prices=Prices(None, None),
                failures=Failures(),
                as_is=True,
            )
        except ConfigError:
            return None
        row = figures(plan, plan.result.options[0])
        slowest, fastest = (row["mfu"] * row["step_s"] / seconds for seconds in reversed(row["step_s_between"]))
        return slowest, row["mfu"], fastest
