"""Runs `pretrain verify` on ranks of its own, with a fault planted in each layout that is to have one.

A fault is there while its layout runs, and the reference and one rank never have one: so many are tried in one table,
against one reference.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.layout.names import parse_layout
from pretrain.verify.jobs import ONE_RANK, Job, plan
from pretrain.verify.run import JobResult, Verification
from tests.helpers.ranks import run_ranks

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 3


@dataclass(frozen=True)
class PlantedJob(Job):
    """A row of the table with a fault."""

    fault: Fault


class _Planting(Verification):
    def _watch(self, job: Job, *arguments: Any) -> Any:
        with pytest.MonkeyPatch.context() if isinstance(job, PlantedJob) else nullcontext() as patch:
            if isinstance(job, PlantedJob):
                job.fault(patch)
            return super()._watch(job, *arguments)


def table(
    config: RunConfig,
    meeting: Path,
    layouts: Sequence[str],
    faults: Iterable[tuple[Fault, str]] = (),
    timeout_s: float = 600,
    prepare: Callable[[], None] | None = None,
) -> list[JobResult]:
    """The rows of `layouts`, sound, and after them one for each of `faults` (with its layout) and precision. Checks
    that every rank came to the same verdict. `prepare` is called on each rank first, and changes all runs."""
    planted = [(fault, parse_layout(text, zero=1)) for fault, text in faults]
    sound = [parse_layout(text, zero=1) for text in layouts]
    jobs: list[Job] = []
    for job in plan(config, [*sound, *(layout for _, layout in planted)] or [ONE_RANK]):
        if job.layout in (ONE_RANK, *sound):
            jobs.append(job)
        jobs += [PlantedJob(**vars(job), fault=fault) for fault, layout in planted if layout == job.layout]
    world = max(job.layout.world for job in jobs)
    meeting.mkdir(exist_ok=True)
    found = run_ranks(world, _verify, jobs, meeting / "store", prepare, timeout_s=timeout_s)
    rows: list[JobResult] = found[0][1]
    assert {same for same, _ in found} == {all(row.same for row in rows)}
    return rows


def of_fault(rows: list[JobResult], fault: Fault, layout: str, precision: str = "fp32") -> JobResult:
    """The row of a fault on a layout."""
    wanted = parse_layout(layout, zero=1)
    (found,) = (
        row
        for row in rows
        if isinstance(row.job, PlantedJob)
        and (row.job.fault, row.job.layout, row.job.config.precision) == (fault, wanted, precision)
    )
    return found


def check_sound(rows: list[JobResult]) -> None:
    """Rows without a fault are the same run."""
    sound = [row for row in rows if not isinstance(row.job, PlantedJob)]
    assert sound
    departed = {f"{row.job.title} {row.job.config.precision}": _told(row) for row in sound if not row.same}
    assert not departed, departed


def check_found(row: JobResult, step: int, quantity: str) -> Any:
    """The departure of `quantity`, which is found at `step`."""
    assert row.verdict is not None, row.error
    found = {departure.quantity: departure for departure in row.verdict.departures}
    assert quantity in found, _told(row)
    assert found[quantity].step == step, _told(row)
    return found[quantity]


def _told(row: JobResult) -> list[str]:
    return [row.error] if row.error else list(map(str, row.verdict.departures if row.verdict else []))


def _verify(jobs: list[Job], store: Path, prepare: Callable[[], None] | None) -> tuple[bool, list[JobResult]]:
    if prepare is not None:
        prepare()
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a peer may still be connecting
    dist.destroy_process_group()
    rows: list[JobResult] = []
    same = _Planting(dist.FileStore(str(store), world), rank, world, STEPS).run(jobs, rows.append)
    return same, rows
