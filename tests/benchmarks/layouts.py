"""How far each layout departs from one rank, measured: the figures behind tests/multirank/test_layouts.py.

python -m tests.benchmarks.layouts
"""

import numpy as np

from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config
from tests.multirank.test_layouts import LAYOUTS, STEPS, _run


def main() -> None:
    """Prints, for each layout and precision, the largest departure over the steps."""
    model = tiny_config().model.model_dump()
    print(f"largest departure from one rank over {len(STEPS)} steps: loss (nats), gradient norm (relative)")
    for precision in ("fp32", "bf16"):
        expected = np.array(run_ranks(1, _run, {}, precision, False, model)[0][0])
        for name, (world, parallel) in LAYOUTS.items():
            found = np.array(run_ranks(world, _run, parallel, precision, False, model)[0][0])
            loss, norm = np.abs(found - expected)[:, 0].max(), np.abs(found / expected - 1)[:, 1].max()
            print(f"{precision}  {loss:.1e}  {norm:.1e}  {name}", flush=True)


if __name__ == "__main__":
    main()
