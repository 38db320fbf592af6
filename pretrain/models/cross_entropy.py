"""The cross entropy of tokens: megatron-core's, or in fewer passes over a GPU's memory where one rank has all logits.

Shapes: L positions, B rows, V vocabulary.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor


def cross_entropy(logits: Tensor, labels: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Losses [L, B] in fp32, of logits [L, B, V / tensor ranks] and labels [L, B]; `group` is of tensor ranks. May
    overwrite the logits."""
    if logits.is_cuda and group.size() == 1:
        losses: Tensor = CrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call]
    else:
        losses = vocab_parallel_cross_entropy(logits, labels)
    return losses


class CrossEntropy(torch.autograd.Function):
    """(logits [..., V], labels [...]) -> losses [...] in fp32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        # Of a label that is no token no loss is asked, but it must be finite.
        labels = labels.masked_fill((labels < 0) | (labels >= logits.shape[-1]), 0)
        log_probabilities = _log_softmax(logits)
        ctx.save_for_backward(log_probabilities, labels)
        ctx.dtype = logits.dtype
        return -log_probabilities.gather(-1, labels[..., None])[..., 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        log_probabilities, labels = ctx.saved_tensors
        probabilities = log_probabilities.exp_()  # in place: nothing else has them
        by_token = probabilities.flatten(0, -2)
        by_token[torch.arange(len(by_token), device=labels.device), labels.flatten()] -= 1.0
        of_logits = torch.empty_like(probabilities, dtype=ctx.dtype)
        return torch.mul(probabilities, gradient[..., None], out=of_logits), None


def _log_softmax(logits: Tensor) -> Tensor:
    """In fp32. A GPU reads half precision without a copy in fp32."""
    if logits.is_cuda and logits.dtype in (torch.bfloat16, torch.float16):
        return torch._log_softmax(logits, -1, True)
    return F.log_softmax(logits, -1, dtype=torch.float32)
