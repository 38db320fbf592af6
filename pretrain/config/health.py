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
        description="robust standard deviations above the median of the preceding steps that count as a spike",
    )
    window: int = Field(
        128,
        ge=8,
        le=10_000,
        description="preceding steps in the median; no step counts as a spike before there are that many",
    )


class SpikesWarn(_Watched):
    name: Literal["warn"] = "warn"


class SpikesAct(_Watched):
    """Back to the newest checkpoint, and on without the samples of that step."""

    name: Literal["act"] = "act"
    max_rollbacks: int = Field(3, gt=0, description="rollbacks allowed within within_steps; one more ends the run")
    within_steps: int = Field(1000, gt=0, description="steps over which rollbacks are counted")


Spikes = Annotated[
    SpikesOff | SpikesWarn | SpikesAct,
    Discriminator("name"),
    BeforeValidator(named("warn")),
]

_SHORTEST_HANG_S = 0.5  # a step, or a thread that the system did not run for a moment, takes as long


class Health(Section):
    stop_on_nan: bool = Field(True, description="end the run when the loss or gradient norm is not finite")
    timeout_s: int = Field(
        600, gt=0, le=2_592_000, description="seconds that a collective may take before the run is ended"
    )
    hang_s: float | None = Field(
        300.0,
        ge=0,
        le=2_592_000,
        description="seconds without progress after which the run is considered hung: every rank reports where it "
        "is, and the run ends. At most half of health.timeout_s, so that it comes first; null or 0: "
        "off",
    )
    stragglers: Literal["off", "warn"] = Field("warn", description="whether to name ranks that slow the others down")
    straggler_steps: int = Field(50, gt=0, description="steps between two comparisons of the ranks' speed")
    preflight: Literal["off", "warn", "act"] = Field(
        "off",
        description="a few seconds of checks of each node before anything is built: matrix products, memory, "
        "collectives, disk, clocks. warn names slow nodes, act refuses to start on them, and both "
        "refuse to start where products are wrong",
    )
    replay_every: int = Field(
        0,
        ge=0,
        description="every so many steps, compute the step a second time before its update and compare the bits: a "
        "difference names the rank that computes wrong, and ends the run. Such a step takes twice as long; "
        "0: off",
    )
    spike: Spikes = Field(
        SpikesWarn(),
        description="response to a loss or gradient norm far above the preceding ones: off; warn; act (roll back, "
        "and skip the samples)",
    )

    idle_experts: float | None = Field(
        0.5,
        gt=0,
        le=1,
        description="fraction of the experts of a layer from which on a warning names the layer, if they are idle: "
        "each with less than a tenth of the mean load, at steps of track.experts_every_steps; null: no warning",
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
        300, gt=0, le=2_592_000, description="seconds that ranks may take to join the process group at the start"
    )
