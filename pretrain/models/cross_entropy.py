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
    """Losses [L, B] of logits [L, B, V / tensor ranks] in fp32 and labels [L, B]; `group` is of tensor ranks. May
    overwrite the logits."""
    if logits.is_cuda and group.size() == 1:
        losses: Tensor = CrossEntropy.apply(logits, labels)  # type: ignore[no-untyped-call]
    else:
        losses = vocab_parallel_cross_entropy(logits, labels)
    return losses


class CrossEntropy(torch.autograd.Function):
    """(logits [..., V] in fp32, labels [...]) -> losses [...]."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        # Of a label that is no token no loss is asked, but it must be finite.
        labels = labels.masked_fill((labels < 0) | (labels >= logits.shape[-1]), 0)
        log_probabilities = F.log_softmax(logits, -1)
        ctx.save_for_backward(log_probabilities, labels)
        return -log_probabilities.gather(-1, labels[..., None])[..., 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        log_probabilities, labels = ctx.saved_tensors
        probabilities = log_probabilities.exp_()  # in place: nothing else has them
        by_token = probabilities.flatten(0, -2)
        by_token[torch.arange(len(by_token), device=labels.device), labels.flatten()] -= 1.0
        return probabilities.mul_(gradient[..., None]), None
