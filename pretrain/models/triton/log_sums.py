"""Sums over logits that losses of tokens are made of, in one pass, and the gradient of logits in a second, which
overwrites them.

Logits stay in the numbers that their product gave: of bf16, 8 bytes pass through memory for each logit, the product's
own two included. Sums are in fp32 and of a fixed order, so a position has the same bits on any layout that leaves the
vocabulary whole.

Shapes: L positions, B rows, V logits of this tensor rank.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

_OPTIONS = {"BLOCK": 4096, "num_warps": 8}
_INTERPRETED_ROWS = 64  # of a program, each of which takes the interpreter as long as a row of a small vocabulary


class LogSums(NamedTuple):
    """[L, B] float32, on every tensor rank."""

    log_sum: Tensor
    """logarithm of the softmax's denominator"""
    label: Tensor
    """logit of the label; 0 for a label that is no token"""
    mean: Tensor
    """mean of the logits of all tokens"""


def log_sums(logits_LBV: Tensor, labels_LB: Tensor, vocabulary: int, group: dist.ProcessGroup) -> LogSums:
    """The sums of logits whose first `vocabulary` ids are tokens, the others padding. `group`: tensor ranks, of which
    each has V ids. The backward pass overwrites the logits."""
    first = dist.get_rank(group) * logits_LBV.shape[-1]
    return LogSums(*_LogSums.apply(logits_LBV, labels_LB, vocabulary, first, group))  # type: ignore[no-untyped-call]


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_LBV: Tensor, labels_LB: Tensor, vocabulary: int, first: int, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor]:
        logits, labels = logits_LBV.contiguous(), labels_LB.contiguous()
        real = min(logits.shape[-1], max(0, vocabulary - first))
        largest, *sums = row_sums(logits, labels, real, first)
        if dist.get_world_size(group) > 1:
            largest, sums = _over_ranks(largest, sums, group)
        total, label, added = sums
        log_sum = largest + total.log()
        ctx.save_for_backward(logits, labels, log_sum)
        ctx.real, ctx.first, ctx.vocabulary = real, first, vocabulary
        return log_sum, label, added / vocabulary

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, log_sum = ctx.saved_tensors
        of_log_sum, of_label, of_mean = gradients
        factors = torch.stack((log_sum, of_log_sum, of_label, of_mean / ctx.vocabulary))
        logits = logits.detach()
        row_gradients(logits, labels, factors, ctx.real, ctx.first)
        return logits, None, None, None, None


def _over_ranks(largest: Tensor, sums: list[Tensor], group: dist.ProcessGroup) -> tuple[Tensor, list[Tensor]]:
    of_all = largest.clone()
    dist.all_reduce(of_all, dist.ReduceOp.MAX, group=group)
    total, label, added = sums
    together = torch.stack((total * (largest - of_all).exp(), label, added))
    dist.all_reduce(together, group=group)
    return of_all, list(together)


def _launch(kernel: Any, logits: Tensor, labels: Tensor, *others: Any) -> None:
    at_once = 1 if logits.is_cuda else _INTERPRETED_ROWS
    kernel[-(-labels.numel() // at_once),](logits, labels, *others, ROWS=at_once, **_OPTIONS)


@torch.library.custom_op("pretrain::row_sums", mutates_args=())
def row_sums(logits: Tensor, labels: Tensor, real: int, first: int) -> Tensor:
    """The four sums of `kernels.log_sums.row_sums` of logits [..., V], [4, ...]."""
    from pretrain.models.triton.kernels import log_sums as kernels

    sums = logits.new_empty((4, *labels.shape), dtype=torch.float32)
    shape = labels.numel(), logits.shape[-1], real, first
    _launch(kernels.row_sums, logits, labels, sums, *shape)
    return sums


@row_sums.register_fake
def _(logits: Tensor, labels: Tensor, real: int, first: int) -> Tensor:
    return logits.new_empty((4, *labels.shape), dtype=torch.float32)


@torch.library.custom_op("pretrain::row_gradients", mutates_args=("logits",))
def row_gradients(logits: Tensor, labels: Tensor, factors: Tensor, real: int, first: int) -> None:
    """Overwrites logits [..., V] with their gradients: see `kernels.log_sums.row_gradients`."""
    from pretrain.models.triton.kernels import log_sums as kernels

    shape = labels.numel(), logits.shape[-1], real, first
    _launch(kernels.row_gradients, logits, labels, factors, *shape)


@row_gradients.register_fake
def _(logits: Tensor, labels: Tensor, factors: Tensor, real: int, first: int) -> None:
    return None
