"""The logit of each label, where tensor ranks share the vocabulary. With the cross entropy, it says the logarithm of
the softmax's denominator without another pass over the logits."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def label_logits(logits_LBV: Tensor, labels_LB: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[L, B] float32, on every rank of `group`, of which each has V logits. Keeps no logits for the backward pass, so
    that these may be overwritten."""
    found: Tensor = _LabelLogits.apply(logits_LBV, labels_LB, group)  # type: ignore[no-untyped-call]
    return found


class _LabelLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_LBV: Tensor, labels_LB: Tensor, group: dist.ProcessGroup) -> Tensor:
        width = logits_LBV.shape[-1]
        first = dist.get_rank(group) * width
        own_LB = (labels_LB >= first) & (labels_LB < first + width)
        there_LB = (labels_LB - first).clamp(0, width - 1)
        found_LB = logits_LBV.gather(-1, there_LB[..., None])[..., 0].float() * own_LB
        dist.all_reduce(found_LB, group=group)
        ctx.save_for_backward(own_LB, there_LB)
        ctx.shape, ctx.dtype = logits_LBV.shape, logits_LBV.dtype
        return found_LB

    @staticmethod
    def backward(ctx: Any, gradient_LB: Tensor) -> tuple[Tensor, None, None]:
        own_LB, there_LB = ctx.saved_tensors
        grad_LBV = gradient_LB.new_zeros(ctx.shape, dtype=ctx.dtype)
        values_LB1 = (gradient_LB * own_LB)[..., None].to(ctx.dtype)
        return grad_LBV.scatter_(-1, there_LB[..., None], values_LB1), None, None
