"""A machine described by timed steps: that estimates on it are what the machine does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pretrain.config.load import dump, load
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import plan_layout
from pretrain.plan.device import Device, find_device
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import Constants, constants, constants_on
from pretrain.plan.estimate.seconds import step_seconds
from pretrain.plan.machine import Machine, RankTimings, describe_machine
from pretrain.preflight.step_timing import configs
from tests.helpers.small_configs import config

# What a machine that is not there does: no constant is where the fit starts.
TRUTH = {
    "matmul_cpu": 0.6, "depth": 40.0, "launch_s": 2e-5, "norm_passes": 45.0, "activation_passes": 15.0,
    "flash2_hopper": 0.15, "loss_passes": 30.0, "update_bytes": 80.0, "step_s": 5e-3, "wave_share": 0.0,
    "operations": 20.0, "memory_share": 1.0, "flash_backward": 2.5, "attention_block": 32.0, "straggler": 0.0,
    "tensor_exposed": 1.0, "pipeline_exposed": 1.0, "replica_exposed": 1.0, "message_s": 1e-4,
}  # fmt: skip
MACHINE = Machine(
    name="nowhere",
    cores=2,
    memory_bytes=2**34,
    memory_bytes_per_s=1e10,
    fp32_flops=1e11,
    bf16_flops=2e11,
    rank_bytes=2**29,
    configs=configs(),
    timings={},
)


def _seconds(run: RunConfig, device: Device, c: Constants, ranks: int = 1) -> float:
    choice = LayoutChoice(plan_layout(run, ranks), run.batch.micro_sequences, "none")
    return float(step_seconds(WorkloadBuilder(run, device, ranks).build([choice]), c).total[0])


@pytest.fixture(scope="module")
def device() -> Device:
    bare = describe_machine(replace(MACHINE, timings={1: RankTimings([1.0] * len(MACHINE.configs), 0.0, 0.0)}))
    true = Constants({**constants().values, **TRUTH})
    alone = [_seconds(run, bare, true) for run in MACHINE.configs]
    crowded = RankTimings([1.7 * one for one in alone], 2e-4, 5e8)
    return describe_machine(replace(MACHINE, timings={1: RankTimings(alone, 0.0, 0.0), 2: crowded}))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [{"layers": 6, "hidden": 192, "heads": 6}, {"layers": 3, "hidden": 384, "heads": 6}])
def test_steps_that_were_not_timed_are_as_long_as_on_the_machine(device: Device, shape: dict[str, int]) -> None:
    run = config(model={**shape, "sequence_length": 256, "vocabulary": 4096}, batch={"sequences": 8})
    true = Constants({**constants().values, **TRUTH})
    for ranks, slower in ((1, 1.0), (2, 1.7)):
        found = _seconds(run, device, constants_on(device, ranks))
        assert found == pytest.approx(slower * _seconds(run, device, true), rel=0.05), ranks


@pytest.mark.slow
def test_ranks_of_a_pipeline_that_share_cores_gain_what_others_wait(device: Device) -> None:
    run = config(batch={"sequences": 8}, parallel={"pipeline": 2})
    steps = len(MACHINE.configs)
    timings = {1: RankTimings([1.0] * steps, 0.0, 0.0), 2: RankTimings([2.0] * steps, 2e-4, 5e8)}
    shared = describe_machine(replace(MACHINE, cores=1, timings=timings))
    for machine, waits in ((device, True), (shared, False)):
        choice = LayoutChoice(plan_layout(run, 2), run.batch.micro_sequences, "none")
        work = WorkloadBuilder(run, machine, 2).build([choice])
        assert (step_seconds(work, constants_on(machine, 2)).bubble[0] > 0) == waits


@pytest.mark.slow
def test_what_ranks_take_from_each_other_holds_for_as_many_ranks(device: Device, tmp_path: Path) -> None:
    assert sorted(device.measured) == [1, 2]
    assert device.measured_at(1)["message_s"] == 0
    assert [device.measured_at(ranks)["message_s"] for ranks in (2, 3)] == [1e-4, 1e-4]
    assert device.link_bytes_per_s == 5e8
    file = tmp_path / "here.yaml"
    file.write_text(dump(device))
    assert load(Device, file) == device


def test_a_measured_constant_stands_in_place_of_the_packages() -> None:
    device = find_device("h100").model_copy(update={"measured": {1: {"step_s": 1e-3}, 2: {"step_s": 5e-3}}})
    c = constants_on(device, 2)
    assert c.step_s == device.measured[2]["step_s"] != constants().step_s
    assert c.fragments == constants().fragments
    assert constants_on(find_device("h100"), 8).values == constants().values
    with pytest.raises(ConfigError, match="measured: warp_s is no constant of"):
        constants_on(device.model_copy(update={"measured": {1: {"warp_s": 1.0}}}), 1)


@pytest.mark.slow
def test_timed_steps_cover_what_a_step_is_made_of() -> None:
    """Else a constant stays where the fit starts: each moves the estimate of some config."""
    bare = describe_machine(replace(MACHINE, timings={1: RankTimings([1.0] * len(MACHINE.configs), 0.0, 0.0)}))
    true = {**constants().values, **TRUTH}
    for name in ("matmul_cpu", "launch_s", "norm_passes", "flash2_hopper", "loss_passes", "update_bytes", "step_s"):
        other = Constants({**true, name: 2 * true[name]})
        moved = [_seconds(run, bare, other) / _seconds(run, bare, Constants(true)) for run in MACHINE.configs]
        assert np.abs(np.log(moved)).max() > 0.05, name
