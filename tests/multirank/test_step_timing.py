"""`pretrain plan calibrate` without a run: ranks measure the machine that they are on."""

import os
from pathlib import Path

import pytest

from pretrain.plan.device import Device
from pretrain.plan.machine import Machine, describe_machine
from tests.helpers.ranks import run_ranks

FEW = ((1, 16, 2, 16, 1, 1, 64), (1, 64, 2, 64, 2, 2, 64))


def _measure(folder: Path) -> Machine | None:
    import torch.distributed as dist

    from pretrain.preflight import step_timing

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.destroy_process_group()  # calibration makes its own
    step_timing._SHAPES, step_timing._MIN_TIMED_S = FEW, 0.0
    return step_timing.measure_machine(dist.FileStore(str(folder / "store"), world), rank, world, threads=1)


def test_ranks_are_timed_alone_and_at_once(tmp_path: Path) -> None:
    machine, other = run_ranks(2, _measure, tmp_path)
    assert other is None
    assert sorted(machine.timings) == [1, 2]
    for one in machine.timings.values():
        assert len(one.seconds) == len(FEW)
        assert all(0 < seconds < 60 for seconds in one.seconds)
    assert machine.timings[1].message_s == 0 < machine.timings[2].message_s
    assert machine.timings[2].link_bytes_per_s > 0
    assert 2**27 < machine.rank_bytes < machine.memory_bytes
    assert machine.fp32_flops > 1e8
    device = describe_machine(machine)
    assert isinstance(device, Device)
    assert device.devices == 2


def _slowest() -> Machine | None:
    import torch.distributed as dist

    from pretrain.preflight import step_timing

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.distributed_c10d._get_default_store()
    step_timing._constants = lambda cpu, cores: dict.fromkeys(
        ("name", "cores", "memory_bytes", "memory_bytes_per_s", "fp32_flops", "bf16_flops", "rank_bytes"), 1
    )
    step_timing._step_seconds = lambda store, rank, ranks, step_configs: iter([1.0 + rank, 2.0 - rank])
    step_timing._communication = lambda store, rank, ranks, cpu: (0.0, 0.0)
    return step_timing.measure_machine(store, rank, world, threads=1)


def test_a_step_takes_as_long_as_on_the_slowest_rank() -> None:
    machine, _ = run_ranks(2, _slowest)
    assert machine.timings[1].seconds == [1.0, 2.0]
    assert machine.timings[2].seconds == [2.0, 2.0]


@pytest.mark.parametrize(("world", "numbers"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])])
def test_numbers_of_ranks_that_are_tried(world: int, numbers: list[int]) -> None:
    from pretrain.preflight.step_timing import _rank_counts

    assert _rank_counts(world) == numbers
