"""Description of a machine without a data sheet, from what `pretrain/preflight/step_timing.py` measured on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import Device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import Constants, constants
from pretrain.plan.estimate.entries import Array
from pretrain.plan.estimate.seconds import step_seconds

_PULL = 0.05  # towards where constants start, of their logarithms
# Attention is estimated as Hopper's, which comes before `cpu` among generations.
_START = {
    "matmul_cpu": 0.8, "depth": 20.0, "launch_s": 1e-5, "norm_passes": 20.0, "activation_passes": 8.0,
    "flash2_hopper": 0.3, "loss_passes": 12.0, "update_bytes": 40.0, "step_s": 2e-3,
}  # fmt: skip
# What a CPU does not have: tiles scheduled in waves, communication that overlaps with compute, stragglers.
_GIVEN = {
    "wave_share": 0.0, "operations": 20.0, "memory_share": 1.0, "flash_backward": 2.5, "attention_block": 32.0,
    "tensor_exposed": 1.0, "pipeline_exposed": 1.0, "replica_exposed": 1.0, "link_share": 1.0, "network_share": 1.0,
    "straggler": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class RankTimings:
    """Timings of the slowest rank, while some number of ranks work at the same time."""

    seconds: Sequence[float]
    """seconds of a step of each config, with each rank in a group of its own"""
    message_s: float
    """seconds that a small all-reduce adds to ranks that compute; 0 for one rank"""
    link_bytes_per_s: float
    """bytes per second that each rank sends in a large all-reduce; 0 for one rank"""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Measurements of one machine."""

    name: str
    cores: int
    memory_bytes: float
    memory_bytes_per_s: float
    fp32_flops: float
    bf16_flops: float
    rank_bytes: float
    """bytes that a rank holds with almost no model"""
    configs: Sequence[RunConfig]
    timings: Mapping[int, RankTimings]
    """timings for each number of ranks at work at the same time"""


def describe_machine(machine: Machine) -> Device:
    """The hardware file: peaks as measured with one rank, and for each number of ranks at once the constants with which
    estimates of the configs' steps come nearest to what was measured (least squares of logarithms)."""
    most = max(machine.timings)
    links = [one.link_bytes_per_s for one in machine.timings.values() if one.link_bytes_per_s]
    link = links[-1] if links else machine.memory_bytes_per_s  # one rank has none
    bare = Device(
        source=f"measured on {machine.name}, {machine.cores} cores, by pretrain plan --calibrate",
        generation="cpu",
        memory_gib=machine.memory_bytes / most / 2**30,
        memory_bytes_per_s=machine.memory_bytes_per_s,
        fp32_flops=machine.fp32_flops,
        bf16_flops=machine.bf16_flops,
        processors=1,
        devices=most,
        link_bytes_per_s=link,
        network_bytes_per_s=link,
    )
    measured = {}
    for ranks, timing in machine.timings.items():
        given = _GIVEN | {"overhead_gib": machine.rank_bytes / 2**30, "message_s": timing.message_s / 2}
        given["link_share"] = timing.link_bytes_per_s / link if timing.link_bytes_per_s else 1.0
        given["bubble_share"] = float(ranks <= machine.cores)  # with more, a core is never without work
        fitted = _fitted(machine.configs, timing.seconds, bare, given)
        measured[ranks] = {name: float(f"{value:.4g}") for name, value in (given | fitted).items()}
    return bare.model_copy(update={"measured": measured})


def _fitted(
    configs: Sequence[RunConfig], seconds: Sequence[float], device: Device, given: Mapping[str, float]
) -> dict[str, float]:  # fmt: skip
    works = [
        WorkloadBuilder(config, device, 1).build(
            [LayoutChoice(plan_layout(config, 1), config.batch.micro_sequences, config.parallel.recompute)]
        )
        for config in configs
    ]
    names, start = list(_START), np.log(list(_START.values()))
    fixed, target = {**constants().values, **given}, np.log(seconds)

    def residuals(x: Array) -> Array:
        c = Constants({**fixed, **dict(zip(names, np.exp(x).tolist(), strict=True))})
        off = np.array([np.log(step_seconds(work, c).total[0]) for work in works]) - target
        return np.concatenate([off, _PULL * (x - start)])

    x = least_squares(residuals, start).x
    return dict(zip(names, np.exp(x).tolist(), strict=True))
