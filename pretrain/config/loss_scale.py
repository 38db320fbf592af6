"""`loss_scale`: of fp16."""

from pydantic import Field

from pretrain.config.section import Section


class LossScaling(Section):
    """Of fp16 only: losses are multiplied by a factor so that gradients fit; a step whose gradient does not is left out
    and the factor halved."""

    start: float = Field(65536.0, gt=0, description="factor of the first step")
    growth_steps: int = Field(1000, gt=0, description="steps without overflow after which the factor doubles")
    minimum: float = Field(1.0, gt=0, description="an overflow at this factor is an error, as in other precisions")
