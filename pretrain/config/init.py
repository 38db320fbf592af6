"""`model.init`: the distribution of initial weights."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from pretrain.config.section import Section, named


class NormalInit(Section):
    name: Literal["normal"] = "normal"
    std: float = Field(0.02, ge=1e-6, le=10, description="standard deviation of initial weights")
    scale_residual: bool = Field(
        True, description="divide the standard deviation by sqrt(2 * layers) in residual projections"
    )


class T5Init(Section):
    """Deviations follow from the width, as in mesh-tensorflow."""

    name: Literal["t5"] = "t5"


class XavierInit(Section):
    """Deviations follow from each matrix's inputs and outputs."""

    name: Literal["xavier"] = "xavier"


Init = Annotated[NormalInit | T5Init | XavierInit, Discriminator("name"), BeforeValidator(named("normal"))]
