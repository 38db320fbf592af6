"""`health`: what is bad at a step, and when to give up."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

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
    most: int = Field(3, gt=0, description="how often a run goes back within within_steps; once more ends it")
    within_steps: int = Field(1000, gt=0, description="steps for which going back is counted")


Spikes = Annotated[
    SpikesOff | SpikesWarn | SpikesAct,
    Discriminator("name"),
    BeforeValidator(named("warn")),
]


class Health(Section):
    stop_on_nan: bool = Field(True, description="end the run when the loss or gradient norm is not finite")
    timeout_s: int = Field(600, gt=0, le=2_592_000, description="seconds a collective may take before the run is ended")
    spike: Spikes = Field(
        SpikesWarn(),
        description="a loss or gradient norm far above those before: off; warn; act (go back, and skip its samples)",
    )
