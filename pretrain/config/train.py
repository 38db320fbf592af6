"""`train`: how long."""

from pydantic import Field, model_validator

from pretrain.config.section import Section


class Train(Section):
    steps: int | None = Field(None, gt=0, description="optimizer steps to train for")
    tokens: int | None = Field(None, gt=0, description="tokens to train for; the last step is a full batch")

    @model_validator(mode="after")
    def _one_length(self) -> "Train":
        if (self.steps is None) == (self.tokens is None):
            raise ValueError("set exactly one of train.steps and train.tokens")
        return self
