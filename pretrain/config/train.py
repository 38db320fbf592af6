"""`train`: how long."""

from pydantic import Field, model_validator

from pretrain.config.section import Section


class Train(Section):
    steps: int | None = Field(None, gt=0, description="optimizer steps to train for")
    tokens: int | None = Field(None, gt=0, description="tokens to train for; the last step is a full batch")
    epochs: float | None = Field(
        None,
        gt=0,
        description="epochs to train for, of labelled data only: train.steps becomes epochs times the training samples "
        "of all sources, divided by batch.sequences and rounded up",
    )

    @model_validator(mode="after")
    def _one_length(self) -> "Train":
        if sum(length is not None for length in (self.steps, self.tokens, self.epochs)) != 1:
            raise ValueError("set exactly one of train.steps, train.tokens and train.epochs")
        return self
