"""`model.mup`: maximal update parametrization (Yang et al. 2022, arXiv 2203.03466), by which the learning rate, weight
decay and initial weights that suit a model of `base_width` suit the same model at any width."""

from pydantic import Field

from pretrain.config.part_key import PartKey
from pretrain.config.section import Section


class Mup(Section):
    base_width: int = Field(
        gt=0,
        description="model.hidden of the model that learning rate, weight decay, eps and model.init are for; at this "
        "width nothing changes",
    )
    base_ffn: int | None = Field(
        None, gt=0, description="feed-forward size of that model; default: in proportion to its width"
    )
    base_head_dim: int | None = Field(
        None,
        gt=0,
        description="head size of that model; default: that of this one, so that wider models have more heads",
    )
    zero_head: bool = Field(
        False, description="start an untied head at zero, so that the first logits do not depend on the width"
    )
    input_multiplier: float = Field(1.0, gt=0, le=1e6, description="factor of the sum of embeddings")
    output_multiplier: float = Field(1.0, gt=0, le=1e6, description="factor of the logits, beside base_width / hidden")


KEY = PartKey(
    "mup",
    Mup,
    description="maximal update parametrization: what is tuned at mup.base_width suits this width (docs/mup.md); "
    "default: none",
    follows="init",
)
