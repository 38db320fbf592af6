"""`pretrain verify`: the same few steps on one rank and on each layout, compared."""

import gc
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.data.stream import open_stream
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device
from pretrain.engine.make import make_engine
from pretrain.errors import RunError
from pretrain.plan.layout import plan_layout
from pretrain.verify.departure import Reference, Verdict, bounds_of
from pretrain.verify.jobs import ONE_RANK, Job
from pretrain.verify.probe import Observation, Source, observe

Result = TypeVar("Result")

_LONG, _SHORT = timedelta(days=7), timedelta(minutes=1)  # for the ranks that a layout leaves idle; to say goodbye


@dataclass(frozen=True)
class Row:
    """What came of a job."""

    job: Job
    bounds: dict[str, float]
    verdict: Verdict | None
    """None: it ended with an error"""
    error: str | None = None

    @property
    def same(self) -> bool:
        return self.verdict is not None and self.verdict.same


class Verification:
    """Runs jobs one after the other, each on as many of the ranks that share `store` as its layout has. Every rank
    makes one and calls the same methods, outside any process group."""

    def __init__(self, store: dist.Store, rank: int, world: int, steps: int) -> None:
        self._store, self._rank, self._world, self._steps = store, rank, world, steps
        device.install()
        self._jobs = 0

    def run(self, reference: Job, jobs: Sequence[Job], show: Callable[[Row], None]) -> bool:
        """Calls `show` on rank 0 as each row comes. Whether all are the same run, on every rank. Raises the error of a
        reference that does not run."""
        expected, error = self._watch(reference, partial(Reference, optimizer=reference.config.optimizer.name))
        if error is not None:
            raise RunError(f"one rank in fp32, which the others are compared with, failed: {error}")
        measured: Verdict | None = None
        same = True
        for job in jobs:
            bounds = bounds_of(job.config.precision, None if job.layout == ONE_RANK else measured)
            placed = {"layout": job.layout, "precision": job.config.precision, "bounds": bounds}
            compare = partial(Reference.compare, expected, **placed)  # called on rank 0, which has the reference
            verdict, error = self._watch(job, compare)
            if job.layout == ONE_RANK:
                measured = verdict if verdict is not None and verdict.same else None
            row = Row(job, bounds, verdict, error)
            same = same and row.same
            if self._rank == 0:
                show(row)
        return self._agree(same)

    def _watch(self, job: Job, judge: Callable[[Iterable[Observation]], Result]) -> tuple[Result | None, str | None]:
        """What rank 0 makes of a job's observations (None on the other ranks), or the error that ended it."""
        self._jobs += 1
        name, error_key, end_key = (f"{what}-{self._jobs}" for what in ("job", "error", "end"))
        result = None
        if self._rank < job.layout.world:

            def note(error: Exception) -> None:
                self._store.compare_set(error_key, "", f"{type(error).__name__}: {error} (rank {self._rank})")

            try:
                with device.joined(self._store, name, self._rank, job.layout.world, job.config.health.timeout_s):
                    try:
                        result = self._judge(job, judge)
                    except Exception as error:
                        note(error)  # before the others notice that this rank leaves: the first to fail says why
                        raise
            except Exception as error:  # of any kind: the layout is what is being tried
                note(error)
        gc.collect()  # megatron-core's modules refer to each other: two models at once need not fit
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._rank == 0:
            self._store.set(end_key, "")
        self._store.wait([end_key], _LONG)
        failed = self._store.check([error_key])
        return (None, self._store.get(error_key).decode()) if failed else (result, None)

    def _judge(self, job: Job, judge: Callable[[Iterable[Observation]], Result]) -> Result | None:
        engine = make_engine(job.config, plan_layout(job.config, job.layout.world))
        engine.initialise()
        seen = observe(engine, job.config, _source(job.config), self._steps)
        try:
            return judge(seen) if self._rank == 0 else None
        finally:  # the others go on to the end, also where what was seen made no sense
            for _ in seen:
                pass

    def _agree(self, verdict: bool) -> bool:
        """Rank 0's verdict, on every rank, once all have it: rank 0 may hold the store."""
        if self._rank == 0:
            self._store.set("verdict", str(int(verdict)))
        agreed = self._store.get("verdict") == b"1"
        if self._rank:
            self._store.set(f"left-{self._rank}", "")
        else:
            with suppress(dist.DistError):  # the verdict stands, also where a rank is gone
                self._store.wait([f"left-{rank}" for rank in range(1, self._world)], _SHORT)
        return agreed


def _source(config: RunConfig) -> Source:
    return open_stream(config)[0] if config.data.resolved_sources else SyntheticStream(config)
