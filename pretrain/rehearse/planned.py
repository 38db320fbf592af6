"""The planner's figures for one rank, in the units that a rehearsal counts in."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.plan.device import Device
from pretrain.plan.estimate import traffic
from pretrain.plan.estimate.builder import LayoutChoice, WorkloadBuilder
from pretrain.plan.estimate.constants import constants_on
from pretrain.plan.estimate.flops import stage_flops
from pretrain.plan.estimate.held import HeldBytes, held_bytes
from pretrain.plan.estimate.workload import StepWorkload


@dataclass(frozen=True, kw_only=True)
class PlannedRank:
    """Amounts that the planner expects of a rank."""

    parameters: float
    held: Mapping[str, float]
    """bytes of weights, gradients, optimizer, activations, working memory and buffers in a step, without overhead"""
    build_bytes: float
    """bytes while the engine is built, where these are more than a step needs; otherwise those of a step"""
    overhead_bytes: float
    """bytes of libraries and of the allocator's fragments, which a rehearsal does not count"""
    flops: float
    """operations of matrix products and attention in a step, with what is recomputed"""
    sent_bytes: Mapping[str, float]
    """bytes that the rank sends in a step, by group: tensor, context, expert, data, embedding, stage, pipeline"""

    @property
    def peak_bytes(self) -> float:
        return sum(self.held.values())


def plan_rank(config: RunConfig, layout: Layout, rank: int, device: Device, per_node: int) -> PlannedRank:
    """The planner's figures for `rank` of `layout`."""
    choice = LayoutChoice(layout, config.batch.micro_sequences, config.parallel.recompute)
    stage = layout.coordinates(rank)[-1]
    kind, work = _stage_workload(WorkloadBuilder(config, device, per_node).build([choice]), stage, layout.pipeline)
    constants = constants_on(device, per_node)
    held, full = (held_bytes(work, constants, overhead=overhead) for overhead in (False, True))
    by_part = {field.name: float(getattr(held, field.name)[0, kind]) for field in fields(HeldBytes)}
    building = by_part.pop("building")
    return PlannedRank(
        parameters=float(sum(one.parameters[0, kind] for one in work.models if one.step.trains.all())),
        held=by_part,
        build_bytes=sum(by_part.values()) + building,
        overhead_bytes=float((full.total - full.building - held.total + held.building)[0, kind]),
        flops=float(stage_flops(work)[0, kind]),
        sent_bytes=_sent(work, kind, stage, layout),
    )


def _stage_workload(work: StepWorkload, stage: int, stages: int) -> tuple[int, StepWorkload]:
    """The kind of a stage, and the workload with the stage's own place in the pipeline: middle stages are one kind, but
    hold as many micro-batches as stages follow."""
    kinds = work.stages.position.shape[1]
    kind = stage if kinds == stages else 0 if stage == 0 else kinds - 1 if stage == stages - 1 else 1

    def placed(one: StepWorkload) -> StepWorkload:
        position = one.stages.position.copy()
        position[0, kind] = stage
        return replace(one, stages=replace(one.stages, position=position), others=tuple(map(placed, one.others)))

    return kind, placed(work)


def _sent(work: StepWorkload, kind: int, stage: int, layout: Layout) -> dict[str, float]:
    wire = traffic.wire_bytes(work)
    # The planner has a stage send to both sides; the first chunk has nobody before it, the last one nobody after it.
    ends = (stage == 0) + (stage == layout.pipeline - 1)
    groups = {"tensor": wire.tensor, "context": wire.context, "expert": wire.expert}
    groups |= {"data": wire.replicas, "embedding": wire.summed}
    if wire.blocks.any():  # the sums over a stage that other optimizers need are not planned
        groups["stage"] = wire.blocks
    sent = {group: float(sizes[0, kind]) for group, sizes in groups.items()}
    return sent | {"pipeline": float(wire.pipeline[0, kind]) * (1 - ends / (2 * layout.virtual))}
