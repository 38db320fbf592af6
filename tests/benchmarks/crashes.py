"""Hundreds of kills of training and of building, and how many hit what: tests/end_to_end/test_crash.py with any seed.

python -m tests.benchmarks.crashes [--kills 300] [--builds 60] [--seed 1] [--kind electra]
"""

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from tests.helpers import crash_build, crash_train
from tests.helpers.crash import table


def main() -> None:
    """Prints the two tables. Raises AssertionError if a run or a dataset differs from an undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="of training, at least")
    parser.add_argument("--builds", type=int, default=60, help="kills of data build, at least")
    parser.add_argument("--seed", type=int, default=1, help="of the moments, layouts and victims")
    parser.add_argument("--kind", default="gpt", choices=list(crash_train.KINDS), help="of the runs that are killed")
    options = parser.parse_args()
    campaigns = (
        ("training", partial(crash_train.train_campaign, kind=options.kind), crash_train.PHASES, options.kills),
        ("data build", crash_build.build_campaign, crash_build.PHASES, options.builds),
    )
    for name, campaign, phases, kills in campaigns:
        with tempfile.TemporaryDirectory() as directory:
            began = time.monotonic()
            done = campaign(Path(directory), kills, options.seed)
        print(
            f"kills of {name}, seed {options.seed}, {time.monotonic() - began:.0f} s:\n\n{table(done, phases)}\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
