"""Processor seconds from starting Python until a run's code is imported: all imports of its libraries, against those
that remain with the import hook of `pretrain/commands/lean_imports.py`.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.start [--rounds N] [--only torch loop deepspeed plan]

Each measurement is a new process, and the two kinds alternate. User plus system time, so that other load on the machine
matters little.
"""

import argparse
import os
import statistics
import subprocess
import sys

HOOK = "from pretrain.commands.lean_imports import install; install(); "
SHARDING = "import pretrain.training.loop; from pretrain.engine.zero import deepspeed_setup as d; d.prepare(); "
SHARDING += "from pretrain.engine.zero import stage12, stage3"
STARTS = {
    "torch": ("import torch", "import torch"),
    "loop": ("import pretrain.training.loop", f"{HOOK}import pretrain.training.loop"),
    "deepspeed": (SHARDING, HOOK + SHARDING),
    "plan": ("import pretrain.commands.plan", f"{HOOK}import pretrain.commands.plan"),
}
"""name -> program without the hook, program with it"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=STARTS, default=list(STARTS))
    options = parser.parse_args()
    taken = [{name: tuple(map(_processor_s, STARTS[name])) for name in options.only} for _ in range(options.rounds)]
    print("| | All imports: s | Lean: s | Lean / all, median | extremes |\n|---|---|---|---|---|")
    for name in options.only:
        full, lean = zip(*(times[name] for times in taken), strict=True)
        ratios = [after / before for before, after in zip(full, lean, strict=True)]
        medians = " | ".join(f"{statistics.median(values):.2f}" for values in (full, lean, ratios))
        print(f"| {name} | {medians} | {min(ratios):.2f}-{max(ratios):.2f} |", flush=True)


def _processor_s(code: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


if __name__ == "__main__":
    main()
