"""`evaluate`: held-out loss during training."""

from pydantic import Field

from pretrain.config.section import Section


class Evaluate(Section):
    every_steps: int = Field(0, ge=0, description="held-out loss every so many steps; 0: only at the end")
    sequences: int = Field(256, gt=0, description="held-out sequences scored each time, or all there are")
