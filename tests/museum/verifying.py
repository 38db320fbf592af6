"""`pretrain verify` as a finder: the fault is in every process of the command, its reference too."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from pretrain.config.run_config import RunConfig
from pretrain.errors import RunError
from pretrain.layout.names import parse_layout
from pretrain.verify.jobs import Job, plan
from pretrain.verify.run import JobResult, Verification
from pretrain.verify.scoring import ScoringCheck
from tests.helpers.families import family_config
from tests.helpers.ranks import run_ranks
from tests.helpers.tiny import tiny_config
from tests.museum.exhibit import Fault, Finding, as_config

STEPS = 4  # the command's default
SCORING = "scoring"
"""the quantity of the line below verify's table"""


@dataclass(frozen=True, kw_only=True)
class Verify:
    """A config of `tiny_config` (or of a family) with `sections`, on `layout`, and the departure to be reported."""

    layout: str
    quantity: str
    step: int = 1
    parameter: str | None = None
    """regular expression of the parameter that departs most; None: the quantity is of no parameter"""
    stages: tuple[int, ...] | None = None
    """stages on which it is seen; None: whichever"""
    precision: str = "fp32"
    """of the row that reports it"""
    family: str = "gpt"
    sections: dict[str, Any] = field(default_factory=dict)
    full: bool = False

    @property
    def tool(self) -> str:
        return "`verify --full`" if self.full else "`verify`"

    @property
    def config(self) -> str:
        extra = as_config(self.sections)
        return f"{self.family}, {self.layout}" + (f": {extra}" if extra else "")

    def run_config(self, seed: int = 7) -> RunConfig:
        sections = {**self.sections, "run": {"dir": "unused", "seed": seed}}
        return tiny_config(**sections) if self.family == "gpt" else family_config(self.family, **sections)

    def rows(self, fault: Fault | None, folder: Path) -> tuple[list[JobResult], ScoringCheck | None]:
        """Rows of the table, and the line below it where `quantity` is it."""
        return self.rows_of(plan(self.run_config(), [parse_layout(self.layout, zero=1)], self.full), fault, folder)

    def rows_of(
        self, jobs: list[Job], fault: Fault | None, folder: Path
    ) -> tuple[list[JobResult], ScoringCheck | None]:
        """Runs `jobs` and returns their rows, as `rows` does."""
        world = max(job.layout.world for job in jobs)
        scores, store = self.quantity == SCORING, folder / "store"
        rows: list[JobResult]
        rows, check = run_ranks(world, _verify, jobs, store, fault, scores, timeout_s=600)[0]
        return rows, check

    def examine(self, fault: Fault | None, folder: Path) -> list[Finding]:
        rows, check = self.rows(fault, folder)
        findings = [finding for row in rows for finding in _findings(row)]
        if check is not None and not check.same:
            by = f"{check.log_softmax:.1e} and {check.training_loss:.1e} nats off"
            findings.append(Finding(quantity=SCORING, report=f"scoring departs from training: {by}"))
        return findings

    def expected(self, findings: list[Finding]) -> Finding | None:
        for found in findings:
            if (
                (found.quantity, found.step) == (self.quantity, None if self.quantity == SCORING else self.step)
                and found.report.startswith(self.precision if self.quantity not in (SCORING, "error") else "")
                and (self.parameter is None or re.search(self.parameter, found.parameter or ""))
                and self.stages in (None, tuple(found.stages))
            ):
                return found
        return None


def _findings(row: JobResult) -> list[Finding]:
    where = f"{row.job.config.precision} {row.job.title}"
    if row.error is not None:
        return [Finding(quantity="error", report=f"{where}: {row.error}")]
    assert row.verdict is not None
    return [
        Finding(
            quantity=departure.quantity,
            step=departure.step,
            parameter=departure.parameter,
            parameters=departure.parameters,
            stages=list(departure.stages),
            report=f"{where}: {departure}",
        )
        for departure in row.verdict.departures
    ]


def _verify(
    jobs: list[Any], store: Path, fault: Fault | None, scoring: bool
) -> tuple[list[JobResult], ScoringCheck | None]:
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # a peer may still be connecting
    dist.destroy_process_group()
    rows: list[JobResult] = []
    checks: list[ScoringCheck] = []
    with pytest.MonkeyPatch.context() as patch:
        if fault is not None:
            fault(patch)
        verification = Verification(dist.FileStore(str(store), world), rank, world, STEPS)
        try:
            verification.run(jobs, rows.append, checks.append if scoring else None)
        except RunError as error:
            if fault is None:
                raise
            return [JobResult(jobs[0], {}, None, str(error))], None
    return rows, checks[0] if checks else None
