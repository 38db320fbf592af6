"""Rehearses several ranks of a run, each in a process of its own, side by side."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from pretrain.checkpoint.directory import locate
from pretrain.checkpoint.state import Record, check_same_run
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.plan.device import Device
from pretrain.plan.memory_check import nearest_fit
from pretrain.plan.planned import is_planned
from pretrain.rehearse.agreement import ExchangeAgreement, compare
from pretrain.rehearse.kinds import rank_numbers
from pretrain.rehearse.planned import PlannedRank, plan_rank
from pretrain.rehearse.rank import rehearse_rank
from pretrain.rehearse.rank_rehearsal import RankRehearsal, causes
from pretrain.rehearse.work import RehearsedWork, What, plan_work
from pretrain.run_dir.paths import RECORD

_LEAST_MICRO_BATCHES = 2
"""without a pipeline: one, and one whose gradient is added to the first's"""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A run that was rehearsed, and what was found."""

    config: RunConfig
    """with the batch that was rehearsed"""
    layout: Layout
    device: Device
    work: RehearsedWork
    micro_batches: int
    """micro-batches of a step; 0 where nothing is trained"""
    run_micro_batches: int
    """micro-batches of a step of the run; 0 where nothing is trained"""
    ranks: tuple[RankRehearsal, ...]
    planned: tuple[PlannedRank, ...]
    """the planner's figures for each rank; none where nothing is trained, or the models are not planned"""
    agreement: ExchangeAgreement
    nearest: str | None = None
    """the nearest layout that fits as planned, where a rank that trains does not"""

    @property
    def with_plans(self) -> list[tuple[RankRehearsal, PlannedRank | None]]:
        """Each rank, and the planner's figures for it."""
        return list(zip(self.ranks, self.planned or (None,) * len(self.ranks), strict=True))

    @property
    def problems(self) -> list[str]:
        """Sentences: ranks that can't be built or do their work, that need operators without a CUDA kernel, that don't
        fit, or that disagree on exchanges."""
        limit_bytes = self.device.memory_gib * 2**30
        found = []
        for rank in self.ranks:
            if rank.problem is not None:
                found.append(rank.problem)
                continue
            if rank.without_kernel:
                found.append(f"rank {rank.rank} needs operators without a CUDA kernel: {causes(rank.without_kernel)}")
            if rank.needed_bytes > limit_bytes:
                found.append(
                    f"rank {rank.rank} does not fit: it needs {rank.needed_bytes / 2**30:,.1f} GiB, "
                    f"{rank.most_reserved_bytes / 2**30:,.1f} that the allocator reserves and "
                    f"{rank.unmeasured_bytes / 2**30:.1f} for libraries, of {self.device.memory_gib:,.1f}"
                )
        return [*found, *([] if self.nearest is None else [self.nearest]), *self.agreement.disagreements]


def rehearse(
    config: RunConfig,
    gpus: int,
    *,
    ranks: Sequence[int | str],
    device: Device,
    per_node: int,
    what: What = "train",
    micro_batches: int | None = None,
    sequences: int | None = None,
    loads: bool = False,
    checkpoint: Path | None = None,
    jobs: int | None = None,
    progress: Callable[[RankRehearsal, int], None] = lambda rank, total: None,
) -> Rehearsal:
    """Rehearses `ranks` (numbers, or names of NAMED_RANKS) of a run on `gpus` ranks, `jobs` at a time (default: the
    cores). `micro_batches`: of a step (default: as many as fill the pipeline, and with a teacher all). `sequences`: of
    a data rank that are scored, or continued, at once (default: as many as an evaluation takes). `loads`: each rank
    loads a checkpoint first, whose manifest is that of `checkpoint` if it is given. `progress` is called with each rank
    that is done and the number of ranks. Raises ConfigError for layouts that are not legal, ranks that don't exist,
    work that a model cannot do, and a config that is not that of the checkpoint."""
    layout = plan_layout(config, gpus, trains=what == "train")
    work = replace(plan_work(what, sequences, config, layout), loads=loads, checkpoint=checkpoint)
    if checkpoint is not None and work.trains:
        work = replace(work, starts=_starts_from(checkpoint, config))
        if not work.starts:
            check_same_run(Record.read(checkpoint / RECORD), config)
    numbers = rank_numbers(ranks, config, layout)
    run, count, run_micro_batches = config, 0, 0
    planned: tuple[PlannedRank, ...] = ()
    if work.trains:
        run_micro_batches = config.batch.sequences // (layout.data * config.batch.micro_sequences)
        # A teacher's states of all micro-batches lie on the device.
        enough = run_micro_batches if config.distillation.teacher is not None else _filling(layout)
        count = micro_batches or min(run_micro_batches, enough)
        batch = {"sequences": layout.data * config.batch.micro_sequences * count, "ramp": None}
        config = config.model_copy(update={"batch": config.batch.model_copy(update=batch)})
        plan_layout(config, gpus)
        if is_planned(config):
            planned = tuple(plan_rank(config, layout, number, device, per_node) for number in numbers)
    calls = [(config, layout, number, device, work) for number in numbers]
    made = _side_by_side(calls, jobs or len(os.sched_getaffinity(0)), progress)
    return Rehearsal(
        config=config,
        layout=layout,
        device=device,
        work=work,
        micro_batches=count,
        run_micro_batches=run_micro_batches,
        ranks=made,
        planned=planned,
        agreement=compare({rank.rank: rank.exchange_log for rank in made if rank.problem is None}),
        nearest=_nearest(run, layout, device, made) if work.trains else None,
    )


def _nearest(run: RunConfig, layout: Layout, device: Device, ranks: Sequence[RankRehearsal]) -> str | None:
    """Sentence of `nearest_fit` where the fullest rank needs more than the device has; else None."""
    needed = max((rank.needed_bytes for rank in ranks if rank.problem is None), default=0.0)
    limit_bytes = device.memory_gib * 2**30
    return nearest_fit(run, layout, limit_bytes, needed) if needed > limit_bytes else None


def _starts_from(checkpoint: Path, config: RunConfig) -> bool:
    """Whether `checkpoint` has the weights that the run starts from, rather than the state that it resumes from. Raises
    ConfigError if the run draws its weights all the same."""
    start = config.run.start_from
    if start is None or checkpoint.resolve() not in [one.resolve() for one in locate(Path(start))]:
        return False
    if config.finetune.weights == "random":
        raise ConfigError(
            f"finetune.weights=random: a run draws its weights, and loads nothing of run.start_from={start}: leave out "
            "--checkpoint"
        )
    return True


def _side_by_side(
    calls: Sequence[tuple[RunConfig, Layout, int, Device, RehearsedWork]],
    jobs: int,
    progress: Callable[[RankRehearsal, int], None],
) -> tuple[RankRehearsal, ...]:
    """A process group of fakes can't be left, and torch stays patched: each process rehearses one rank."""
    context = multiprocessing.get_context("forkserver")  # it imports torch and megatron-core once
    context.set_forkserver_preload([rehearse_rank.__module__])
    with ProcessPoolExecutor(min(jobs, len(calls)), context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(rehearse_rank, *call) for call in calls]
        for future in futures:
            future.add_done_callback(lambda done: _report(done, progress, len(calls)))
        return tuple(
            _result(future, rank, layout) for future, (_, layout, rank, *_) in zip(futures, calls, strict=True)
        )


def _report(done: "Future[RankRehearsal]", progress: Callable[[RankRehearsal, int], None], total: int) -> None:
    if not done.cancelled() and done.exception() is None:
        progress(done.result(), total)


def _result(future: "Future[RankRehearsal]", rank: int, layout: Layout) -> RankRehearsal:
    try:
        return future.result()
    except BrokenProcessPool:
        problem = f"rank {rank} cannot be rehearsed: a process ended without a word, perhaps for lack of host memory"
        return RankRehearsal(rank=rank, coordinates=layout.coordinates(rank), problem=problem)


def _filling(layout: Layout) -> int:
    """Micro-batches that a step needs so that the first stage holds as many activations as in any longer step."""
    if layout.pipeline == 1:
        return _LEAST_MICRO_BATCHES
    if layout.virtual == 1:
        return layout.pipeline
    chunks = 2 * (layout.pipeline - 1) + (layout.virtual - 1) * layout.pipeline + 1
    return -(-chunks // (layout.virtual * layout.pipeline)) * layout.pipeline
