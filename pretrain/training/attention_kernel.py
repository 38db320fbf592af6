"""The attention kernel of a run by name, for its first lines: torch chooses it by device, precision and shape."""

import torch

from pretrain.attention.fused_kernels import causal_kernel
from pretrain.config.attention import Dense
from pretrain.config.run_config import RunConfig
from pretrain.layout.layout import Layout
from pretrain.models.megatron_config import DTYPES


def attention_line(config: RunConfig, layout: Layout) -> str | None:
    """A line that names the kernel of a decoder's layers with dense causal attention, once an engine has set torch's
    order of kernels. None on a CPU, and where there are no such layers or scores are written out or biased."""
    model = config.model
    written_out = model.attention_dropout > 0 or model.needs_explicit_scores
    biased = model.positions.name in ("relative", "alibi")
    if (
        not torch.cuda.is_available()
        or not model.capabilities.self_attention
        or model.has_encoder
        or written_out
        or biased
    ):
        return None
    if not any(isinstance(model.attention.layer_pattern(layer), Dense) for layer in range(model.layers)):
        return None
    kernel = causal_kernel(
        torch.device("cuda", torch.cuda.current_device()),
        DTYPES[config.precision],
        heads=model.heads // (layout.tensor * layout.context),
        key_heads=max(1, model.num_kv_heads // (layout.tensor * layout.context)),
        length=model.sequence_length,
        dim=model.dim_per_head,
    )
    return f"attention: {kernel}"
