"""The divergence of one model's predictions from another's, where tensor ranks share the vocabulary."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def divergence(
    logits_LBV: Tensor, teacher_LBV: Tensor, temperature: float, vocabulary: int, group: dist.ProcessGroup
) -> Tensor:  # fmt: skip
    """[L, B] float32, nats, on every rank of `group`: the divergence of the softmax of logits / temperature from that
    of `teacher_LBV` / temperature, times temperature^2, so that its gradient does not shrink with the temperature
    (Hinton et al. 2015, section 2). Rows that pad the vocabulary take no part. Keeps no logits for the backward pass,
    so that these may be overwritten."""
    first = dist.get_rank(group) * logits_LBV.shape[-1]
    real = min(logits_LBV.shape[-1], max(0, vocabulary - first))
    found: Tensor = _Divergence.apply(logits_LBV, teacher_LBV, temperature, real, group)  # type: ignore[no-untyped-call]
    return found


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_LBV: Tensor, teacher_LBV: Tensor, temperature: float, real: int, group: dist.ProcessGroup
    ) -> Tensor:
        ours_LBV, theirs_LBV = (
            _log_softmax(logits[..., :real].float() / temperature, group) for logits in (logits_LBV, teacher_LBV)
        )
        target_LBV = theirs_LBV.exp()
        divergence_LB = theirs_LBV.sub_(ours_LBV).mul_(target_LBV).sum(-1)
        dist.all_reduce(divergence_LB, group=group)
        ctx.save_for_backward(ours_LBV.exp_().sub_(target_LBV))
        ctx.shape, ctx.dtype, ctx.temperature = logits_LBV.shape, logits_LBV.dtype, temperature
        return divergence_LB * temperature**2

    @staticmethod
    def backward(ctx: Any, gradient_LB: Tensor) -> tuple[Tensor, None, None, None, None]:
        (difference_LBV,) = ctx.saved_tensors
        grad_LBV = gradient_LB.new_zeros(ctx.shape, dtype=ctx.dtype)
        grad_LBV[..., : difference_LBV.shape[-1]] = difference_LBV * (gradient_LB * ctx.temperature)[..., None]
        return grad_LBV, None, None, None, None


def _log_softmax(logits_LBV: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Over the vocabulary of all ranks of `group`, of which this one may have none. Overwrites the logits."""
    largest_LB1 = logits_LBV.new_full((*logits_LBV.shape[:-1], 1), -torch.inf)
    if logits_LBV.shape[-1]:
        largest_LB1 = logits_LBV.amax(-1, keepdim=True)
    dist.all_reduce(largest_LB1, op=dist.ReduceOp.MAX, group=group)
    shifted_LBV = logits_LBV.sub_(largest_LB1)
    sums_LB1 = shifted_LBV.exp().sum(-1, keepdim=True)
    dist.all_reduce(sums_LB1, group=group)
    return shifted_LBV.sub_(sums_LB1.log())
