"""What this machine does with small training steps and messages: `pretrain plan --calibrate`.

One rank works, then two, then four at the same time, each alone in a group of its own, on the engine that trains; so
what ranks of one machine take from each other is in the figures. Then those ranks exchange."""

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
from pretrain.plan.measured import AtOnce, Machine
from pretrain.preflight import exchanges, machine
from pretrain.process.memory import host_bytes

_WARMING, _FEWEST, _LONG_ENOUGH_S = 2, 3, 0.4  # steps of each config, and how long they are timed at least
_PATIENCE_S = 120
_SIDE, _TURNS = 256, 50  # of a product between two exchanges, and how many of these are timed at once
# layers, hidden, heads, length, rows of a micro-batch, micro-batches, words: each part of a step is most of some step.
_SHAPES = (
    (2, 64, 4, 64, 2, 1, 256), (8, 64, 4, 64, 2, 1, 256), (2, 64, 4, 64, 2, 8, 256),
    (2, 256, 4, 256, 4, 1, 512), (2, 512, 8, 256, 2, 1, 512), (4, 128, 4, 256, 8, 1, 512),
    (1, 128, 4, 256, 2, 1, 16_384), (1, 768, 12, 32, 1, 1, 8_192), (2, 128, 4, 1_024, 1, 1, 512),
)  # fmt: skip


def configs() -> list[RunConfig]:
    """The steps that are timed."""
    return [_config(*shape) for shape in _SHAPES]


def measured(store: dist.Store, rank: int, world: int, threads: int | None) -> Machine | None:  # type: ignore[name-defined]
    """On rank 0 what was found; None on the others. Every rank calls this, outside any process group. `threads` of each
    rank; None: as ranks of a run have them (`process/local.py`), the cores' share."""
    cpu, asked = device.install(), configs()
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads or cores)
    told, at_once = (_alone(cpu, cores) if rank == 0 else {}), {}
    for ranks in _numbers(world):
        if rank < ranks:
            torch.set_num_threads(threads or max(1, cores // ranks))
            own = list(_seconds(store, rank, ranks, asked))
            message_s, link = _exchanged(store, rank, ranks, cpu)
            store.set(f"seconds-{ranks}-{rank}", json.dumps(own))
            if rank == 0:
                of_ranks = [json.loads(store.get(f"seconds-{ranks}-{one}")) for one in range(ranks)]
                slowest = [max(column) for column in zip(*of_ranks, strict=True)]
                at_once[ranks] = AtOnce(slowest, message_s, link)
        _meet(store, f"done-{ranks}", world)
    return Machine(**told, configs=asked, at_once=at_once) if rank == 0 else None


def _alone(cpu: torch.device, cores: int) -> dict[str, Any]:
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


def _seconds(store: dist.Store, rank: int, ranks: int, asked: Sequence[RunConfig]) -> Iterator[float]:  # type: ignore[name-defined]
    """Seconds of a step of each config, the median of a few, while `ranks` ranks run the same."""
    for number, config in enumerate(asked):
        with rendezvous.temporary_process_group(store, f"alone-{ranks}-{number}-{rank}", 0, 1, _PATIENCE_S):
            engine = make_engine(config, plan_layout(config, 1))
            engine.initialise()
            rows = SyntheticStream(config).batch(0, config.batch.sequences, 0, 1)
            _meet(store, f"ready-{ranks}-{number}", ranks)
            times: list[float] = []
            while len(times) < _WARMING + _FEWEST or sum(times[_WARMING:]) < _LONG_ENOUGH_S:
                started_s = time.perf_counter()
                engine.train_step(rows, 1e-4, len(times))
                times.append(time.perf_counter() - started_s)
            del engine
        yield statistics.median(times[_WARMING:])


def _exchanged(store: dist.Store, rank: int, ranks: int, cpu: torch.device) -> tuple[float, float]:  # type: ignore[name-defined]
    """(what a small all-reduce adds to ranks that work, in seconds; bytes a second that each rank sends in a large
    one). Ranks that do nothing else find each other at once; those that work, on shared cores too, wait longer."""
    if ranks == 1:
        return 0.0, 0.0
    with rendezvous.temporary_process_group(store, f"together-{ranks}", rank, ranks, _PATIENCE_S):
        _, bytes_per_s = exchanges.all_reduce(cpu)
        side, small = torch.ones(_SIDE, _SIDE), torch.ones(_SIDE)

        def worked(exchanges_too: bool) -> float:
            dist.barrier()
            started_s = time.perf_counter()
            for _ in range(_TURNS):
                torch.mm(side, side)
                if exchanges_too:
                    dist.all_reduce(small)
            dist.barrier()
            return (time.perf_counter() - started_s) / _TURNS

        pairs = [(worked(True), worked(False)) for _ in range(3)]
        added_s = max(gather(statistics.median(both - alone for both, alone in pairs)))
    return max(0.0, added_s), bytes_per_s * 2 * (ranks - 1) / ranks


def _numbers(world: int) -> list[int]:
    """1, 2, 4, ... and all."""
    return sorted({*(2**k for k in range(world.bit_length()) if 2**k <= world), world})


def _meet(store: dist.Store, name: str, ranks: int) -> None:  # type: ignore[name-defined]
    store.add(name, 1)
    while store.add(name, 0) < ranks:
        time.sleep(0.002)


def _config(layers: int, hidden: int, heads: int, length: int, rows: int, times: int, words: int) -> RunConfig:
    tree = {
        "run": {"name": "measure", "dir": "measure"},
        "train": {"steps": 1},
        "batch": {"sequences": rows * times, "micro_sequences": rows},
        "model": {
            "family": "gpt", "layers": layers, "hidden": hidden, "heads": heads, "sequence_length": length,
            "vocabulary": words,
        },
        "optimizer": {"learning_rate": 1e-4},
    }  # fmt: skip
    return validate(RunConfig, tree, "measure")
