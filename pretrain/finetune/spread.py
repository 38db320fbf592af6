"""The figures of several runs that differ in their seed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev

from pretrain.errors import RunError
from pretrain.run_dir.paths import RunDir

Spread = Mapping[str, Mapping[str, Sequence[float | None]]]
"""figures of each run, by split and name"""


def read_spread(directories: Sequence[Path]) -> Spread:
    """The figures in the reports of runs. Raises RunError for a run without a report."""
    spread: dict[str, dict[str, list[float | None]]] = {}
    for directory in directories:
        path = RunDir(directory).finetune_report / "report.json"
        try:
            splits = json.loads(path.read_text(encoding="utf-8"))["splits"]
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"{path} is not the report of a fine-tuning run ({error})") from None
        for split, one in splits.items():
            for name, value in one["figures"].items():
                spread.setdefault(split, {}).setdefault(name, []).append(value)
    return spread


def spread_lines(spread: Spread) -> Iterator[str]:
    """A table: median, mean, standard deviation (of the sample), lowest and highest of each figure."""
    yield f"{'split':<12}{'figure':<20}{'runs':>5}{'median':>10}{'mean':>10}{'std':>10}{'lowest':>10}{'highest':>10}"
    for split, figures in spread.items():
        for name, of_runs in figures.items():
            values = [value for value in of_runs if value is not None]
            if not values:
                yield f"{split:<12}{name:<20}{0:>5}  undefined"
                continue
            deviation = f"{stdev(values):.4f}" if len(values) > 1 else "-"
            yield (
                f"{split:<12}{name:<20}{len(values):>5}{median(values):>10.4f}{mean(values):>10.4f}{deviation:>10}"
                f"{min(values):>10.4f}{max(values):>10.4f}"
            )
