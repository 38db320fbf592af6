"""Processor seconds from starting Python until a run's code is imported: all of its libraries' imports, against what
`pretrain/lean_imports.py` leaves of them.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.start [--rounds N]

Each is a process of its own; they take turns. User and system time together, so that other work counts little.
"""

import argparse
import os
import statistics
import subprocess
import sys

WHOLE = "import sys, pretrain; del sys.meta_path[0]; "  # what stands first is what leaves out
SHARDING = "import pretrain.loop; from pretrain.engine.zero import stage12, stage3"
STARTS = {
    "torch alone": ("import torch", "import torch"),
    "`pretrain.loop`": (f"{WHOLE}import pretrain.loop", "import pretrain.loop"),
    "`pretrain.loop` and DeepSpeed": (f"{WHOLE}{SHARDING}", SHARDING),
    "`pretrain plan`": (f"{WHOLE}import pretrain.commands.plan", "import pretrain.commands.plan"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken = [{name: tuple(map(_processor_s, codes)) for name, codes in STARTS.items()} for _ in range(rounds)]
    print("| | All imports: s | Lean: s | Lean / all, median | extremes |\n|---|---|---|---|---|")
    for name in STARTS:
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
