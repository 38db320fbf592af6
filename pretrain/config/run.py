"""`run`: name, place on disk, seed."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from data_pipeline.config import PathText
from pretrain.config.change import Change, RequestedChange
from pretrain.config.section import Section
from pretrain.config.skip import Skip


class Run(Section):
    written_by_runs: ClassVar[tuple[str, ...]] = ("changes", "skipped")
    name: str = Field("run", description="name shown in reports and trackers")
    dir: PathText = Field(
        min_length=1, description="directory of the run: config.yaml, metrics.jsonl, checkpoints/, reports/"
    )
    lock: PathText | None = Field(
        None,
        description="file that a run holds locked while it writes to run.dir; default: `lock` in run.dir, whose file "
        "system must have flock then",
    )
    start_from: PathText | None = Field(
        None, description="run or checkpoint to take the initial weights from; default: weights are drawn from the seed"
    )
    branch_from: PathText | None = Field(
        None,
        description="checkpoint of another run to continue from with weights, optimizer state and data position; "
        "run.change says what differs from there on",
    )
    seed: int = Field(1234, ge=0, description="seed of weights, sample order and dropout")
    deterministic: bool = Field(False, description="use torch's deterministic kernels (always the case on a CPU)")
    kernels: Literal["plain", "compiled", "triton"] = Field(
        "plain",
        description="plain: torch's own operations; compiled: neighboring ones fused by torch.compile; "
        "triton: kernels in Triton, for GPUs (docs/performance.md)",
    )
    change: RequestedChange | None = Field(
        None, description="change of learning rate, schedule, batch or length from this point on (docs/optimizers.md)"
    )
    changes: tuple[Change, ...] = Field((), description="changes made so far; written by the run, not by hand")
    skipped: tuple[Skip, ...] = Field(
        (), description="batches left out so far; written by the run under health.spike=act (docs/bad-numbers.md)"
    )

    @field_validator("skipped")
    @classmethod
    def _in_order(cls, skipped: tuple[Skip, ...]) -> tuple[Skip, ...]:
        begins = [skip.sample for skip in skipped]
        if begins != sorted(begins):
            raise ValueError(f"run.skipped begins at samples {begins}: list what is left out in rising order")
        return skipped

    @model_validator(mode="after")
    def _one_beginning(self) -> "Run":
        if self.start_from is not None and self.branch_from is not None:
            raise ValueError(
                "run.start_from takes weights for a new run, run.branch_from continues another run: set one"
            )
        return self
