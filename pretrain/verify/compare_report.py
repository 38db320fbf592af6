"""The outcome of `pretrain compare`: a table on the terminal, and JSON."""

import json
from collections.abc import Iterable
from pathlib import Path

from data_pipeline.common.atomic import write_whole
from pretrain.observe.lines import finite
from pretrain.verify.compare import EXACT, Line, Measured, RecordedRun, other_runs


def show(a: RecordedRun, b: RecordedRun, lines: Iterable[Line], out: Path | None) -> bool:
    """Prints what two runs differ in, line by line, and writes it to `out` as JSON. Whether they are the same run."""
    for run in (a, b):
        layouts = ", ".join(run.layouts)
        print(f"{run.path}: steps {min(run.metrics):,} to {max(run.metrics):,} in {run.config.precision} on {layouts}")
    others = other_runs(a, b)
    for key, one, two in others:
        print(f"another run by its config: {key} is {one} and {two}")
    print(f"{'quantity':15}{'compared':>10}{'largest':>10}{'at step':>10}", flush=True)
    found = []
    for line in lines:
        found.append(line)
        print(_row(line), flush=True)
    same = not others and all(line.first is None for line in found)
    last, longest = sorted(max(run.metrics) for run in (a, b))
    as_far = "" if last == longest else f", as far as both go: {last:,} of {longest:,} steps"
    print(f"the same run{as_far}" if same else "not the same run")
    if out is not None:
        content = {
            "same": same,
            "last_step_of_both": last,
            "runs": [str(a.path), str(b.path)],
            "configs_differ_in": [{"key": key, "values": values} for key, *values in others],
            "quantities": [
                {
                    "quantity": line.quantity,
                    "compared": len(line.measured),
                    "largest": vars(line.largest) if line.measured else None,
                    "departs_first": line.first and {**vars(line.first), "bound": line.bound(line.first.step)},
                }
                for line in found
            ],
        }
        write_whole(out, json.dumps(finite(content), indent=1, allow_nan=False).encode() + b"\n")
    return same


def _row(line: Line) -> str:
    if not line.measured:
        return f"{line.quantity:15}{0:>10}  not compared: the runs have no checkpoint of the same step"
    largest, first = line.largest, line.first
    by = "equal" if largest.by == 0 else "differ" if line.quantity in EXACT else f"{largest.by:.1e}"
    row = f"{line.quantity:15}{len(line.measured):>10,}{by:>10}{f'{largest.step:,}' if largest.by else '':>10}"
    return f"{row}  same" if first is None else f"{row}  DEPARTS\n    {_first(line, first)}"


def _first(line: Line, first: Measured) -> str:
    what = line.quantity if first.parameter is None else f"{line.quantity}, most of all {first.parameter},"
    if line.quantity in EXACT:
        return f"step {first.step:,}: {what} not equal for the first time"
    return f"step {first.step:,}: {what} apart by {first.by:.2e}; rounding explains {line.bound(first.step):.2e}"
