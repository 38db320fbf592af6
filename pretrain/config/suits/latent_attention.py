"""Runs of a model with latent attention."""

from pretrain.config.run_sections import RunSections


def check_latent_attention(config: RunSections) -> None:
    """Raises ValueError for what latent attention is not computed with."""
    if config.model.latent_attention is None:
        return
    if config.precision == "fp8":
        raise ValueError("model.latent_attention is for fp32, bf16 and fp16: set precision")
    shape, optimizer = config.model.latent_attention, config.optimizer
    if optimizer.name == "muon" and optimizer.per_head and shape.qk_nope_head_dim != shape.v_head_dim:
        raise ValueError(
            f"optimizer.per_head takes heads of one size, and model.latent_attention has qk_nope_head_dim="
            f"{shape.qk_nope_head_dim} and v_head_dim={shape.v_head_dim}: leave it out"
        )
    lora = config.finetune.lora
    if lora is not None and "qkv" in lora.targets:
        raise ValueError(
            "finetune.lora.targets: qkv is one matrix, and model.latent_attention has several in its place, which have "
            "no update here: leave it out"
        )
