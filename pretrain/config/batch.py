"""`batch`: sequences per step, and how they grow."""

from pydantic import Field, model_validator

from pretrain.config.section import Section

_MOST_SIZES = 10_000


class Ramp(Section):
    start_sequences: int = Field(gt=0, description="sequences per global batch at the first token")
    increment_sequences: int = Field(gt=0, description="sequences by which the batch grows at a time")
    tokens: int = Field(gt=0, description="tokens over which the batch grows linearly to batch.sequences")


class Short(Section):
    sequence_length: int = Field(
        gt=0, description="tokens per sequence in the first phase, fewer than model.sequence_length"
    )
    steps: int = Field(gt=0, description="optimizer steps of the first phase")


class BatchSize(Section):
    sequences: int = Field(gt=0, description="sequences per global batch (one optimizer step)")
    micro_sequences: int = Field(
        1,
        gt=0,
        description="sequences per forward pass on one data rank (micro-batch size); while a batch ramp runs, the "
        "largest size not above it that divides a rank's share",
    )
    ramp: Ramp | None = Field(None, description="batch-size ramp; default: the full batch from the first step")
    short: Short | None = Field(
        None, description="first phase with shorter sequences (BERT); default: one length throughout"
    )

    @model_validator(mode="after")
    def _ramp_reaches_full_batch(self) -> "BatchSize":
        if self.ramp is not None:
            if self.short is not None:
                raise ValueError("batch.ramp and batch.short both change the size of batches: set one of them")
            gap = self.sequences - self.ramp.start_sequences
            if gap < 0 or gap % self.ramp.increment_sequences:
                raise ValueError(
                    f"batch.ramp cannot reach batch.sequences={self.sequences} from {self.ramp.start_sequences} "
                    f"in steps of {self.ramp.increment_sequences}"
                )
            if (sizes := 1 + gap // self.ramp.increment_sequences) > _MOST_SIZES:
                raise ValueError(
                    f"batch.ramp has {sizes:,} sizes on its way, and {_MOST_SIZES:,} are allowed: raise "
                    "batch.ramp.increment_sequences"
                )
        return self
