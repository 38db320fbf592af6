"""`pretrain verify`: the same few steps on one rank and on each layout, compared."""

import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.data.stream import open_stream
from pretrain.data.synthetic import SyntheticStream
from pretrain.engine import device, rendezvous
from pretrain.engine.base import Engine, TeacherWeights
from pretrain.engine.make import make_engine
from pretrain.errors import RunError
from pretrain.layout.layout import Layout, plan_layout
from pretrain.plan.memory_check import check_memory
from pretrain.verify.bounds import bounds_of
from pretrain.verify.departure import Verdict
from pretrain.verify.jobs import ONE_RANK, Job
from pretrain.verify.observation import Observation
from pretrain.verify.probe import BatchSource, Trial, observe
from pretrain.verify.reference import Reference
from pretrain.verify.replay import Replay
from pretrain.verify.scoring import ScoringCheck, check_scoring, without_noise

Result = TypeVar("Result")

_LONG, _SHORT = timedelta(days=7), timedelta(minutes=1)  # wait of ranks that a layout leaves idle; of the last exchange


@dataclass(frozen=True)
class JobResult:
    """Result of a job."""

    job: Job
    bounds: dict[str, float]
    verdict: Verdict | None
    """None if the job ended with an error"""
    error: str | None = None

    @property
    def same(self) -> bool:
        return self.verdict is not None and self.verdict.same


class Verification:
    """Runs jobs one after the other, each on as many of the ranks that share `store` as its layout has. Every rank
    constructs one and calls the same methods, outside any process group."""

    def __init__(self, store: dist.Store, rank: int, world: int, steps: int) -> None:  # type: ignore[name-defined]
        self._store, self._rank, self._world, self._steps = store, rank, world, steps
        device.install()
        self._jobs = count(1)
        gc.collect()
        gc.freeze()  # imported objects stay: collecting them after every job would take as long as a step

    def run(
        self,
        jobs: Sequence[Job],
        show: Callable[[JobResult], None],
        show_scoring: Callable[[ScoringCheck], None] | None = None,
    ) -> bool:
        """Calls `show` on rank 0 with each result. Returns on every rank whether all are the same run. With
        `show_scoring` it checks the reference's scores as well, and calls that last. Raises RunError if the reference
        fails."""
        reference: RunConfig | None = None
        expected: Reference | None = None
        measured: dict[str, Verdict] = {}
        same = True
        with self._checkpoints() as checkpoints:
            for job in jobs:
                if job.reference != reference:
                    expected, reference, measured = None, job.reference, {}  # frees one reference before the next
                    expected = self._find_reference(reference)
                precision = job.config.precision
                bounds = bounds_of(job.config, None if job.layout == ONE_RANK else measured.get(precision))
                replay = expected.replay if expected is not None else None
                verdict, error = self._watch(job, partial(_compare, expected, job, bounds), checkpoints, replay)
                if job.layout == ONE_RANK and verdict is not None and verdict.same:
                    measured[precision] = verdict
                row = JobResult(job, bounds, verdict, error)
                same = same and row.same
                if self._rank == 0:
                    show(row)
        if show_scoring is not None:
            check = self._check_scoring(jobs[0].reference)
            if check is not None:
                show_scoring(check)
                same = same and check.same
        return self._agree(same)

    def _find_reference(self, config: RunConfig) -> Reference | None:
        reference, error = self._watch(Job(ONE_RANK, config, config), partial(Reference, config), None)
        if error is not None:
            raise RunError(f"the reference, one rank in fp32, failed: {error}")
        return reference

    def _check_scoring(self, config: RunConfig) -> ScoringCheck | None:
        """The check on rank 0, None on the others."""
        quiet = without_noise(config)
        check, error = self._try(Job(ONE_RANK, quiet, quiet), check_scoring, None)
        if error is not None:
            raise RunError(f"the check of scores on one rank in fp32 failed: {error}")
        return check

    def _watch(
        self,
        job: Job,
        judge: Callable[[Iterable[Observation]], Result],
        checkpoints: Path | None,
        replay: Replay | None = None,
    ) -> tuple[Result | None, str | None]:
        """Rank 0's judgement of a job's observations (None on the other ranks), or the error that ended it. Without
        `checkpoints` it runs as the reference does; `replay` is what it reads of the reference."""
        return self._try(job, partial(self._judge, judge), checkpoints, replay)

    def _try(
        self,
        job: Job,
        run: Callable[[Trial], Result | None],
        checkpoints: Path | None,
        replay: Replay | None = None,
    ) -> tuple[Result | None, str | None]:
        """Result of `run` on this rank, called on the ranks of the job, or the error that ended it."""
        number = next(self._jobs)
        error_key, end_key = f"error-{number}", f"end-{number}"
        directory = checkpoints / str(number) if checkpoints is not None else None
        result = None
        if self._rank < job.layout.world:
            joined, build = partial(self._joined, job, number), partial(self._build, job.config, job.layout)
            try:
                trial = Trial(
                    config=job.config,
                    source=_source(job.config),
                    steps=self._steps,
                    joined=joined,
                    build=build,
                    checkpoints=directory,
                    replay=replay,
                )
                result = run(trial)
            except Exception as error:  # of any kind: the layout is under test
                self._note(number, error)
        _free()
        if self._rank == 0:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
            self._store.set(end_key, "")
        self._store.wait([end_key], _LONG)
        failed = self._store.check([error_key])
        return (None, self._store.get(error_key).decode()) if failed else (result, None)

    def _judge(self, judge: Callable[[Iterable[Observation]], Result], trial: Trial) -> Result | None:
        seen = observe(trial)
        try:
            return judge(seen) if self._rank == 0 else None
        finally:  # runs to the end with the others even if the judgement failed
            for _ in seen:
                pass

    @contextmanager
    def _joined(self, job: Job, number: int, initial: bool) -> Iterator[None]:
        """Gives the job's ranks a process group, for the first part of the run or for the part after its stop."""
        name, timeout_s = f"job-{number}-{initial}", job.config.health.timeout_s
        with rendezvous.temporary_process_group(self._store, name, self._rank, job.layout.world, timeout_s):
            try:
                yield
                _free()  # while there is a group, which DeepSpeed needs
            except Exception as error:
                self._note(number, error)  # before the others notice that this rank left: the first error is reported
                raise

    def _build(self, config: RunConfig, layout: Layout, initial: bool) -> Engine:
        """Builds an engine, with initial weights or to be loaded."""
        _free()  # an engine that was dropped
        available, host = device.available_bytes()
        check_memory(config, layout, available, host=host)
        engine = make_engine(config, plan_layout(config, layout.world))
        if config.distillation.teacher is not None:
            engine.part(TeacherWeights).initialise()
        if initial:
            engine.initialise()
        return engine

    def _note(self, number: int, error: Exception) -> None:
        self._store.compare_set(f"error-{number}", "", f"{type(error).__name__}: {error} (rank {self._rank})")

    @contextmanager
    def _checkpoints(self) -> Iterator[Path]:
        """A directory that all ranks share; on several nodes in the working directory."""
        local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", self._world))
        directory: AbstractContextManager[str] = nullcontext("")
        if self._rank == 0:
            directory = tempfile.TemporaryDirectory(
                prefix="verify-", dir=None if local_ranks >= self._world else Path.cwd()
            )
        with directory as path:
            if self._rank == 0:
                self._store.set("checkpoints", path)
            yield Path(self._store.get("checkpoints").decode())

    def _agree(self, verdict: bool) -> bool:
        """Rank 0's verdict, returned on every rank once all have it, as rank 0 may host the store."""
        if self._rank == 0:
            self._store.set("verdict", str(int(verdict)))
        agreed: bool = self._store.get("verdict") == b"1"
        if self._rank:
            self._store.set(f"left-{self._rank}", "")
        else:
            with suppress(RuntimeError):  # the verdict is valid even if a rank is gone
                self._store.wait([f"left-{rank}" for rank in range(1, self._world)], _SHORT)
        return agreed


def _compare(expected: Reference | None, job: Job, bounds: dict[str, float], found: Iterable[Observation]) -> Verdict:
    assert expected is not None, "rank 0 has the reference"
    return expected.compare(found, job.layout, job.config.precision, bounds)


def _source(config: RunConfig) -> BatchSource:
    return open_stream(config)[0] if config.data.resolved_sources else SyntheticStream(config)


def _free() -> None:
    """Frees a model: megatron-core's modules refer to each other, and two models at once may not fit."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
