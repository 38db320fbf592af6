"""`run.skipped`: samples that a run leaves out, as it was bad at the step that they were for (docs/bad-numbers.md)."""

from pydantic import Field

from data_pipeline.config import MAX_INTEGER
from pretrain.config.section import Section


class Skip(Section):
    """The global batch of one step. Its place counts the samples as the run does, with those before it left out."""

    step: int = Field(gt=0, description="optimizer step that the samples were for")
    sample: int = Field(ge=0, le=MAX_INTEGER, description="samples that the run had consumed before this batch")
    samples: int = Field(gt=0, le=MAX_INTEGER, description="number of samples left out")
    why: str = Field(description="what was wrong at that step")
