"""Report of `pretrain rehearse`, as text and as JSON: what was counted, beside the planner's figures."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

from pretrain.rehearse.against_plan import compare_with_plan
from pretrain.rehearse.agreement import ExchangeAgreement
from pretrain.rehearse.planned import PlannedRank
from pretrain.rehearse.rank_rehearsal import STATE, RankRehearsal, causes, largest_first
from pretrain.rehearse.run import Rehearsal

_GIB, _MIB, _GIGA, _TERA = 2**30, 2**20, 1e9, 1e12
_RANK_COLUMNS = (
    f"{'rank':>6}{'stage':>8}{'parameters':>16}{'build GiB':>11}{'reserved':>10}{'peak GiB':>10}{'reserved':>10}"
)
_SHOWN = 3
"""most of the largest tensors that are shown"""
NOT_COUNTED = (
    "not measured: workspaces of kernels, buffers of NCCL and the CUDA context, for which constants are added; rows "
    "are taken to be full"
)
APPROXIMATIONS = {
    "compiled": (
        "run.kernels=compiled is counted without fusion, since torch.compile generates fused kernels on a GPU alone: "
        "matrix products are those of compiled kernels, operations between them are counted one by one and keep what "
        "plain kernels keep, and the plan's figures are of fused ones"
    ),
    "flex_attention": (
        "flex_attention is counted as flash attention with as many keys as a query sees on average, since torch "
        "compiles it on a GPU alone"
    ),
}
"""Sentences for what a run uses and a rehearsal counts as something else."""


def as_json(rehearsal: Rehearsal, hardware: str) -> dict[str, Any]:
    """Full report for programs."""
    return {
        "layout": str(rehearsal.layout),
        "gpus": rehearsal.layout.world,
        "hardware": hardware,
        "memory_bytes": rehearsal.device.memory_gib * _GIB,
        **asdict(replace(rehearsal.work, checkpoint=None)),
        "checkpoint": None if rehearsal.work.checkpoint is None else str(rehearsal.work.checkpoint),
        "micro_batches": rehearsal.micro_batches,
        "run_micro_batches": rehearsal.run_micro_batches,
        "ranks": [
            {
                **_without_log(rank),
                "needed_bytes": rank.needed_bytes,
                "sent_bytes": rank.sent_bytes,
                **_plan_of(rank, of_rank),
            }
            for rank, of_rank in rehearsal.with_plans
        ],
        "agreement": asdict(rehearsal.agreement),
        "approximations": _approximations(rehearsal),
        "problems": rehearsal.problems,
    }


def _plan_of(rank: RankRehearsal, planned: PlannedRank | None) -> dict[str, Any]:
    if planned is None:
        return {"plan": None, "against_plan": []}
    return {
        "plan": {**asdict(planned), "peak_bytes": planned.peak_bytes},
        "against_plan": [{**asdict(one), "ratio": one.ratio} for one in compare_with_plan(rank, planned)],
    }


def _without_log(rank: RankRehearsal) -> dict[str, Any]:
    figures = asdict(replace(rank, exchange_log={}))
    del figures["exchange_log"]
    return figures


def lines(rehearsal: Rehearsal, name: str, hardware: str, against_plan: bool = False) -> list[str]:
    """Report for people: a row for each rank, then each rank's memory, exchanges and waits. `against_plan` adds a table
    of all figures beside the planner's."""
    made = _training_lines if rehearsal.work.trains else _evaluation_lines
    title = f"{name} on {rehearsal.layout.world:,} x {hardware}: {rehearsal.layout}, "
    notes = [agreement_line(rehearsal.agreement), *_approximations(rehearsal), NOT_COUNTED]
    return [*made(rehearsal, title, against_plan), "", *notes]


def _training_lines(rehearsal: Rehearsal, title: str, against_plan: bool) -> Iterable[str]:
    yield (
        f"{title}{rehearsal.micro_batches} micro-batches of {rehearsal.config.batch.micro_sequences} sequences "
        f"({rehearsal.run_micro_batches} in the run)"
    )
    yield ""
    yield f"{_RANK_COLUMNS}{'plan GiB':>10}{'TFLOP':>10}{'operators':>11}{'waits':>7}"
    made = [(rank, planned) for rank, planned in rehearsal.with_plans if rank.problem is None]
    for rank, planned in made:
        peak = "-" if planned is None else f"{planned.peak_bytes / _GIB:.3f}"
        yield (
            f"{_rank_row(rank, rehearsal)}{peak:>10}"
            f"{sum(rank.flops.values()) / _TERA:>10,.3g}{rank.operators:>11,}{sum(rank.waits.values()):>7,}"
        )
    for rank, planned in made:
        yield from ("", *_rank_lines(rank, planned))
        if against_plan and planned is not None:
            yield from ("", *_against_plan_lines(rank, planned))


def _evaluation_lines(rehearsal: Rehearsal, title: str, _: bool) -> Iterable[str]:
    verb = {"score": "scores", "generate": "continues"}[rehearsal.work.what]
    yield f"{title}each data rank {verb} {rehearsal.work.sequences:,} texts at once"
    yield ""
    yield _RANK_COLUMNS
    made = [rank for rank in rehearsal.ranks if rank.problem is None]
    yield from (_rank_row(rank, rehearsal) for rank in made)
    for rank in made:
        yield ""
        yield f"{f'rank {rank.rank}':<50}{'peak GiB':>10}{'GFLOP':>12}{'operators':>11}{'waits':>7}{'sends MiB':>11}"
        for part in rank.parts:
            yield (
                f"  {part.name:<48}{part.peak_bytes / _GIB:>10.3f}{_giga(sum(part.flops.values())):>12}"
                f"{part.operators:>11,}{sum(part.waits.values()):>7,}{sum(part.sent_bytes.values()) / _MIB:>11,.1f}"
            )
        yield from _part_lines(rank)


def _part_lines(rank: RankRehearsal) -> Iterable[str]:
    fullest = max(rank.parts, key=lambda part: part.peak_bytes)
    yield f"  at its peak, in the {fullest.name}, MiB: {_shares(rank)}"
    yield from _memory_lines(rank)
    for part in rank.parts:
        if part.repeats:
            yield f"  waits of the host in the {part.name}: {causes(part.waits) or 'none'}"
    yield from _kernel_lines(rank)


def _giga(flops: int) -> str:
    return f"{flops / _GIGA:,.0f}" if flops >= 100 * _GIGA else f"{flops / _GIGA:.3g}"


def _rank_row(rank: RankRehearsal, rehearsal: Rehearsal) -> str:
    stage = f"{rank.coordinates[-1]}/{rehearsal.layout.pipeline}"
    return (
        f"{rank.rank:>6}{stage:>8}{rank.parameters:>16,}{rank.build_peak_bytes / _GIB:>11.3f}"
        f"{rank.build_reserved_bytes / _GIB:>10.3f}{rank.peak_bytes / _GIB:>10.3f}{rank.reserved_bytes / _GIB:>10.3f}"
    )


def _approximations(rehearsal: Rehearsal) -> list[str]:
    used = {name for rank in rehearsal.ranks for name in rank.approximations}
    return [sentence for name, sentence in APPROXIMATIONS.items() if name in used]


def agreement_line(agreement: ExchangeAgreement) -> str:
    """Whether the exchanges of ranks that meet agree, and how many were compared."""
    if not agreement.groups + agreement.neighbours:
        return "exchanges: none of these ranks meet, so none are compared (--ranks all-kinds rehearses ranks that do)"
    verdict = "agree" if not agreement.disagreements else "disagree (below)"
    return (
        f"exchanges of ranks that meet {verdict}: {agreement.collectives:,} collectives in {agreement.groups:,} "
        f"groups, {agreement.messages:,} messages between {agreement.neighbours:,} pairs"
    )


def _rank_lines(rank: RankRehearsal, planned: PlannedRank | None) -> Iterable[str]:
    yield f"rank {rank.rank} at its peak, in {rank.peak_phase}, MiB: {_shares(rank)}"
    if planned is not None:
        yield _planned_line(rank, planned)
    yield from _memory_lines(rank)
    counted, expected = rank.sent_bytes, {} if planned is None else planned.sent_bytes
    groups = [group for group, size in expected.items() if size or counted.get(group)]
    sent = [f"{g} {counted.get(g, 0.0) / _MIB:,.1f} (plan {expected[g] / _MIB:,.1f})" for g in groups]
    sent += [f"{g} {size / _MIB:,.1f}" for g, size in counted.items() if g not in groups and size >= _MIB / 10]
    yield f"  sends in a step, MiB: {', '.join(sent) or 'nothing'}"
    products = sum(moved for name, moved in rank.moved_bytes.items() if name in rank.flops)
    others = sum(rank.moved_bytes.values()) - products
    yield f"  moves in a step, GiB: {products / _GIB:,.1f} in products and attention, {others / _GIB:,.1f} in others"
    yield f"  waits of the host in every step: {causes(rank.waits) or 'none'}"
    once = {
        cause: n - rank.waits.get(cause, 0) for cause, n in rank.first_waits.items() if n > rank.waits.get(cause, 0)
    }
    if once:
        yield f"  in the first step alone: {causes(once)}"
    yield from _kernel_lines(rank)


def _planned_line(rank: RankRehearsal, planned: PlannedRank) -> str:
    beside = sum(size for category, size in rank.at_peak_bytes.items() if category not in STATE)
    state = [f"{category} {planned.held[category] / _MIB:,.0f}" for category in STATE]
    others = sum(size for part, size in planned.held.items() if part not in STATE)
    return f"  plan: {', '.join(state)}, all else {others / _MIB:,.0f} (counted {beside / _MIB:,.0f})"


def _shares(rank: RankRehearsal) -> str:
    return ", ".join(f"{category} {size / _MIB:,.0f}" for category, size in largest_first(rank.at_peak_bytes))


def _memory_lines(rank: RankRehearsal) -> Iterable[str]:
    if rank.load is not None:
        files = "" if rank.load.files is None else f" of {rank.load.files:,} files"
        yield (
            f"  loads a checkpoint: reads {rank.load.read_bytes / _MIB:,.0f} MiB{files} for {rank.load.tensors:,} "
            f"tensors, at most {rank.load.host_bytes / _MIB:,.1f} MiB at a time; peak "
            f"{rank.load.peak_bytes / _GIB:,.3f} GiB"
        )
    for one in rank.largest[:_SHOWN]:
        yield (
            f"  {one.count} x {one.total_bytes / one.count / _MIB:,.1f} MiB of {one.operator} {list(one.shape)} "
            f"{one.dtype}, made in {one.category}{f' of {one.module}' if one.module else ''} ({one.line})"
        )
    lost = rank.reserved_bytes - rank.peak_bytes
    retries = f", after {rank.allocator_retries} returns of segments as the device was full" * (
        rank.allocator_retries > 0
    )
    yield (
        f"  reserved by the allocator: {lost / _MIB:,.0f} MiB ({lost / rank.peak_bytes:.1%}) more than "
        f"lives at the peak{retries}; constant for libraries: {rank.unmeasured_bytes / _MIB:,.0f} MiB"
    )


def _kernel_lines(rank: RankRehearsal) -> Iterable[str]:
    if rank.without_kernel:
        yield f"  operators without a CUDA kernel: {causes(rank.without_kernel)}"


def _against_plan_lines(rank: RankRehearsal, planned: PlannedRank) -> Iterable[str]:
    yield f"  {f'rank {rank.rank} against plan':<28}{'unit':>6}{'counted':>14}{'plan':>14}{'ratio':>8}"
    for one in compare_with_plan(rank, planned):
        expected, ratio = ("-" if value is None else f"{value:,.3f}" for value in (one.planned, one.ratio))
        yield f"  {one.name:<28}{one.unit:>6}{one.counted:>14,.3f}{expected:>14}{ratio:>8}"
