"""`pretrain profile RUN [--step N] [--hardware NAME] [--json]`"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from pretrain.commands.arguments import Parser, count
from pretrain.commands.output import print_lines
from pretrain.config.load import load
from pretrain.config.patterns.function import recorded_config
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.observe.step_memory import MemoryPeak, peak_of
from pretrain.observe.step_trace import EXCHANGE, OPTIMIZER, WAITING, StepSplit, load_trace, ordered, split_of
from pretrain.plan.device import find_device
from pretrain.plan.goodput import Failures
from pretrain.plan.plan_report import Prices
from pretrain.plan.planner import make_plan
from pretrain.run_dir.paths import RunDir

_NAME = re.compile(r"step-(\d+)-rank-(\d+)\.json\.gz")
_MOST_COLUMNS, _MOST_PLACES, _LEAST_SHOWN = 8, 16, 2**13
_EXCHANGES = {"tensor": "tensor", "context": "context", "expert": "expert", "data": "replicas", "stage": "update"}
"""group of an exchange -> part of a plan"""


def main(argv: list[str]) -> int:
    """Prints where profiled steps go. Raises ConfigError for a run without a trace."""
    parser = Parser(
        "profile",
        "Shows where a step goes, from the traces of a run with profile.steps: matrix products, attention, exchanges "
        "by group, optimizer, waiting. The traces open in https://ui.perfetto.dev and chrome://tracing as well.",
        ("runs/book", "runs/book --step 20 --hardware h100"),
    )
    parser.add_argument("run", type=Path, help="Run directory.")
    parser.add_argument("--step", type=count, help="Profiled step (default: the mean of all of them).")
    parser.add_argument(
        "--hardware",
        metavar="NAME",
        help="Hardware of the run, by name or as a YAML file: prints the planner's split beside the measured one.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, seconds of each rank.")
    options = parser.parse(argv)
    found = _traces(options.run, options.step)
    splits, peaks = list[StepSplit](), list[tuple[int, MemoryPeak]]()
    for step, path in found:
        trace = load_trace(path)
        splits.append(split_of(trace))
        peaks += [(step, peak)] if (peak := peak_of(trace)) is not None else []
    steps = sorted({step for step, _ in found})
    ranks = _means(splits)
    planned = None if options.hardware is None else _planned(options.run, options.hardware, splits[0].world)
    if options.json:
        record = {
            "steps": steps,
            "ranks": {rank: {"seconds": split.seconds, "hidden_s": split.hidden_s} for rank, split in ranks.items()},
            "planned": planned,
            "memory": [{"step": step, **vars(peak)} for step, peak in peaks],
        }
        print_lines([json.dumps(record, indent=1)])
    else:
        print_lines([*_table(options.run, steps, ranks, splits), *_beside(ranks, planned, options.hardware)])
        print_lines(line for step, peak in peaks[:_MOST_COLUMNS] for line in _held(step, peak))
    return 0


def _traces(run: Path, step: int | None) -> list[tuple[int, Path]]:
    if not run.is_dir():
        raise ConfigError(f"{run}: no such run")
    folder = RunDir(run).profile
    names = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.glob("*.json.gz")))
    found = [(int(name[1]), path) for name, path in names if name is not None]
    if not found:
        raise ConfigError(f"{run} has no profiled step: train with profile.steps=[N,...] first")
    kept = [(number, path) for number, path in found if step in (None, number)]
    if not kept:
        numbers = ", ".join(str(number) for number in sorted({number for number, _ in found}))
        raise ConfigError(f"step {step} of {run} was not profiled: name one of {numbers}")
    return kept


def _means(splits: Sequence[StepSplit]) -> dict[int, StepSplit]:
    """The mean step of each rank."""
    by_rank: dict[int, list[StepSplit]] = defaultdict(list)
    for split in splits:
        by_rank[split.rank].append(split)
    return {
        rank: StepSplit(
            rank=rank,
            world=some[0].world,
            on_gpu=some[0].on_gpu,
            seconds={
                name: mean(one.seconds.get(name, 0.0) for one in some)
                for name in ordered(name for one in some for name in one.seconds)
            },
            hidden_s=mean(one.hidden_s for one in some),
        )
        for rank, some in sorted(by_rank.items())
    }


def _table(
    run: Path, steps: Sequence[int], ranks: Mapping[int, StepSplit], splits: Sequence[StepSplit]
) -> Iterator[str]:
    shown = list(ranks.values())[:_MOST_COLUMNS]
    what = f"step {steps[0]}" if len(steps) == 1 else f"mean of steps {', '.join(map(str, steps))}"
    yield f"{run}, {what}, milliseconds and share of the step on {_ranks(splits[0].world)}"
    yield f"{'':<24}" + "".join(f"{f'rank {split.rank}':>18}" for split in shown)
    for name in ordered(name for split in shown for name in split.seconds):
        yield f"{name:<24}" + "".join(_cell(split.seconds.get(name, 0.0), split.total) for split in shown)
    yield f"{'step':<24}" + "".join(f"{split.total * 1e3:>11,.1f}{'':7}" for split in shown).rstrip()
    if any(split.hidden_s for split in shown):
        yield f"{'exchanges hidden behind':<24}" + "".join(_cell(split.hidden_s, split.total) for split in shown)
    if len(ranks) > len(shown):
        yield f"{len(ranks) - len(shown)} more ranks: --json has all"


def _held(step: int, peak: MemoryPeak) -> Iterator[str]:
    """Lines on the memory at the peak of one step of one rank, by what holds it."""
    rows = [row for row in peak.by_place.items() if row[1] >= _LEAST_SHOWN]
    shown = [] if peak.before is None else [("held from before the step", peak.before)]
    shown += rows[:_MOST_PLACES]
    if rest := sum(peak.by_place.values()) - sum(held for _, held in rows[:_MOST_PLACES]):
        shown.append((f"{len(peak.by_place) - len(rows[:_MOST_PLACES])} more (--json has all)", rest))
    yield ""
    yield f"MiB at the peak of step {step} on rank {peak.rank}, in {peak.phase}"
    for place, held in shown:
        yield f"{place:<56}{held / 2**20:>12,.2f}"
    total = "peak" if peak.on_gpu else "in all, besides what was held before the step"
    yield f"{total:<56}{sum(held for _, held in shown) / 2**20:>12,.2f}"


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _cell(seconds: float, total: float) -> str:
    return f"{seconds * 1e3:>11,.1f}{seconds / total:>7.1%}"


def _planned(run: Path, hardware: str, world: int) -> dict[str, float]:
    """Seconds of a step by the planner's parts."""
    with recorded_config():
        config = load(RunConfig, RunDir(run).config)
    per_node = math.gcd(world, find_device(hardware).devices)  # as nodes of the hardware may not be those of the run
    plan = make_plan(
        config, hardware, world, per_node=per_node, stack_name="unknown", target="throughput", top=1,
        prices=Prices(None, None), failures=Failures(), as_is=True,
    )  # fmt: skip
    return plan.result.options[0].parts


def _beside(ranks: Mapping[int, StepSplit], planned: Mapping[str, float] | None, hardware: str | None) -> Iterator[str]:
    """The mean of the ranks beside the plan, in parts that both have."""
    if planned is None:
        return
    measured: dict[str, float] = defaultdict(float)
    for split in ranks.values():
        for name, seconds in split.seconds.items():
            measured[_part_of(name)] += seconds / len(ranks)
    parts: dict[str, float] = defaultdict(float)
    for name, seconds in planned.items():
        part = "pipeline" if name == "bubble" else "compute" if name in ("recompute", "head") else name
        parts[part] += seconds
    yield ""
    yield f"{'milliseconds':<24}{'measured':>12}{f'planned, {hardware}':>24}"
    for part in _PARTS:
        yield f"{_PARTS[part]:<24}{measured[part] * 1e3:>12,.1f}{parts[part] * 1e3:>24,.1f}"
    yield f"{'step':<24}{sum(measured.values()) * 1e3:>12,.1f}{sum(planned.values()) * 1e3:>24,.1f}"


_PARTS = {
    "compute": "computing",
    "tensor": "tensor exchanges",
    "context": "context exchanges",
    "expert": "expert exchanges",
    "pipeline": "pipeline and waiting",
    "replicas": "gradients, weights",
    "update": "optimizer",
    "rest": "rest",
}


def _part_of(name: str) -> str:
    """Part of a plan that a category of a trace belongs to."""
    if name.startswith(EXCHANGE):
        group = name.removeprefix(EXCHANGE)
        return "pipeline" if group == "pipeline" else _EXCHANGES.get(group, "rest")
    return {OPTIMIZER: "update", WAITING: "pipeline", "data": "rest"}.get(name, "compute")
