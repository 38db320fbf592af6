"""What a checkpoint costs to save, and to load on another layout: seconds and bytes, for three sizes of GPT.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.reshard                  # all sizes: minutes
    OMP_NUM_THREADS=1 python -m tests.benchmarks.reshard --sizes 5M 30M --repeats 5

Saved on tensor 2 x pipeline 2; loaded on that, on tensor 4, on data 4 with ZeRO-1 and on one rank. Before each
measurement the files are dropped from memory, so that the disk is read. Seconds are those of the slowest rank, and
medians over repeats. Bytes are what `load` reads, of weights and moments; "x" compares with loading on the same layout.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pretrain.checkpoint import store
from pretrain.checkpoint.saver import Saved, Saver
from pretrain.engine.base import Engine
from pretrain.engine.collective import gather
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.model_spec.parameters import num_parameters
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import record, tiny_config

SIZES: dict[str, dict[str, Any]] = {
    "0M": {},  # to see that it runs
    "5M": {"layers": 6, "hidden": 256, "heads": 4, "sequence_length": 512, "vocabulary": 2048},
    "30M": {"layers": 8, "hidden": 512, "heads": 8, "sequence_length": 1024, "vocabulary": 8192},
    "125M": {"layers": 12, "hidden": 768, "heads": 12, "sequence_length": 2048, "vocabulary": 50257},  # GPT-3's
}
WRITER = {"tensor": 2, "pipeline": 2}
READERS: dict[str, tuple[int, dict[str, Any]]] = {
    "tensor 2 x pipeline 2": (4, WRITER),
    "tensor 4": (4, {"tensor": 4}),
    "data 4, ZeRO-1": (4, {"zero": 1}),
    "one rank": (1, {}),
}
TIMEOUT_S = 1800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["5M", "30M", "125M"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}; up to 4 ranks, gloo; fp32")
    for size in options.sizes:
        model = SIZES[size]
        with tempfile.TemporaryDirectory() as directory:
            print(f"\n{size}: {num_parameters(tiny_config(model=model).model):,} parameters")
            held_s, waiting_s, saved = run_ranks(
                4, _save, model, options.repeats, Path(directory), timeout_s=TIMEOUT_S
            )[0]
            durable_s = statistics.median(event.seconds for event in saved[: len(held_s)])
            print(
                f"save {saved[0].bytes / 1e6:,.0f} MB: training held up {statistics.median(held_s):.3f} s; durable and "
                f"verified after {durable_s:.2f} s; with in_flight=0 held up {statistics.median(waiting_s):.2f} s",
                flush=True,
            )
            print(f"{'load on':24}{'verify s':>9}{'load s':>8}{'x':>7}{'MB read':>9}{'x':>6}   MB of each rank")
            same: tuple[float, int] | None = None
            for name, (world, parallel) in READERS.items():
                arguments = (model, parallel, options.repeats, Path(directory))
                verify_s, load_s, read_bytes = run_ranks(world, _load, *arguments, timeout_s=TIMEOUT_S)[0]
                same = same or (load_s, sum(read_bytes))
                print(
                    f"{name:24}{verify_s:9.2f}{load_s:8.2f}{load_s / same[0]:7.2f}{sum(read_bytes) / 1e6:9.1f}"
                    f"{sum(read_bytes) / same[1]:6.2f}   {' '.join(f'{own / 1e6:.1f}' for own in read_bytes)}",
                    flush=True,
                )


def _save(model: dict[str, Any], repeats: int, directory: Path) -> tuple[list[float], list[float], list[Saved]]:
    """(seconds each save held training up with one in flight, and with none; the first rank's messages)."""
    engine = _engine(model, WRITER)
    for part in engine.state().values():
        for piece in part.pieces:
            piece.value.uniform_()
    held: dict[int, list[float]] = {1: [], 0: []}
    saved: list[Saved] = []
    step = 0
    for in_flight, held_s in held.items():
        with Saver(directory, keep=1, in_flight=in_flight, saved=saved.append) as saver:
            saver.reserve(engine.state())
            for _ in range(repeats):
                step += 1
                dist.barrier()
                held_s.append(max(gather(saver.save(engine.state(), record(step), b"tokenizer"))))
                saver.wait()
    return held[1], held[0], saved


def _load(
    model: dict[str, Any], parallel: dict[str, Any], repeats: int, directory: Path
) -> tuple[float, float, list[int]]:
    """(median seconds of verifying, of loading, bytes read by each rank)."""
    engine = _engine(model, parallel)
    checkpoint = next(directory.iterdir())
    verify_s, load_s, read_bytes = [], [], 0
    for _ in range(repeats):
        seconds, problem = _from_disk(checkpoint, lambda: store.verify(checkpoint))
        assert problem is None, problem
        verify_s.append(seconds)
        seconds, read_bytes = _from_disk(checkpoint, lambda: store.load(checkpoint, engine.state()))
        load_s.append(seconds)
    return statistics.median(verify_s), statistics.median(load_s), gather(read_bytes)


def _engine(model: dict[str, Any], parallel: dict[str, Any]) -> Engine:
    """Without initial weights, which take longer to make than a checkpoint to load."""
    config = tiny_config(model=model, parallel=parallel)
    return make_engine(config, plan_layout(config, dist.get_world_size()))


def _from_disk(checkpoint: Path, work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of the slowest rank, what `work` gave), none of the files being in memory."""
    for path in checkpoint.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    dist.barrier()
    started_s = time.perf_counter()
    result = work()
    return max(gather(time.perf_counter() - started_s)), result


if __name__ == "__main__":
    main()
