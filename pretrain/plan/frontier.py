"""Pareto frontiers: seconds of a step against memory, and cost against days."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from pretrain.errors import ConfigError
from pretrain.plan.estimate.entries import Array
from pretrain.plan.goodput import Failures, best_goodput
from pretrain.plan.plan_report import Plan, figures
from pretrain.plan.search import estimate, every_choice, search

_GIB = 2**30
_HALVINGS, _DOUBLINGS = 4, 2
_TICKS = 12  # on an axis, at most: of more powers of ten, not each has one
_NAMED = 6  # points that have their layout beside them


def picture(plan: Plan, failures: Failures, path: Path) -> None:
    """Writes a PNG of two charts. Left: every way to lay the run over these devices, and those that nothing beats in
    both seconds and memory. Right: the fastest on fewer and on more devices."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    choices = list(every_choice(plan.config, plan.gpus, plan.per_node))
    seconds, held, limit = estimate(plan.config, plan.device, plan.per_node, choices, plan.stack)
    gib, total = held.fullest / _GIB, seconds.total
    best = unbeaten(total, gib)
    left.scatter(gib, total, s=5, color="0.75", label=f"{len(choices):,} ways", rasterized=True)
    left.plot(gib[best], total[best], "o-", ms=4, color="C0", label="not beaten in both")
    left.axvline(limit / _GIB, color="C3", lw=1, label=f"{plan.hardware} has")
    for index in best[np.linspace(0, len(best) - 1, min(_NAMED, len(best))).round().astype(int)]:
        name = f"{choices[index].layout} x {choices[index].micro_sequences}"
        left.annotate(name, (gib[index], total[index]), xytext=(4, 3), textcoords="offset points", fontsize=6)
    left.set(xlabel="GiB of the fullest rank", ylabel="seconds of a step", xscale="log", yscale="log")
    left.legend(fontsize=7)
    rows = by_devices(plan, failures)
    money = rows[0]["cost"] is not None
    days, costs = (np.array([row[key] for row in rows]) for key in ("days", "cost" if money else "gpu_hours"))
    right.plot(days, costs, "o-", ms=4, color="C0")
    for row, day, cost in zip(rows, days, costs, strict=True):
        right.annotate(f"{row['gpus']:,}", (day, cost), xytext=(4, 3), textcoords="offset points", fontsize=7)
    right.set(xlabel="days", ylabel="cost" if money else "GPU-hours", xscale="log", ylim=(0, 1.1 * costs.max()))
    for axis in (left.xaxis, left.yaxis, right.xaxis):
        _few_ticks(axis)
    right.set_title(f"by number of {plan.hardware}", fontsize=9)
    figure.savefig(path, dpi=120)


def _few_ticks(axis: Axis) -> None:
    """At 1, 2 and 5 of each power of ten, in plain numbers: those between would be written over each other."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=_TICKS))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def unbeaten(seconds: Array, memory: Array) -> NDArray[np.int64]:
    """Indices of the entries for which no other is both faster and smaller, from the smallest on."""
    order = np.lexsort((seconds, memory))
    fastest = np.minimum.accumulate(seconds[order])
    first = np.concatenate([[True], fastest[1:] < fastest[:-1]])
    chosen: NDArray[np.int64] = order[first]
    return chosen


def by_devices(plan: Plan, failures: Failures) -> list[dict[str, float]]:
    """Figures of the fastest option on half of the devices and so on, and on twice and four times as many, where there
    is a legal one that fits: the fewest first."""
    rows = []
    for power in range(-_HALVINGS, _DOUBLINGS + 1):
        gpus = plan.gpus * 2**power if power >= 0 else plan.gpus / 2**-power
        if gpus < 1 or gpus != int(gpus):
            continue
        per_node = min(plan.per_node, int(gpus))
        try:
            result = search(
                plan.config, plan.device, int(gpus), per_node=per_node, stack=plan.stack, target="throughput", top=1
            )
        except ConfigError:
            continue
        if result.options:
            goodput = best_goodput(result.options[0].seconds, int(gpus), failures)
            resized = replace(plan, gpus=int(gpus), per_node=per_node, result=result, goodput=goodput)
            rows.append(figures(resized, result.options[0]))
    return rows
