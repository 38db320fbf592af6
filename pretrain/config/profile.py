"""`profile`: which steps are looked into."""

from typing import Annotated

from pydantic import Field

from pretrain.config.section import Section

_Step = Annotated[int, Field(gt=0)]
_Rank = Annotated[int, Field(ge=0)]


class Profile(Section):
    steps: tuple[_Step, ...] = Field(
        (), description="steps to profile, each into a trace of torch's profiler below run.dir/profile"
    )
    ranks: tuple[_Rank, ...] = Field((0,), description="ranks that write a trace")
    memory: bool = Field(
        False, description="also write a snapshot of the GPU memory's history of these steps; CUDA only"
    )
    nsight: bool = Field(
        False,
        description="instead of traces: NVTX ranges of phases and modules, and the capture range of "
        "`nsys profile --capture-range=cudaProfilerApi`; CUDA only",
    )
