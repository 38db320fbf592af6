"""`run`: name, place on disk, seed."""

from pydantic import Field

from data_pipeline.config import PathText
from pretrain.config.change import Change, Request
from pretrain.config.section import Section


class Run(Section):
    name: str = Field("run", description="name shown in reports and in MLflow")
    dir: PathText = Field(
        min_length=1, description="directory of the run: config.yaml, metrics.jsonl, checkpoints/, reports/"
    )
    start_from: PathText | None = Field(
        None, description="run or checkpoint whose weights this run begins with; absent: drawn from the seed"
    )
    seed: int = Field(1234, ge=0, description="seed of weights, sample order and dropout")
    deterministic: bool = Field(False, description="ask torch for deterministic kernels (always so on a CPU)")
    change: Request | None = Field(
        None, description="goes on with another learning rate, schedule, batch or length from here (docs/optimizers.md)"
    )
    changes: tuple[Change, ...] = Field((), description="those made so far: written by the run, not by hand")
