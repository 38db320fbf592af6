"""Fits the constants of estimates, and a factor for each software stack, to published measurements.

    python -m tools.fit_plan.fit ROWS.csv            # shows how far off they are, on rows that a fit has not seen
    python -m tools.fit_plan.fit ROWS.csv --write    # and writes pretrain/plan/estimate/{constants,stacks}.yaml
    python -m tools.fit_plan.fit ROWS.csv --score    # judges what is written, and fits nothing

A row is a step: model, layout, hardware, seconds, or that it ran out of memory. Rows are never copied; what is stored
is fitted to them.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ruamel.yaml import YAML
from scipy.optimize import least_squares

from pretrain.config.load import read
from pretrain.plan.estimate.constants import CONSTANTS, STACKS, Constants, constants, fitted_stacks
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.held import held_bytes
from pretrain.plan.estimate.seconds import fastest_first, step_seconds
from tools.fit_plan.published import PublishedSteps, load_steps

_HUBER = 0.05  # relative errors beyond this count less
_CONSTANT_PULL, _FACTOR_PULL = 0.05, 0.2  # towards where constants start, and factors towards 1
_SHARE = 30  # rows of one stack that count fully; more of them share their weight
_FOLDS = 6
_SWEEP = 4  # layouts that a sweep has at least

_HEADER = """\
# Written by `python -m tools.fit_plan.fit ROWS.csv --write`: of each software stack, how many times the estimate its
# measured steps take. low, high: measured over predicted, on rows that a fit had not seen (8 of 10 lie between).

"""
Factors = dict[str, float]


def fit(rows: PublishedSteps, begin: Mapping[str, float] | None = None) -> tuple[Constants, Factors]:
    """Least squares of log(predicted / measured), with a factor for each stack. `begin`: constants to start from."""
    tree = read(CONSTANTS)
    values = {name: float(entry["value"]) for name, entry in tree.items()}
    names = [name for name, entry in tree.items() if "between" in entry]
    low, high = np.log(np.array([tree[name]["between"] for name in names], float)).T
    start = np.log([float(tree[name]["start"]) for name in names])
    first = start if begin is None else np.clip(np.log([begin[name] for name in names]), low + 1e-6, high - 1e-6)
    stacks = sorted(set(rows.stack.tolist()))
    which = np.array([stacks.index(name) for name in rows.stack])
    weight = 1 / np.sqrt(np.maximum(1, np.bincount(which)[which] / _SHARE))

    def residuals(x: Array) -> Array:
        c = Constants(values | dict(zip(names, np.exp(x[: len(names)]).tolist(), strict=True)))
        off = weight * np.log(step_seconds(rows.workload, c, np.exp(x[len(names) :])[which]).total / rows.seconds)
        bent = np.sign(off) * _HUBER * np.sqrt(2 * (np.sqrt(1 + (off / _HUBER) ** 2) - 1))
        pulled = _CONSTANT_PULL * (x[: len(names)] - start), _FACTOR_PULL * x[len(names) :]
        return np.concatenate([bent, *pulled])

    free = np.full(len(stacks), np.inf)
    bounds = np.concatenate([low, -free]), np.concatenate([high, free])
    x = least_squares(residuals, np.concatenate([first, np.zeros(len(stacks))]), bounds=bounds, max_nfev=60).x
    found = Constants(values | dict(zip(names, np.exp(x[: len(names)]).tolist(), strict=True)))
    return found, dict(zip(stacks, np.exp(x[len(names) :]).tolist(), strict=True))


def predicted(rows: PublishedSteps, c: Constants, factors: Factors) -> Array:
    """Seconds of a step of each row; 1 is the factor of a stack that is not among `factors`."""
    return step_seconds(rows.workload, c, np.array([factors.get(name, 1.0) for name in rows.stack])).total


def unseen(rows: PublishedSteps, groups: NDArray[Any], begin: Mapping[str, float]) -> Array:
    """predicted / measured - 1 of each row, by a fit to rows of other groups only."""
    names = sorted(set(groups.tolist()), key=lambda name: -int((groups == name).sum()))
    fold_of = {name: fold % _FOLDS for fold, name in enumerate(names)}
    folds, off = np.array([fold_of[name] for name in groups]), np.full(len(groups), np.nan)
    for fold in range(min(_FOLDS, len(names))):
        out = folds == fold
        off[out] = predicted(rows.take(out), *fit(rows.take(~out), begin)) / rows.seconds[out] - 1
    return off


def summary(name: str, off: Array) -> str:
    """One line about relative errors."""
    size = np.abs(off)
    return (
        f"{name:<34} {len(off):>4} rows  median {np.median(size):6.1%}  90th percentile {np.quantile(size, 0.9):6.1%}  "
        f"within 10% {np.mean(size < 0.1):5.0%}"
    )


def fitting(rows: PublishedSteps, c: Constants) -> str:
    """One line about which rows fit in memory."""
    fits = held_bytes(rows.workload, c).fullest <= rows.memory_bytes
    return (
        f"fits in memory: right of {len(fits)} rows {np.mean(fits == rows.fits):.1%}, of those that ran "
        f"{np.mean(fits[rows.fits]):.1%}, of those that did not {np.mean(~fits[~rows.fits]):.1%}"
    )


def peaks(rows: PublishedSteps, c: Constants) -> str:
    """One line about published peaks of memory."""
    published = ~np.isnan(rows.held_bytes)
    off = np.abs(held_bytes(rows.workload, c).fullest[published] / rows.held_bytes[published] - 1)
    return f"{len(off)} peaks of memory: median {np.median(off):.1%}, within 10% {np.mean(off < 0.1):.0%}"


def sweeps(rows: PublishedSteps, c: Constants, factors: Factors) -> str:
    """One line about the first choice among the layouts of each published sweep: how much slower it was than the best
    that was measured, and whether it ran at all."""
    work, seconds = rows.workload, predicted(rows, c, factors)
    fits = held_bytes(work, c).fullest <= rows.memory_bytes
    settings = work.layout.world, work.step.sequences, work.model.label_length, work.step.fp8
    keys = list(zip(rows.stack, rows.model, *settings, strict=True))
    losses = []
    for key in dict.fromkeys(keys):
        sweep = np.array([one == key for one in keys])
        if (sweep & rows.fits).sum() >= _SWEEP:
            fitting = np.flatnonzero(sweep & fits)
            pick = fitting[fastest_first(seconds[fitting], work.micro_batches[fitting])[0]]
            losses.append(rows.seconds[pick] / rows.seconds[sweep & rows.fits].min() - 1)
    ran = np.array(losses)[~np.isnan(losses)]
    return f"first choice in {len(losses)} sweeps: ran in {len(ran)}, there at most {ran.max():.1%} behind the fastest"


def main(argv: list[str]) -> int:
    """Fits the constants, or judges what is stored."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_plan.fit", description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--write", action="store_true", help="Store constants, factors and errors.")
    parser.add_argument("--score", action="store_true", help="Judge what is stored.")
    options = parser.parse_args(argv)
    every = load_steps(options.rows)
    rows = every.take(every.fits)
    if options.score:
        stored = {name: one.factor for name, one in fitted_stacks().items()}
        off = predicted(rows, constants(), stored) / rows.seconds - 1
        print(summary("stored constants", off))
        print(*(summary(f"  {name}", off[rows.stack == name]) for name in sorted(set(rows.stack))), sep="\n")
        print(fitting(every, constants()), peaks(every, constants()), sep="\n")
        print(sweeps(every, constants(), stored))
        return 0
    c, factors = fit(rows)
    print(summary("seen", predicted(rows, c, factors) / rows.seconds - 1))
    by_model, by_stack = unseen(rows, rows.model, c.values), unseen(rows, rows.stack, c.values)
    known = np.array([(rows.stack[rows.model != m] == s).any() for m, s in zip(rows.model, rows.stack, strict=True)])
    print(summary("models not seen", by_model))
    print(summary("  of a stack that was seen", by_model[known]))
    print(summary("stacks not seen", by_stack))
    print(fitting(every, c))
    if options.write:
        _write(c, factors, rows, by_model=by_model, by_stack=by_stack, known=known)
    return 0


def _write(
    c: Constants, factors: Factors, rows: PublishedSteps, *, by_model: Array, by_stack: Array, known: NDArray[Any]
) -> None:
    yaml = YAML()
    yaml.width = 120
    tree = yaml.load(CONSTANTS.read_text())
    for name, entry in tree.items():
        entry["value"] = float(f"{c[name]:.4g}")
    with CONSTANTS.open("w") as file:
        yaml.dump(tree, file)

    def span(off: Array) -> dict[str, float]:
        return dict(
            zip(("low", "high"), (round(float(x), 3) for x in np.quantile(1 / (1 + off), [0.1, 0.9])), strict=True)
        )

    def errors(off: Array) -> dict[str, float]:
        size = np.abs(off)
        found = np.median(size), np.quantile(size, 0.9), np.mean(size < 0.1)
        return dict(zip(("median", "ninetieth", "within_tenth"), (round(float(x), 4) for x in found), strict=True))

    every = span(by_model[known])
    stacks: dict[str, dict[str, float]] = {"unknown": {"factor": 1.0, **span(by_stack), "rows": 0}}
    for name, factor in factors.items():
        own = by_model[(rows.stack == name) & known]
        interval = span(own) if len(own) >= 10 else every
        stacks[name] = {"factor": round(factor, 4), **interval, "rows": int((rows.stack == name).sum())}
    kept = {"models_not_seen": errors(by_model), "stacks_not_seen": errors(by_stack)}
    with STACKS.open("w") as file:
        file.write(_HEADER)
        yaml.dump({"errors": kept, "stacks": stacks}, file)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
