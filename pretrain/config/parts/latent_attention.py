"""Settings that go with latent attention."""

from collections.abc import Mapping
from typing import Any

from pretrain.config.latent_attention import KEY, LatentAttention
from pretrain.config.model_values import ModelValues
from pretrain.config.part import ModelPart, RunSettings, SmallSizes
from pretrain.config.positions import RotaryPositions


class LatentAttentionPart(ModelPart[LatentAttention]):
    """See `LatentAttention`."""

    key = KEY

    def check(self, model: ModelValues) -> None:
        """See `ModelPart`."""
        super().check(model)
        if self.of(model) is None:
            return
        if not isinstance(model.positions, RotaryPositions):
            raise ValueError(
                f"model.latent_attention has rotary positions, in features of their own: model.positions="
                f"{model.positions.name} would leave these without one; use rotary"
            )
        if model.positions.local_base is not None:
            raise ValueError("model.latent_attention has one base for all layers: leave out model.positions.local_base")
        if model.head_dim is not None or model.kv_heads is not None:
            raise ValueError(
                "model.latent_attention says the sizes of heads, and gives each a key and a value: leave out "
                "model.head_dim and model.kv_heads"
            )
        if model.bias or model.qkv_bias:
            raise ValueError("model.latent_attention has no biases: set model.bias=false, and leave out model.qkv_bias")
        if model.norm_type != "rms":
            raise ValueError(
                f"model.latent_attention has RMS norms of its latents: set model.norm_type=rms, not {model.norm_type}"
            )
        if model.qk_norm:
            raise ValueError(
                "model.latent_attention has norms of its latents in place of norms of queries and keys: leave out "
                "model.qk_norm"
            )
        if model.mup is not None:
            raise ValueError(
                "model.mup does not say how latents grow with the width: leave it out with model.latent_attention"
            )

    def check_run(self, config: RunSettings) -> None:
        """See `ModelPart`."""
        super().check_run(config)
        shape, optimizer, lora = self.of(config.model), config.optimizer, config.finetune.lora
        if shape is None:
            return
        if config.precision == "fp8":
            raise ValueError("model.latent_attention is for fp32, bf16 and fp16: set precision")
        if optimizer.name == "muon" and optimizer.per_head and shape.qk_nope_head_dim != shape.v_head_dim:
            raise ValueError(
                f"optimizer.per_head takes heads of one size, and model.latent_attention has qk_nope_head_dim="
                f"{shape.qk_nope_head_dim} and v_head_dim={shape.v_head_dim}: leave it out"
            )
        if lora is not None and "qkv" in lora.targets:
            raise ValueError(
                "finetune.lora.targets: qkv is one matrix, and model.latent_attention has several in its place, which "
                "have no update here: leave it out"
            )

    def shrunk(self, model: ModelValues, sizes: SmallSizes) -> Mapping[str, Any]:
        """See `ModelPart`. All sizes differ, so that one in the place of another is found."""
        shape = self.of(model)
        if shape is None:
            return {}
        half = sizes.head_width // 2
        small = {
            "q_lora_rank": None if shape.q_lora_rank is None else 3 * half,
            "kv_lora_rank": sizes.head_width,
            "qk_nope_head_dim": half + 2,
            "qk_rope_head_dim": half,
            "v_head_dim": half,
        }
        return {"model": {self.key.name: small, "head_dim": None}}
