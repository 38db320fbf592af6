"""What sharing a step costs: processor time of one rank over that of two ranks together, for the same global batch.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.ranks [--steps 8] [--length 256]

29M parameters in fp32 over gloo, 8 micro-batches of one row. Waiting takes no processor time, so what is missing to 1
is work that both ranks do, exchanging, and what smaller products cost more. One rank is measured before and after all
others, for how steady the machine is. MB: the most that a rank's memory grew by, from before its engine was made.
"""

import argparse
import resource
import statistics
import time
from typing import Any

import torch

from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device as devices
from tests.benchmarks.train_step import device_name, surroundings
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import build_engine, tiny_config

MODEL: dict[str, Any] = {
    "hidden": 512,
    "heads": 8,
    "layers": 8,
    "vocabulary": 8192,
    "attention": {"pattern": ["dense"]},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "data": {},
    "tensor": {"tensor": 2},
    "tensor+sequence": {"tensor": 2, "sequence": True},
    "context": {"context": 2},
    "pipeline": {"pipeline": 2},
    "zero1": {"zero": 1},
    "zero2": {"zero": 2, "zero_engine": "deepspeed"},
    "zero3": {"zero": 3, "zero_engine": "deepspeed"},
}
"""what two ranks share"""
_ROWS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    options = parser.parse_args()
    print(surroundings("ranks", device_name(torch.device("cpu"))))
    alone, megabytes = _measured({}, 1, options)
    print(f"\none rank: {alone:.2f} s of processor time a step, {megabytes:,.0f} MB\n")
    print("| Layout | s, both ranks | one rank's / both ranks' | MB a rank |\n|---|---|---|---|")
    for name in options.layouts:
        both, megabytes = _measured(LAYOUTS[name], 2, options)
        print(f"| {name} | {both:.2f} | **{alone / both:.2f}** | {megabytes:,.0f} |", flush=True)
    print(f"\none rank again: {_measured({}, 1, options)[0]:.2f} s")


def _measured(parallel: dict[str, Any], world: int, options: argparse.Namespace) -> tuple[float, float]:
    """(median seconds of a step, summed over ranks; megabytes of the rank that took most)."""
    of_ranks = run_ranks(world, _steps, parallel, options.length, options.steps, timeout_s=3600)
    steps = [sum(seconds) for seconds in zip(*(seconds for seconds, _ in of_ranks), strict=True)]
    return statistics.median(steps), max(megabytes for _, megabytes in of_ranks)


def _steps(parallel: dict[str, Any], length: int, steps: int) -> tuple[list[float], float]:
    """(processor seconds of each step, megabytes) of this rank."""
    torch.set_num_threads(1)
    devices.install()
    before = _megabytes()
    config = tiny_config(
        model=MODEL | {"sequence_length": length},
        batch={"sequences": _ROWS, "micro_sequences": 1},
        parallel=parallel,
    )
    engine, stream = build_engine(config), SyntheticStream(config)
    seconds = []
    for step in range(2 + steps):
        rows = stream.batch(step * _ROWS, _ROWS, engine.data_rank, engine.data_world)
        begin = time.process_time()
        engine.train_step(rows, 1e-4, step)
        seconds.append(time.process_time() - begin)
    return seconds[2:], _megabytes() - before


def _megabytes() -> float:
    """The most that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
