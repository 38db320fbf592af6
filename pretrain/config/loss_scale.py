"""`loss_scale`: of fp16. Its bounds are fp16's own: 2^-24 is the smallest number that it can hold, and a loss of one
times 2^32 overflows in every gradient that is not as small."""

from pydantic import Field, model_validator

from pretrain.config.section import Section


class LossScaling(Section):
    """Dynamic loss scaling, for fp16 only: losses are multiplied by a factor so that gradients fit; a step whose
    gradient overflows is skipped and the factor halved."""

    initial: float = Field(
        65536.0,
        ge=2**-24,
        le=2**32,
        description="loss scale at the first step, a factor of the mean loss of a sequence",
    )
    growth_interval: int = Field(1000, gt=0, description="steps without overflow after which the loss scale doubles")
    minimum: float = Field(
        1.0,
        ge=2**-24,
        le=2**32,
        description="smallest loss scale; an overflow at it is an error, as in other precisions",
    )

    @model_validator(mode="after")
    def _begins_within_its_bounds(self) -> "LossScaling":
        if self.initial < self.minimum:
            raise ValueError(
                f"loss_scale.initial={self.initial:g} is below loss_scale.minimum={self.minimum:g}: raise it, or lower "
                "the minimum"
            )
        return self
