"""`health`: when to give up."""

from pydantic import Field

from pretrain.config.section import Section


class Health(Section):
    stop_on_nan: bool = Field(True, description="end the run when the loss or gradient norm is not finite")
    timeout_s: int = Field(600, gt=0, le=2_592_000, description="seconds a collective may take before the run is ended")
    join_s: int = Field(300, gt=0, le=2_592_000, description="seconds that ranks may take to meet at the start")
