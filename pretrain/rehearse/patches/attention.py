"""The attention kernels of a rehearsal: those that torch chooses on CUDA. It chooses in C++, which sees no CUDA here
and would write out length x length scores."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pretrain.attention.backends import attention_backends
from pretrain.attention.cases import Attend, AttentionCase
from pretrain.attention.query_heads import for_each_query_head
from pretrain.config.run_config import RunConfig
from pretrain.models.kernels import PROVIDERS, Kernels
from pretrain.rehearse.recorder import Recorder


def rehearsed_kernels(config: RunConfig, recorder: Recorder, device: torch.device) -> Kernels:
    """The kernels of a run, with the attention kernels that torch chooses on CUDA."""
    *others, flex = attention_backends(fused_attention)

    def compute(case: AttentionCase, q: Tensor, k: Tensor, v: Tensor, attend: Attend) -> Tensor:
        """In place of flex_attention, which is compiled: flash attention with as many keys as a query sees on average.
        Both keep their output and a number for each row."""
        recorder.approximations.add("flex_attention")
        keys = max(1, round(case.heads.pattern.mean_keys(case.keys, case.causal)))
        return fused_attention(q, k[:, :, :keys], v[:, :, :keys], scale=case.scale)

    return replace(PROVIDERS[config.run.kernels](device), attention=(*others, replace(flex, compute=compute)))


def fused_attention(
    q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, **more: Any,
) -> Tensor:  # fmt: skip
    """Flash attention without a mask in half precision, which reads keys and values of fewer heads than queries as they
    are; otherwise memory-efficient attention, to copies of them."""
    out: Tensor
    if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out = flash(q, k, v, dropout_p, is_causal, False, scale=scale)[0]
        return out
    k, v = (for_each_query_head(x, q.shape[1]) for x in (k, v))
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=q.dtype).masked_fill_(~attn_mask, float("-inf"))
        attn_mask = attn_mask.expand(*q.shape[:3], k.shape[2])
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    out = efficient(q, k, v, attn_mask, True, dropout_p, is_causal, scale=scale)[0]
    return out
