"""Processor seconds from starting Python until a run's code is imported: all of its libraries' imports, against what
`pretrain/lean_imports.py` leaves of them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.start [--rounds N] [--only torch loop deepspeed plan]

Each is a process of its own; they take turns. User and system time together, so that other work counts little.
"""

import argparse
import os
import statistics
import subprocess
import sys

WHOLE = "import sys, pretrain; del sys.meta_path[0]; "  # what stands first is what leaves out
SHARDING = "import pretrain.training.loop; from pretrain.engine.zero import deepspeed_setup as d; d.prepare(); "
SHARDING += "from pretrain.engine.zero import stage12, stage3"
STARTS = {  # what is imported: of all, and lean
    "torch": ("import torch", "import torch"),
    "loop": (f"{WHOLE}import pretrain.training.loop", "import pretrain.training.loop"),
    "deepspeed": (f"{WHOLE}{SHARDING}", SHARDING),
    "plan": (f"{WHOLE}import pretrain.commands.plan", "import pretrain.commands.plan"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=STARTS, default=list(STARTS))
    options = parser.parse_args()
    taken = [{name: tuple(map(_processor_s, STARTS[name])) for name in options.only} for _ in range(options.rounds)]
    print("| | All imports: s | Lean: s | Lean / all, median | extremes |\n|---|---|---|---|---|")
    for name in options.only:
        whole, lean = zip(*(times[name] for times in taken), strict=True)
        ratios = [after / before for before, after in zip(whole, lean, strict=True)]
        medians = " | ".join(f"{statistics.median(values):.2f}" for values in (whole, lean, ratios))
        print(f"| {name} | {medians} | {min(ratios):.2f}-{max(ratios):.2f} |", flush=True)


def _processor_s(code: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()
