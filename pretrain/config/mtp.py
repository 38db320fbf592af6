"""`model.mtp`: modules that train a decoder to predict further tokens than the next one (multi-token prediction)."""

from pydantic import Field

from pretrain.config.part_key import PartKey
from pretrain.config.section import Section


class Mtp(Section):
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

    num_layers: int = Field(
        gt=0,
        description="number of further tokens that each position predicts in training, with a module for each "
        "(DeepSeek-V3: 1; num_nextn_predict_layers, mtp_num_layers)",
    )
    loss_scaling_factor: float = Field(
        0.1,
        ge=0,
        le=1e3,
        description="weight of the mean of their losses in the loss (DeepSeek-V3: 0.3, and 0.1 for the last third; "
        "mtp_loss_scaling_factor)",
    )


KEY = PartKey(
    "mtp",
    Mtp,
    description="modules behind the layers that predict further tokens, in training alone (llama; DeepSeek-V3); "
    "default: none",
    follows="latent_attention",
)
