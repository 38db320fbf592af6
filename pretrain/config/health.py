"""`health`: what a run looks at to know that all is well, and when it gives up."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, field_validator

from pretrain.config.section import Section, named


class SpikesOff(Section):
    name: Literal["off"] = "off"


class _Watched(Section):
    name: str
    k: float = Field(
        10.0,
        gt=0,
        le=1e6,
        description="robust standard deviations above the median of the steps before that are a spike",
    )
    window: int = Field(
        128, ge=8, le=10_000, description="steps that the median is of; before as many there is no spike"
    )


class SpikesWarn(_Watched):
    name: Literal["warn"] = "warn"


class SpikesAct(_Watched):
    """Back to the newest checkpoint, and on without the samples of that step."""

    name: Literal["act"] = "act"
    max_rollbacks: int = Field(3, gt=0, description="how often a run goes back within within_steps; once more ends it")
    within_steps: int = Field(1000, gt=0, description="steps for which going back is counted")


Spikes = Annotated[
    SpikesOff | SpikesWarn | SpikesAct,
    Discriminator("name"),
    BeforeValidator(named("warn")),
]

_SHORTEST_HANG_S = 0.5  # a step, or a thread that the system did not run for a moment, takes as long


class Health(Section):
    stop_on_nan: bool = Field(True, description="end the run when the loss or gradient norm is not finite")
    timeout_s: int = Field(600, gt=0, le=2_592_000, description="seconds a collective may take before the run is ended")
    hang_s: float | None = Field(
        300.0,
        ge=0,
        le=2_592_000,
        description="seconds without any progress after which a run counts as hanging: it says where each rank is, and "
        "ends; at most half of health.timeout_s, so that it comes first; null or 0: off",
    )
    stragglers: Literal["off", "warn"] = Field("warn", description="whether ranks that hold the others up are named")
    straggler_steps: int = Field(50, gt=0, description="steps between two comparisons of how fast ranks are")
    preflight: Literal["off", "warn", "act"] = Field(
        "off",
        description="a few seconds of tests of each node before anything is built: products, memory, exchanges, disk, "
        "clocks. warn names slow nodes, act does not start with them, and neither starts where products are wrong",
    )
    spike: Spikes = Field(
        SpikesWarn(),
        description="a loss or gradient norm far above those before: off; warn; act (go back, and skip its samples)",
    )

    @field_validator("hang_s")
    @classmethod
    def _is_no_moment(cls, hang_s: float | None) -> float | None:
        if hang_s and hang_s < _SHORTEST_HANG_S:
            raise ValueError(
                f"health.hang_s={hang_s:g} would end every run as hanging: set {_SHORTEST_HANG_S:g} or more, or 0 for "
                "no watch"
            )
        return hang_s

    rendezvous_timeout_s: int = Field(
        300, gt=0, le=2_592_000, description="seconds that ranks may take to meet at the start"
    )
