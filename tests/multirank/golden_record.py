"""Records the curves of `tests/helpers/golden.py` with the code as it is, for test_golden.py to compare with.

    CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python -m tests.multirank.golden_record [--overwrite] [CASE ...]

Only a change that is meant to change numbers is a reason to overwrite: its commit says which, and why.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.golden import CASES, build_datasets, train_case
from tests.helpers.machine import machine

FOLDER = Path(__file__).parent / "golden"
ABOUT_DATA = ("data_hash", "rows")


def main() -> None:
    parser = argparse.ArgumentParser(description="Records golden curves.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; absent: all")
    parser.add_argument("--overwrite", action="store_true", help="replace what is recorded")
    options = parser.parse_args()
    names = options.cases or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case is called {unknown[0]}: known are {', '.join(CASES)}")
    if (there := [name for name in names if (FOLDER / f"{name}.json").exists()]) and not options.overwrite:
        parser.error(f"{', '.join(there)} recorded already: --overwrite replaces it")
    with tempfile.TemporaryDirectory() as datasets:
        build_datasets(Path(datasets))
        for name in names:
            (FOLDER / f"{name}.json").write_text(json.dumps(_record(name, Path(datasets)), indent=1) + "\n")
            print(name)


def _record(name: str, datasets: Path) -> dict[str, Any]:
    """The data once, as it is the same on every layout; numbers as JSON has them, which Python reads back bit-equal."""
    curves = {layout: train_case(name, layout, datasets) for layout in CASES[name].layouts}
    data = [{key: curve.pop(key) for key in ABOUT_DATA} for curve in curves.values()]
    assert all(found == data[0] for found in data), f"{name} sees other data on another layout"
    return {"machine": machine(), **data[0], "curves": curves}


if __name__ == "__main__":
    main()
