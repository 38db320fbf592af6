"""Points that a scaling law is fitted to: finished runs, each with its size, its tokens and its loss. From a CSV file
here, from runs in `runs.py`.

A CSV has a line of names. Of each quantity one of these is looked for, in any case:
    parameters, n, params, model size | tokens, d | flops, c, training flop, compute | loss | name, run, model
"""

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrain.errors import ConfigError
from pretrain.pages.numbers import compact

_MOST = {"parameters": 1e30, "tokens": 1e30, "flops": 1e60, "loss": 1e3}  # that a run can have
FLOPS_PER_PARAMETER = 6  # and token: forward and backward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1)
_SAME_SIZE = math.log(1.1)  # sizes nearer to each other are one rung
_NAMES = {
    "parameters": ("parameters", "n", "params", "model size", "num_params"),
    "tokens": ("tokens", "d", "num_tokens"),
    "flops": ("flops", "c", "training flop", "compute"),
    "loss": ("loss",),
    "learning_rate": ("learning_rate", "lr", "rate"),
    "name": ("name", "run", "model"),
}
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RunPoint:
    """One finished run."""

    parameters: float
    tokens: float
    loss: float
    """nats per held-out token"""
    flops: float
    """FLOPs of the full training"""
    name: str = ""
    learning_rate: float | None = None
    """peak learning rate"""

    @property
    def called(self) -> str:
        """Its name, or what tells it from the others."""
        return self.name or f"the run of {compact(self.parameters)} parameters and {compact(self.tokens)} tokens"


@dataclass(frozen=True)
class Points:
    """Finished runs."""

    runs: tuple[RunPoint, ...]

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def logs(self) -> Floats:
        """Logarithms of parameters, tokens and FLOPs: [3, points]."""
        return np.log([[getattr(run, name) for run in self.runs] for name in ("parameters", "tokens", "flops")])

    @property
    def losses(self) -> Floats:
        return np.array([run.loss for run in self.runs])

    @property
    def flops_per_parameter(self) -> float:
        """Median FLOPs per parameter and token: 6 where FLOPs are counted by the rule of thumb."""
        return float(np.median([run.flops / (run.parameters * run.tokens) for run in self.runs]))

    @property
    def most_flops(self) -> float:
        return max(run.flops for run in self.runs)

    def where(self, keeps: Callable[[RunPoint], bool]) -> "Points":
        return Points(tuple(run for run in self.runs if keeps(run)))

    def chosen(self, numbers: NDArray[np.intp]) -> "Points":
        return Points(tuple(self.runs[number] for number in numbers))

    def rungs(self) -> list["Points"]:
        """Runs grouped by size, the smallest first. Sizes within 10% of the next smaller one are one rung."""
        rungs: list[list[RunPoint]] = []
        for run in sorted(self.runs, key=lambda run: run.parameters):
            if rungs and math.log(run.parameters / rungs[-1][-1].parameters) < _SAME_SIZE:
                rungs[-1].append(run)
            else:
                rungs.append([run])
        return [Points(tuple(runs)) for runs in rungs]


def checked(points: Points, origin: str) -> Points:
    """Raises ConfigError for a value that no finished run has."""
    for run in points.runs:
        for name in ("parameters", "tokens", "flops", "loss"):
            value = getattr(run, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(
                    f"{origin}: {name} of {run.name or 'a run'} is {value}, as of a run that diverged: leave it out"
                )
            if value > _MOST[name]:
                raise ConfigError(
                    f"{origin}: {name} of {run.name or 'a run'} is {value:g}, and no run has more than "
                    f"{_MOST[name]:g}: leave it out"
                )
    return points


def read_csv(path: Path) -> Points:
    """Raises ConfigError for a file that is no table of runs."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            lines = [(reader.line_num, fields) for fields in reader if fields]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from None
    if not lines:
        raise ConfigError(f"{path} has no lines below its names of columns")
    columns = _columns(names, path)
    for number, fields in lines:
        if len(fields) != len(names):
            raise ConfigError(
                f"{path}, line {number} has {len(fields)} fields, and the line of names {len(names)}: write numbers "
                "without separators, as 1000 and not as 1,000"
            )
    runs = tuple(_run(dict(zip(names, fields, strict=True)), columns, f"{path}, line {n}") for n, fields in lines)
    return checked(Points(runs), str(path))


def _columns(names: Sequence[str], path: Path) -> dict[str, str]:
    by_lower = {name.strip().lower(): name for name in names}
    columns = {
        what: by_lower[next(name for name in known if name in by_lower)]
        for what, known in _NAMES.items()
        if any(name in by_lower for name in known)
    }
    missing = [what for what in ("parameters", "tokens", "flops") if what not in columns]
    if "loss" not in columns or len(missing) > 1:
        raise ConfigError(
            f"{path} has the columns {', '.join(names)}: name a column loss, and two of parameters, tokens and flops"
        )
    return columns


def _run(line: Mapping[str, str], columns: Mapping[str, str], origin: str) -> RunPoint:
    values = {}
    for what, column in columns.items():
        if what != "name" and (line[column] or what != "learning_rate"):
            try:
                values[what] = float(line[column])
            except ValueError:
                raise ConfigError(f"{origin}: {column} is {line[column]!r}, and no number") from None
    for name, of in (("parameters", "tokens"), ("tokens", "parameters")):
        if name not in values:
            values[name] = values["flops"] / (FLOPS_PER_PARAMETER * values[of]) if values[of] else math.nan
    values.setdefault("flops", FLOPS_PER_PARAMETER * values["parameters"] * values["tokens"])
    return RunPoint(**values, name=line[columns["name"]] if "name" in columns else "")
