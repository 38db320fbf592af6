"""Records the curves of `tests/helpers/golden.py` with the code as it is, in portable arithmetic, for test_golden.py.

    python -m tests.multirank.golden_record [--overwrite] [--folder FOLDER] [CASE[:LAYOUT] ...]

Only a change that is meant to change numbers is a reason to overwrite: its commit says which, and why.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.helpers.machine import PORTABLE

FOLDER = Path(__file__).parent / "golden"
ABOUT_DATA = ("data_hash", "rows")


def main() -> None:
    if any(os.environ.get(name) != value for name, value in PORTABLE.items()):  # libraries read it as they start
        os.execve(sys.executable, [sys.executable, "-m", "tests.multirank.golden_record", *sys.argv[1:]], _portable())
    from pretrain.commands.lean_imports import install

    install()  # as a run does, before any library
    from tests.helpers.golden import CASES, build_datasets

    parser = argparse.ArgumentParser(description="Record golden curves.")
    parser.add_argument("cases", nargs="*", metavar="CASE[:LAYOUT]", help=f"one of {', '.join(CASES)}; default: all")
    parser.add_argument("--overwrite", action="store_true", help="replace existing records")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where records are written (default: %(default)s)")
    parser.add_argument("--datasets", type=Path, help="where the datasets of build_datasets are; default: made now")
    options = parser.parse_args()
    layouts: dict[str, list[str]] = {}
    for case in options.cases or list(CASES):
        name, _, layout = case.partition(":")
        if name not in CASES:
            parser.error(f"no case is called {name}: known are {', '.join(CASES)}")
        layouts.setdefault(name, []).extend([layout] if layout else CASES[name].layouts)
    if (there := [name for name in layouts if (options.folder / f"{name}.json").exists()]) and not options.overwrite:
        parser.error(f"{', '.join(there)} recorded already: --overwrite replaces it")
    with tempfile.TemporaryDirectory() as directory:
        datasets = options.datasets or Path(directory)
        if options.datasets is None:
            build_datasets(datasets)
        for name, chosen in layouts.items():
            record = json.dumps(_record(name, chosen, datasets), indent=1)
            (options.folder / f"{name}.json").write_text(record + "\n")
            print(name)


def _portable() -> dict[str, str]:
    return {**os.environ, **PORTABLE}


def _record(name: str, layouts: Iterable[str], datasets: Path) -> dict[str, Any]:
    """The data once, as it is the same on every layout; numbers as JSON has them, which Python reads back bit-equal."""
    from tests.helpers.golden import CASES, train_case
    from tests.helpers.machine import build

    curves = {layout: train_case(name, layout, datasets) for layout in layouts}
    data = [{key: curve.pop(key) for key in ABOUT_DATA} for curve in curves.values()]
    assert all(found == data[0] for found in data), f"{name} sees other data on another layout"
    control = CASES[name].control
    known = control is not None and "one rank" in curves
    to_control = {"to_control": to_control_of(control, curves)} if known else {}
    return {"build": build(), **data[0], **to_control, "curves": curves}


def to_control_of(control: str, curves: dict[str, Any]) -> dict[str, float]:
    """How far curves in half precision are from those of the same run in fp32, on record: the largest distance of each
    kind of number, as a part of it, on one rank."""
    recorded = json.loads((FOLDER / f"{control}.json").read_text())["curves"]["one rank"]
    found = curves["one rank"]
    return {key: max(abs(a / b - 1) for a, b in zip(found[key], recorded[key], strict=True)) for key in recorded}


if __name__ == "__main__":
    main()
