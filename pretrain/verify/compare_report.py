"""Report of `pretrain compare`: a table on the terminal, and JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from data_pipeline.common.atomic import atomic_write
from pretrain.run_dir.json_lines import finite
from pretrain.verify.compare import EXACT, QuantityComparison, RecordedRun, StepDifference, config_differences


def show(a: RecordedRun, b: RecordedRun, comparisons: Iterable[QuantityComparison], out: Path | None) -> bool:
    """Prints how two runs differ, a line per quantity, and writes it to `out` as JSON. Returns whether they are the
    same run."""
    for run in (a, b):
        layouts = ", ".join(run.layouts)
        print(f"{run.path}: steps {min(run.metrics):,} to {max(run.metrics):,} in {run.config.precision} on {layouts}")
    different_keys = config_differences(a, b)
    for key, one, two in different_keys:
        print(f"the configs are of different runs: {key} is {one} and {two}")
    print(f"{'quantity':15}{'compared':>10}{'largest':>10}{'at step':>10}", flush=True)
    shown = []
    for comparison in comparisons:
        shown.append(comparison)
        print(_row(comparison), flush=True)
    same = not different_keys and all(comparison.first is None for comparison in shown)
    if not same and (note := _expert_sentence(a, shown)) is not None:
        print(note)
    last, longest = sorted(max(run.metrics) for run in (a, b))
    as_far = "" if last == longest else f" for the {last:,} of {longest:,} steps that both have"
    print(f"the same run{as_far}" if same else "not the same run")
    if out is not None:
        content = {
            "same": same,
            "last_step_of_both": last,
            "runs": [str(a.path), str(b.path)],
            "configs_differ_in": [{"key": key, "values": values} for key, *values in different_keys],
            "quantities": [
                {
                    "quantity": line.quantity,
                    "compared": len(line.differences),
                    "largest": vars(line.largest) if line.differences else None,
                    "departs_first": line.first and {**vars(line.first), "bound": line.bound(line.first.step)},
                }
                for line in shown
            ],
        }
        atomic_write(out, json.dumps(finite(content), indent=1, allow_nan=False).encode() + b"\n")
    return same


def replayed(
    run: RecordedRun, computed: Mapping[int, Mapping[str, Any]], start: int, layout: str, *,
    quantities: Sequence[QuantityComparison], rounded: Sequence[QuantityComparison],
) -> Iterator[str]:  # fmt: skip
    """Lines about steps that were computed again after step `start`, compared in `quantities`, and by the bounds of
    rounding alone in `rounded`."""
    last = max(computed)
    yield f"{run.path}: steps {start + 1:,} to {last:,} again on {layout}, in {run.config.precision}"
    yield f"{'':15}{'compared':>10}{'largest':>10}{'at step':>10}"
    yield from map(_row, quantities)
    for name, key in (("loss", "loss"), ("gradient norm", "grad_norm")):
        yield f"step {last:,}: {name} {computed[last][key]}, recorded {run.metrics[last][key]}"
    if all(one.largest.by == 0 for one in quantities):
        yield f"the same to the last bit: step {last:,} is what its data and settings make of it, no fault of a machine"
    elif all(one.first is None for one in quantities):
        yield f"the same within rounding: step {last:,} is what its data and settings make of it"
    elif all(one.first is None for one in rounded):
        yield (
            "different, by no more than rounding: a machine has computed a little wrong, unless threads, libraries or "
            "micro-batches are others than then"
        )
    else:
        first = min(one.first.step for one in rounded if one.first is not None)
        yield f"different from step {first:,} on: a machine computed wrong then, or this one does now"


def _expert_sentence(run: RecordedRun, lines: Sequence[QuantityComparison]) -> str | None:
    """Sentence on another possible cause, where all that must be equal is, and the model has experts; else None."""
    exact = all(line.first is None for line in lines if line.quantity in EXACT)
    if run.config.model.experts is None or not exact:
        return None
    return (
        "in a model with experts, one token that rounding sends elsewhere makes such a difference from its step on "
        "(docs/experts.md#ties): `pretrain verify` tells that from a fault of a layout"
    )


def _row(line: QuantityComparison) -> str:
    if not line.differences:
        return f"{line.quantity:15}{0:>10}  not compared: the runs have no checkpoint of the same step"
    largest, first = line.largest, line.first
    by = "equal" if largest.by == 0 else "differ" if line.quantity in EXACT else f"{largest.by:.1e}"
    row = f"{line.quantity:15}{len(line.differences):>10,}{by:>10}{f'{largest.step:,}' if largest.by else '':>10}"
    return f"{row}  same" if first is None else f"{row}  DEPARTS\n    {_first(line, first)}"


def _first(line: QuantityComparison, first: StepDifference) -> str:
    what = line.quantity if first.parameter is None else f"{line.quantity}, most of all of {first.parameter},"
    if line.quantity in EXACT:
        return f"step {first.step:,}: {what} differ for the first time"
    return f"step {first.step:,}: {what} differ by {first.by:.2e}; rounding explains {line.bound(first.step):.2e}"
