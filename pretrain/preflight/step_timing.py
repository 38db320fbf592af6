"""Measurements of this machine for `pretrain plan calibrate`: seconds of small training steps and of messages.

One rank works, then two, then four at the same time, on the engine that trains and each in a process group of its own,
so the figures include what ranks on one machine cost each other. After that the same ranks communicate.
"""

import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pretrain.config.load import validate
from pretrain.config.run_config import RunConfig
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device, rendezvous
from pretrain.engine.collective import gather
from pretrain.engine.make import make_engine
from pretrain.layout.layout import plan_layout
from pretrain.plan.machine import Machine, RankTimings
from pretrain.preflight import exchanges, machine
from pretrain.process.memory import host_bytes

_WARMUP_STEPS, _MIN_STEPS, _MIN_TIMED_S = 2, 3, 0.4  # of each config
_TIMEOUT_S = 120
_SIDE, _REPEATS = 256, 50  # side of a matrix product between two all-reduces, and how many of both are timed at once
# Every kind of work in a step takes most of the time of one of these configs.
_SIZES = ("layers", "hidden", "heads", "length", "rows", "micro_batches", "vocabulary")
_SHAPES = (
    (2, 64, 4, 64, 2, 1, 256), (8, 64, 4, 64, 2, 1, 256), (2, 64, 4, 64, 2, 8, 256),
    (2, 256, 4, 256, 4, 1, 512), (2, 512, 8, 256, 2, 1, 512), (4, 128, 4, 256, 8, 1, 512),
    (1, 128, 4, 256, 2, 1, 16_384), (1, 768, 12, 32, 1, 1, 8_192), (2, 128, 4, 1_024, 1, 1, 512),
)  # fmt: skip


def configs() -> list[RunConfig]:
    """The configs whose training steps are timed."""
    return [_config(**dict(zip(_SIZES, shape, strict=True))) for shape in _SHAPES]


def measure_machine(store: dist.Store, rank: int, world: int, threads: int | None) -> Machine | None:  # type: ignore[name-defined]
    """Measures the machine. Returns the result on rank 0, None on the others.

    Every rank calls this, outside any process group. `threads` per rank; None: an equal share of the cores, which is
    what ranks of a run get (`process/local.py`).
    """
    cpu, step_configs = device.install(), configs()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads or cores)
    constants, timings = (_constants(cpu, cores) if rank == 0 else {}), {}
    for ranks in _rank_counts(world):
        if rank < ranks:
            torch.set_num_threads(threads or max(1, cores // ranks))
            step_s = list(_step_seconds(store, rank, ranks, step_configs))
            message_s, link_bytes_per_s = _communication(store, rank, ranks, cpu)
            store.set(f"seconds-{ranks}-{rank}", json.dumps(step_s))
            if rank == 0:
                of_ranks = [json.loads(store.get(f"seconds-{ranks}-{one}")) for one in range(ranks)]
                slowest = [max(column) for column in zip(*of_ranks, strict=True)]
                timings[ranks] = RankTimings(slowest, message_s, link_bytes_per_s)
        _barrier(store, f"done-{ranks}", world)
    return Machine(**constants, configs=step_configs, timings=timings) if rank == 0 else None


def _constants(cpu: torch.device, cores: int) -> dict[str, Any]:
    """Constants of the machine, and of one rank on it."""
    rank_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    flops, _ = machine.product(cpu)
    half, _ = machine.product(cpu, torch.bfloat16)
    return {
        "name": platform.processor() or platform.machine(),
        "cores": cores,
        "memory_bytes": float(host_bytes()),
        "memory_bytes_per_s": machine.memory(),
        "fp32_flops": flops,
        "bf16_flops": half,
        "rank_bytes": float(rank_bytes),
    }


def _step_seconds(
    store: dist.Store,  # type: ignore[name-defined]
    rank: int,
    ranks: int,
    step_configs: Sequence[RunConfig],
) -> Iterator[float]:
    """Median seconds of a step of each config, while `ranks` ranks run the same."""
    for number, config in enumerate(step_configs):
        with rendezvous.temporary_process_group(store, f"alone-{ranks}-{number}-{rank}", 0, 1, _TIMEOUT_S):
            engine = make_engine(config, plan_layout(config, 1))
            engine.initialise()
            rows = SyntheticStream(config).batch(0, config.batch.sequences, 0, 1)
            _barrier(store, f"ready-{ranks}-{number}", ranks)
            times: list[float] = []
            while len(times) < _WARMUP_STEPS + _MIN_STEPS or sum(times[_WARMUP_STEPS:]) < _MIN_TIMED_S:
                started_s = time.perf_counter()
                engine.train_step(rows, 1e-4, len(times))
                times.append(time.perf_counter() - started_s)
            del engine
        yield statistics.median(times[_WARMUP_STEPS:])


def _communication(store: dist.Store, rank: int, ranks: int, cpu: torch.device) -> tuple[float, float]:  # type: ignore[name-defined]
    """Seconds that a small all-reduce adds to ranks that compute, and bytes per second that each rank sends in a large
    all-reduce. The small one is timed between matrix products, since ranks that compute on shared cores wait longer for
    each other than idle ones."""
    if ranks == 1:
        return 0.0, 0.0
    with rendezvous.temporary_process_group(store, f"together-{ranks}", rank, ranks, _TIMEOUT_S):
        _, bytes_per_s = exchanges.all_reduce(cpu)
        side, small = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE)

        def seconds_per_repeat(with_all_reduce: bool) -> float:
            dist.barrier()
            started_s = time.perf_counter()
            for _ in range(_REPEATS):
                torch.mm(side, side)
                if with_all_reduce:
                    dist.all_reduce(small)
            dist.barrier()
            return (time.perf_counter() - started_s) / _REPEATS

        pairs = [(seconds_per_repeat(True), seconds_per_repeat(False)) for _ in range(3)]
        added_s = max(gather(statistics.median(both_s - compute_s for both_s, compute_s in pairs)))
    return max(0.0, added_s), bytes_per_s * 2 * (ranks - 1) / ranks


def _rank_counts(world: int) -> list[int]:
    """1, 2, 4, ... and `world`."""
    return sorted({*(2**k for k in range(world.bit_length()) if 2**k <= world), world})


def _barrier(store: dist.Store, name: str, ranks: int) -> None:  # type: ignore[name-defined]
    store.add(name, 1)
    while store.add(name, 0) < ranks:
        time.sleep(0.002)


def _config(
    *, layers: int, hidden: int, heads: int, length: int, rows: int, micro_batches: int, vocabulary: int
) -> RunConfig:
    """A run of micro-batches of `rows` x `length` tokens."""
    tree = {
        "run": {"name": "calibrate", "dir": "calibrate"},
        "train": {"steps": 1},
        "batch": {"sequences": rows * micro_batches, "micro_sequences": rows},
        "model": {
            "family": "gpt", "layers": layers, "hidden": hidden, "heads": heads, "sequence_length": length,
            "vocabulary": vocabulary,
        },
        "optimizer": {"learning_rate": 1e-4},
    }  # fmt: skip
    return validate(RunConfig, tree, "calibrate")
