"""`profile`: which steps are looked into."""

from typing import Annotated

from pydantic import Field, model_validator

from pretrain.config.section import Section

_Step = Annotated[int, Field(gt=0)]
_Rank = Annotated[int, Field(ge=0)]


class Profile(Section):
    steps: tuple[_Step, ...] = Field(
        (), description="steps to profile, each into a trace of torch's profiler below run.dir/profile"
    )
    ranks: tuple[_Rank, ...] = Field((0,), min_length=1, description="ranks that write a trace")
    memory: bool = Field(
        False,
        description="also record allocations, for the table of what holds memory at a step's peak; on a GPU with a "
        "snapshot of its memory's history",
    )
    nsight: bool = Field(
        False,
        description="instead of traces: NVTX ranges of phases and modules, and the capture range of "
        "`nsys profile --capture-range=cudaProfilerApi`; CUDA only",
    )

    @model_validator(mode="after")
    def _has_an_effect(self) -> "Profile":
        for key in ("memory", "nsight"):
            if getattr(self, key) and not self.steps:
                raise ValueError(f"profile.{key}=true is for the steps of profile.steps, and there are none: name some")
        if self.memory and self.nsight:
            raise ValueError("profile.nsight=true writes no files, and so no profile.memory: choose one of them")
        return self
