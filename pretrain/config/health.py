"""`health`: what a run looks at to know that all is well, and when it gives up."""

from typing import Literal

from pydantic import Field

from pretrain.config.section import Section


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
