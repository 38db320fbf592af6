"""`evaluate`: what is scored during training."""

from pydantic import Field, NonNegativeInt

from pretrain.config.section import Section


class Evaluate(Section):
    every_steps: int = Field(0, ge=0, description="held-out loss, and tasks, every so many steps; 0: only at the end")
    sequences: int = Field(256, gt=0, description="held-out sequences scored each time, or all there are")
    tasks: list[str] = Field([], description="tasks of `pretrain eval` that are scored, too, on the live model")
    shots: list[NonNegativeInt] = Field([0], min_length=1, description="numbers of solved examples before a question")
    limit: int | None = Field(200, gt=0, description="documents of each task, the first ones; null: all")
    data: str | None = Field(None, description="directory with benchmark files; arithmetic needs none")
