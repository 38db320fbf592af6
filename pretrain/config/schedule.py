"""`schedule`: the learning rate over the run.

Linear warm-up from zero; from there on each class says what part of its peak the learning rate is, and how far that
hangs on where training ends. Positions and lengths are in tokens or in steps, whichever the lengths are given in; in
tokens if there is none.
"""

import math
from abc import abstractmethod
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, model_validator

from pretrain.config.section import Section, named


class _AnySchedule(Section):
    name: str
    warmup_tokens: int = Field(0, ge=0, description="tokens of linear warm-up from zero")
    warmup_steps: int = Field(0, ge=0, description="optimizer steps of linear warm-up from zero")
    warmup_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="length of linear warm-up as a fraction of the run's steps (transformers' warmup_ratio); the run "
        "records schedule.warmup_steps in its place",
    )

    @model_validator(mode="after")
    def _one_unit(self) -> "_AnySchedule":
        if self.warmup_fraction is not None and (self.warmup_steps or self.warmup_tokens):
            raise ValueError(
                "schedule.warmup_fraction is the length of the warm-up: set it to null, or warmup_steps and "
                "warmup_tokens to 0"
            )
        if any(self._lengths("tokens")) and self.in_steps:
            raise ValueError("schedule is in tokens or in steps: set warmup_tokens and decay_tokens, or the other two")
        return self

    @property
    def in_steps(self) -> bool:
        return any(self._lengths("steps"))

    @property
    def warmup_length(self) -> int:
        return self.warmup_steps or self.warmup_tokens

    def with_length(self, steps: int, tokens: int) -> Self:
        """The schedule of a run of this length, with `warmup_fraction` as steps, or as tokens beside a decay in
        tokens."""
        if self.warmup_fraction is None:
            return self
        end, unit = (tokens, "tokens") if any(self._lengths("tokens")) else (steps, "steps")
        warmup = max(1, round(self.warmup_fraction * end))
        return self.model_copy(update={"warmup_fraction": None, f"warmup_{unit}": warmup})

    @property
    def decays_at_end(self) -> bool:
        """Whether the length of the decay counts from its beginning to the end of training, not from the first step."""
        return self.name in ("wsd", "power")

    @property
    def starts_at_peak(self) -> bool:
        """Whether there is no way up to it: `warmup_length` is then just where the decay begins."""
        return False

    @abstractmethod
    def factor(self, now: int, end: int) -> float:
        """Part of the peak at `now`, which is not in the warm-up, of a run that is over at `end`."""

    def ceiling(self, tokens: int, sequences: int) -> float:
        """Learning rate that takes the peak's place where it is less, after `tokens` tokens in batches of
        `sequences`."""
        return math.inf

    def settled_until(self, end: int) -> float:
        """Position up to which a run that ends at `end` has the learning rates of a longer run."""
        return math.inf

    def _lengths(self, unit: str) -> list[int | None]:
        return [getattr(self, f"{what}_{unit}", None) for what in ("warmup", "decay")]


class ConstantSchedule(_AnySchedule):
    name: Literal["constant"] = "constant"

    def factor(self, now: int, end: int) -> float:
        return 1.0


class InverseSqrtSchedule(_AnySchedule):
    """sqrt(warm-up / n) after the warm-up of Vaswani et al. 2017, arXiv 1706.03762, section 5.3; or, with
    `warmup: none`, 1 until then, as T5 (Raffel et al. 2019, arXiv 1910.10683, 3.1.2). It ends nowhere."""

    name: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup: Literal["linear", "none"] = Field(
        "linear", description="linear: rises until warmup_steps; none: at its peak until then (T5)"
    )

    @model_validator(mode="after")
    def _has_a_warmup(self) -> "InverseSqrtSchedule":
        if not self.warmup_length and self.warmup_fraction is None:
            raise ValueError("schedule.name=inverse_sqrt falls from where warm-up ends: set schedule.warmup_steps")
        return self

    @property
    def starts_at_peak(self) -> bool:
        return self.warmup == "none"

    def factor(self, now: int, end: int) -> float:
        return math.sqrt(self.warmup_length / now)


class _Decaying(_AnySchedule):
    """Down to `final_fraction`, where it stays."""

    decay_tokens: int | None = Field(
        None, gt=0, description="tokens, counted from the start, at which the decay ends; default: end of training"
    )
    decay_steps: int | None = Field(
        None, gt=0, description="steps, counted from the start, at which the decay ends; default: end of training"
    )
    final_fraction: float = Field(
        0.1, ge=0, le=1, description="learning rate after the decay, as a fraction of the peak"
    )

    @property
    def decay_length(self) -> int | None:
        return self.decay_steps or self.decay_tokens

    def factor(self, now: int, end: int) -> float:
        begin, stop = self._span(end)
        done = min(1.0, max(0, now - begin) / max(1, stop - begin))
        return self.final_fraction + (1 - self.final_fraction) * self._shape(done)

    def settled_until(self, end: int) -> float:
        return math.inf if self.decay_length else 0

    def _span(self, end: int) -> tuple[int, int]:
        """Where the decay begins and ends."""
        return self.warmup_length, self.decay_length or end

    def _shape(self, done: float) -> float:
        """Fraction of the way down that is left after the fraction `done` of the decay."""
        return 1 - done


class LinearSchedule(_Decaying):
    name: Literal["linear"] = "linear"


class CosineSchedule(_Decaying):
    """GPT-3, appendix B: to 10% over 260e9 tokens after a warm-up over 375e6."""

    name: Literal["cosine"] = "cosine"

    def _shape(self, done: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * done))


class WsdSchedule(_Decaying):
    """At its peak until the decay, which ends with training (Hu et al. 2024, arXiv 2404.06395, section 4.2; here a
    linear one, or that of Haegele et al. 2024, arXiv 2405.18392)."""

    name: Literal["wsd"] = "wsd"
    decay_tokens: int | None = Field(None, gt=0, description="length of the decay in tokens; it ends with training")
    decay_type: Literal["linear", "1-sqrt"] = Field(
        "linear", description="shape of the decay. 1-sqrt: falls by the root of the part of it that is over"
    )

    @model_validator(mode="after")
    def _has_a_decay(self) -> "WsdSchedule":
        if not self.decay_length:
            raise ValueError(
                "schedule.name=wsd needs the length of its decay: set schedule.decay_tokens or decay_steps"
            )
        return self

    def settled_until(self, end: int) -> float:
        return end - (self.decay_length or 0)

    def _span(self, end: int) -> tuple[int, int]:
        return max(self.warmup_length, end - (self.decay_length or 0)), end

    def _shape(self, done: float) -> float:
        return 1 - done if self.decay_type == "linear" else 1 - math.sqrt(done)


class PowerSchedule(_Decaying):
    """min(peak, sequences * amplitude * tokens ^ exponent), so that it hangs neither on the batch nor on the end (Shen
    et al. 2024, arXiv 2408.13359). A linear decay at the end of training is optional."""

    name: Literal["power"] = "power"
    amplitude: float = Field(
        gt=0,
        description="factor of the power law: the learning rate is at most batch.sequences * amplitude * "
        "tokens^exponent",
    )
    exponent: float = Field(-0.51, lt=0, ge=-4, description="exponent of the power law")
    decay_tokens: int | None = Field(
        None, gt=0, description="length in tokens of a linear decay that ends with training; default: none"
    )
    decay_steps: int | None = Field(
        None, gt=0, description="length in steps of a linear decay that ends with training; default: none"
    )
    final_fraction: float = Field(0.0, ge=0, le=1, description="part of the learning rate that the decay leaves")

    def ceiling(self, tokens: int, sequences: int) -> float:
        return float(sequences * self.amplitude * max(1, tokens) ** self.exponent)

    def factor(self, now: int, end: int) -> float:
        return super().factor(now, end) if self.decay_length else 1.0

    def settled_until(self, end: int) -> float:
        return end - self.decay_length if self.decay_length else math.inf

    def _span(self, end: int) -> tuple[int, int]:
        return max(self.warmup_length, end - (self.decay_length or 0)), end


Schedule = Annotated[
    CosineSchedule | LinearSchedule | ConstantSchedule | InverseSqrtSchedule | WsdSchedule | PowerSchedule,
    Discriminator("name"),
    BeforeValidator(named("cosine")),
]
