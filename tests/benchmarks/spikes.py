"""How often a healthy run would be said to have a spike, by `k` and `window`: on the curves of recorded runs.

    python -m tests.benchmarks.spikes RUN [RUN ...]

Of each setting: the steps that were judged, of them those whose loss, or gradient norm, counts as a spike, and the
microseconds that judging a step takes. Of each run the largest loss and norm, in medians of 128 steps before. And what
it takes to see that weights are finite, as is done before a save. In seconds of one processor.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pretrain.checkpoint.finite import is_finite
from pretrain.config.health import SpikesWarn
from pretrain.observe.spikes import SpikeWatch
from pretrain.run_dir.records import read_metrics

WINDOWS, KS = (32, 64, 128), (3.0, 6.0, 10.0)
_USUAL = 128


@dataclass(frozen=True)
class _Step:
    loss_sum: float
    grad_norm: float
    token_count: int = 1
    skipped: bool = False
    lowered_scale: bool = False


_READ = 250_000_000  # numbers of 4 bytes


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+")
    runs = {path: _steps(read_metrics(path)) for path in parser.parse_args().runs}
    for path, steps in runs.items():
        losses, norms = ([getattr(step, key) for step in steps] for key in ("loss_sum", "grad_norm"))
        print(f"{path}: {len(steps)} steps, at most {_most(losses):.2f} medians of loss, {_most(norms):.2f} of norm")
    print(f"{'window':>6} {'k':>4} {'judged':>7} {'losses':>7} {'norms':>7} {'us a step':>9}")
    for window in WINDOWS:
        for k in KS:
            print(_row(window, k, list(runs.values())))
    print(f"{_reading_s():.2f} s to see that 1 GB of weights is finite")


def _steps(lines: list[dict[str, Any]]) -> list[_Step]:
    finite = (line for line in lines if None not in (line["loss"], line["grad_norm"]))
    return [_Step(line["loss"], line["grad_norm"]) for line in finite]


def _most(values: list[float]) -> float:
    """The largest of `values` after the first ones, by the median before it; 0: there are too few."""
    return max((values[n] / median(values[n - _USUAL : n]) for n in range(_USUAL, len(values))), default=0.0)


def _reading_s() -> float:
    values = torch.ones(_READ)
    began_s = time.process_time()
    assert is_finite(values)
    return time.process_time() - began_s


def _row(window: int, k: float, runs: list[list[_Step]]) -> str:
    judged, found, began_s = 0, [], time.process_time()
    for steps in runs:
        watch = SpikeWatch(SpikesWarn(window=window, k=k), None)
        found += [spike.what for spike in map(watch.judge, steps) if spike is not None]
        judged += max(0, len(steps) - window)
    each_us = (time.process_time() - began_s) / max(1, judged) * 1e6
    counts = [found.count(what) for what in ("loss", "gradient norm")]
    return f"{window:>6} {k:>4g} {judged:>7,} {counts[0]:>7} {counts[1]:>7} {each_us:>9.0f}"


if __name__ == "__main__":
    main()
