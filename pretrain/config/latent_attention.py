"""`model.latent_attention`: queries, keys and values made of low-rank latents (multi-head latent attention)."""

from pydantic import Field, model_validator

from pretrain.config.part_key import PartKey
from pretrain.config.section import Section


class LatentAttention(Section):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1), with the names of its config."""

    q_lora_rank: int | None = Field(
        None,
        gt=0,
        description="size of the latent that a position's queries are made of (DeepSeek-V3: 1536); absent: they are "
        "made of the hidden states (DeepSeek-V2-Lite)",
    )
    kv_lora_rank: int = Field(gt=0, description="size of the latent that keys and values are made of (512)")
    qk_nope_head_dim: int = Field(gt=0, description="features of a head's query and key without a position (128)")
    qk_rope_head_dim: int = Field(
        gt=0, description="features with rotary positions beside them; all heads share those of a key (64)"
    )
    v_head_dim: int = Field(gt=0, description="size of a head's value (128)")

    @model_validator(mode="after")
    def _sizes_suit(self) -> "LatentAttention":
        if self.qk_rope_head_dim % 2:
            raise ValueError(
                f"model.latent_attention.qk_rope_head_dim={self.qk_rope_head_dim} is odd, and rotary positions turn "
                "pairs of features: use an even number"
            )
        if self.v_head_dim > self.qk_head_dim:
            raise ValueError(
                f"model.latent_attention.v_head_dim={self.v_head_dim} is more than qk_nope_head_dim + "
                f"qk_rope_head_dim={self.qk_head_dim}, and attention kernels take values up to the size of queries: "
                "lower it"
            )
        return self

    @property
    def qk_head_dim(self) -> int:
        """Size of a head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


KEY = PartKey(
    "latent_attention",
    LatentAttention,
    description="make queries, keys and values of low-rank latents (llama; DeepSeek-V2 and V3); default: of the "
    "hidden states",
    follows="experts",
)
