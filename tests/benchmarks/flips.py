"""Flips of single bits in training steps that are computed twice, and steps without one: tests/multirank/test_replay.py
with as many as you like.

python -m tests.benchmarks.flips [--flips 1000] [--steps 5000] [--precision fp32]
"""

import argparse

from tests.helpers.ranks import run_ranks
from tests.multirank.test_replay import flipped, replayed


def main() -> None:
    """Prints how many flips changed a gradient or a weight, and what was not found. Raises AssertionError where a step
    without a flip is taken for a wrong one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=5000, help="without a flip")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    options = parser.parse_args()
    ((changed, others, wrong),) = run_ranks(1, flipped, options.flips, 5, options.precision, timeout_s=7200)
    print(f"{options.flips} flips: {changed} changed a gradient, {others} others were found in weights; wrong: {wrong}")
    (updates,) = run_ranks(1, replayed, options.steps, options.precision, timeout_s=7200)
    assert updates == options.steps
    print(f"{options.steps} steps without a flip: no alarm")


if __name__ == "__main__":
    main()
