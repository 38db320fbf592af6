"""Runs the tests and the measurements that need a GPU, and writes what they found to `report.md`.

    python -m tests.gpu.report --directory runs/gpu-report --seconds 540

A call ends after about `--seconds`. Called again with the same directory, it resumes: what was cut off is repeated. The
status is 0 when all is done and every test passed, 1 when a test failed or a case has no figures, and 75 when something
is left.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.gpu.cases import CASES, Case
from tests.gpu.recorded import outcomes

_ROOT = Path(__file__).parents[2]
_LEAST_SECONDS = 45
"""with less time left, nothing is begun"""
_RESUMABLE = 75
_WORKERS = str(max(1, min(12, os.cpu_count() or 1)))
_TESTS = ("-m", "pytest", "-q", "-m", "gpu", "-n", _WORKERS, "-p", "tests.gpu.recorded", "tests/gpu")
_COLUMNS = (
    "Case", "Steps", "s", "Tokens/s", "MFU", "Plan's s / measured", "GiB allocated", "Rehearsed / allocated",
    "Planned / allocated", "GiB reserved", "Rehearsed / reserved", "Planned / reserved",
)  # fmt: skip


class OutOfTimeError(Exception):
    """A piece was cut off, or is not begun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("runs/gpu-report"))
    parser.add_argument("--seconds", type=float, default=540)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("no CUDA device here: run it on a machine with a GPU")
    options.directory.mkdir(parents=True, exist_ok=True)
    sys.exit(report(options.directory, time.monotonic() + options.seconds))


def report(directory: Path, end: float, tests: Sequence[str] = _TESTS, cases: Sequence[Case] = CASES) -> int:
    """Does what is left and fits before `end` (of time.monotonic), and writes the report. Returns the exit status."""
    finished = directory / "tests.done"
    status = 0
    try:
        if not finished.exists():
            _run([*tests, "--outcomes", str((directory / "tests.jsonl").resolve())], end)
            finished.touch()
        for case in cases:
            _measure(directory / f"{_file_name(case)}.json", case, end)
    except OutOfTimeError:
        status = _RESUMABLE
    text, complete = _text(directory, cases)
    (directory / "report.md").write_text(text)
    print(text)
    return status or (0 if complete else 1)


def _measure(path: Path, case: Case, end: float) -> None:
    if path.exists():
        return
    measure = ("-m", "tests.gpu.measure")
    found = _json(_run([*measure, "measured", case.name], end))
    if found.get("hardware") is not None:
        # No GPU for what takes the place of one.
        found |= _json(_run([*measure, "expected", case.name, found["hardware"]], end, CUDA_VISIBLE_DEVICES=""))
    path.write_text(json.dumps(found))


def _run(arguments: Sequence[str], end: float, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with `arguments`, from where `tests` can be imported. What it prints to standard error is shown.
    Raises OutOfTimeError."""
    left = end - time.monotonic()
    if left < _LEAST_SECONDS:
        raise OutOfTimeError
    print(f"{' '.join(arguments)} ({left:.0f} s left)", file=sys.stderr, flush=True)
    try:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=left,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired:
        raise OutOfTimeError from None


def _json(process: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object in the last line that a process printed."""
    lines = process.stdout.splitlines()
    if process.returncode or not lines:
        return {"problem": f"status {process.returncode}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _text(directory: Path, cases: Sequence[Case]) -> tuple[str, bool]:
    """The report, and whether nothing failed or is missing in it."""
    by_test = outcomes(directory / "tests.jsonl")
    counts = Counter(by_test.values())
    lines = [
        "# Report of a GPU",
        "",
        f"Tests: {', '.join(f'{n} {outcome}' for outcome, n in sorted(counts.items())) or 'none'}.",
        *(f"- failed: {test}" for test, outcome in by_test.items() if outcome == "failed"),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * len(_COLUMNS)}",
    ]
    found = {case.name: directory / f"{_file_name(case)}.json" for case in cases}
    rows = {name: json.loads(path.read_text()) for name, path in found.items() if path.exists()}
    lines += [f"| {' | '.join(_row(name, row))} |" for name, row in rows.items()]
    lines += ["", *(f"- {name}: {row['problem']}" for name, row in rows.items() if row.get("problem"))]
    lines += [f"On {device}." for device in dict.fromkeys(row["device"] for row in rows.values() if "device" in row)]
    problems = counts["failed"] or any(row.get("problem") for row in rows.values())
    return "\n".join(lines) + "\n", bool(by_test) and len(rows) == len(cases) and not problems


def _row(name: str, row: dict[str, Any]) -> list[str]:
    def ratio(expected: str, measured: str) -> str:
        a, b = row.get(expected), row.get(measured)
        return f"{a / b:.3f}" if a and b else ""

    def shown(key: str, form: str, unit: float = 1.0) -> str:
        return format(row[key] / unit, form) if row.get(key) is not None else ""

    return [
        name, shown("steps", ".0f"), shown("step_s", ".4f"), shown("tokens_per_s", ",.0f"), shown("mfu", ".1%"),
        ratio("planned_step_s", "step_s"), shown("allocated_bytes", ".3f", 2**30),
        ratio("rehearsed_bytes", "allocated_bytes"), ratio("planned_bytes", "allocated_bytes"),
        shown("reserved_bytes", ".3f", 2**30), ratio("rehearsed_reserved_bytes", "reserved_bytes"),
        ratio("planned_reserved_bytes", "reserved_bytes"),
    ]  # fmt: skip


def _file_name(case: Case) -> str:
    return "".join(character if character.isalnum() else "-" for character in case.name)


if __name__ == "__main__":
    main()
