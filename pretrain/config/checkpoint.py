"""`checkpoint`: when to save, and what to keep."""

from pydantic import Field

from pretrain.config.section import Section


class Checkpoint(Section):
    every_steps: int = Field(0, ge=0, description="save every so many steps; 0: only when stopping and at the end")
    keep: int = Field(2, gt=0, description="newest checkpoints kept")
    in_flight: int = Field(
        1,
        ge=0,
        le=16,
        description="saves that may be being written while training goes on, each with a copy of a rank's part in host "
        "memory; 0: training waits for the disk",
    )
    unsaved_steps: int | None = Field(
        None,
        ge=0,
        description="once a save has failed: end the run when so many steps since the newest checkpoint are not saved; "
        "0: at once; null: ten times every_steps",
    )

    @property
    def limit_steps(self) -> int | None:
        """Unsaved steps that end a run whose saves fail; None: it saves only when stopping and at the end."""
        return self.unsaved_steps if self.unsaved_steps is not None else 10 * self.every_steps or None
