"""`checkpoint`: when to save, and what to keep."""

from pydantic import Field

from pretrain.config.section import Section


class Checkpoint(Section):
    every_steps: int = Field(0, ge=0, description="steps between checkpoints; 0: save only when the run stops or ends")
    keep: int = Field(2, gt=0, description="number of newest checkpoints to keep, besides the best one")
    best: str | None = Field(
        None,
        description="figure of evaluate.figures, or loss (held-out): save at each evaluation whose figure is the best "
        "so far, and keep the best checkpoint",
    )
    in_flight: int = Field(
        1,
        ge=0,
        le=16,
        description="saves that may be in progress while training continues, each with a copy of the rank's state "
        "in host memory; 0: training waits for the disk",
    )
    unsaved_steps: int | None = Field(
        None,
        ge=0,
        description="after a failed save: end the run once this many steps are newer than the last checkpoint; 0: "
        "at once; default: 10 * every_steps",
    )

    @property
    def limit_steps(self) -> int | None:
        """Unsaved steps that end a run whose saves fail; None: it saves only when stopping and at the end."""
        return self.unsaved_steps if self.unsaved_steps is not None else 10 * self.every_steps or None
