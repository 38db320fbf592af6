"""`schedule`: the learning rate over the run."""

from typing import Literal

from pydantic import Field, model_validator

from pretrain.config.section import Section, refuse_idle


class Schedule(Section):
    """In tokens or in steps, whichever the lengths are given in; in tokens if there is none."""

    name: Literal["cosine", "linear", "constant", "inverse_sqrt", "wsd"] = Field(
        "cosine", description="shape of the decay; wsd: the peak is kept, then a linear decay ends with training"
    )
    warmup: Literal["linear", "none"] = Field(
        "linear", description="none: inverse_sqrt is at its peak until warmup_steps (T5), not on the way to it"
    )
    warmup_tokens: int = Field(0, ge=0, description="tokens of linear warm-up from zero")
    warmup_steps: int = Field(0, ge=0, description="the same in steps")
    decay_tokens: int | None = Field(
        None,
        gt=0,
        description="tokens at which the decay ends, counted from the first; absent: end of training. "
        "wsd: tokens that it takes",
    )
    decay_steps: int | None = Field(None, gt=0, description="the same in steps")
    final_fraction: float = Field(0.1, ge=0, le=1, description="learning rate after the decay, as a part of the peak")

    @model_validator(mode="after")
    def _lengths_make_sense(self) -> "Schedule":
        in_tokens = bool(self.warmup_tokens or self.decay_tokens)
        if in_tokens and self.in_steps:
            raise ValueError("schedule is in tokens or in steps: set warmup_tokens and decay_tokens, or the other two")
        if self.name == "inverse_sqrt" and not self.warmup_length:
            raise ValueError("schedule.name=inverse_sqrt falls from where warm-up ends: set schedule.warmup_steps")
        if self.name == "wsd" and not self.decay_length:
            raise ValueError(
                "schedule.name=wsd needs the length of its decay: set schedule.decay_tokens or decay_steps"
            )
        if self.name in ("constant", "inverse_sqrt"):
            refuse_idle(self, "schedule", ("decay_tokens", "decay_steps", "final_fraction"))
        if self.name != "inverse_sqrt":
            refuse_idle(self, "schedule", ("warmup",))
        return self

    @property
    def in_steps(self) -> bool:
        return bool(self.warmup_steps or self.decay_steps)

    @property
    def warmup_length(self) -> int:
        """In the schedule's unit, as `decay_length`."""
        return self.warmup_steps or self.warmup_tokens

    @property
    def decay_length(self) -> int | None:
        return self.decay_steps or self.decay_tokens
