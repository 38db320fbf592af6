"""The projection to the vocabulary, and what is made of its logits without ever having all of them.

A chunk of positions is projected, judged, and forgotten. When training, the gradient of what it says is taken at once:
nothing is computed twice, and for the backward pass only the gradients of the hidden states and of the weight are kept.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
)
from torch import Tensor

from pretrain.model_spec.logits import positions_at_once
from pretrain.models.linears import Linear
from pretrain.models.parameter_gradients import accumulate
from pretrain.models.products import InFp32, add_gradient, matmul, matmul_grad, unrounded

Judge = Callable[[Tensor, slice], tuple[Tensor, ...]]
"""(logits [l, B, V / tensor ranks], which of the L positions they are of) -> scalars, which count all positions when
added up, and tensors, which are joined along their first dimension, [l, ...]. If there is a gradient, it is the
first's, a scalar."""


class OutputLinear(Linear, ColumnParallelLinear):
    """megatron-core's, which can also hand its logits to a judge, a chunk at a time."""

    arithmetic = InFp32()  # `embedding_tables.VocabEmbedding`, which may share the weight, accumulates alike

    def forward(self, hidden: Tensor, weight: Tensor | None = None, judge: Judge | None = None) -> tuple[Any, None]:
        """Logits [L, B, V / tensor ranks], or with `judge` what it says of them all; and megatron-core's second result,
        a bias that is never left over."""
        if judge is None:
            return super().forward(hidden, weight)  # type: ignore[no-any-return]
        weight = self.weight if weight is None else weight
        positions, rows = len(hidden) * (self.tp_group.size() if self.sequence_parallel else 1), hidden.shape[1]
        most = max(1, positions_at_once(len(weight)) // rows)
        # The gradient of a chunk is taken before the loss scale is known: fp16 would lose what it is for.
        if positions <= most or (hidden.dtype == torch.float16 and torch.is_grad_enabled()):
            return judge(super().forward(hidden, weight)[0], slice(0, positions)), None
        if self.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden, group=self.tp_group)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden, group=self.tp_group)
        chunks = [slice(first, min(first + most, positions)) for first in range(0, positions, most)]
        if not torch.is_grad_enabled():
            return _together([judge(matmul(hidden[chunk], weight, self.bias), chunk) for chunk in chunks]), None
        return _Judged.apply(hidden, weight, self.bias, judge, chunks), None  # type: ignore[no-untyped-call]


def _together(answers: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(one).sum(0) if one[0].dim() == 0 else torch.cat(one) for one in zip(*answers, strict=True))


class _Judged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_LBH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, judge: Judge, chunks: Sequence[slice]
    ) -> tuple[Tensor, ...]:
        hidden_grad_LBH = torch.empty_like(hidden_LBH)
        # sums over chunks, in fp32 also of bf16 ones; a frozen parameter has none
        weight_grad_VH, bias_grad_V = (
            torch.zeros_like(parameter, dtype=torch.float32) if parameter is not None and needed else None
            for parameter, needed in zip((weight_VH, bias_V), ctx.needs_input_grad[1:3], strict=True)
        )
        answers = []
        for chunk in chunks:
            part_LBH = hidden_LBH[chunk]
            logits_LBV = matmul(part_LBH, weight_VH, bias_V).requires_grad_()
            with torch.enable_grad():
                said = judge(logits_LBV, chunk)
            (grad_LBV,) = torch.autograd.grad(said[0], logits_LBV)
            answers.append(tuple(one.detach() for one in said))
            grad_NV = grad_LBV.flatten(0, 1)
            hidden_grad_LBH[chunk] = matmul_grad(grad_LBV, weight_VH)
            if weight_grad_VH is None:
                pass
            elif weight_VH.dtype == torch.float32 or unrounded(weight_VH):
                add_gradient(weight_grad_VH, grad_NV, part_LBH.flatten(0, 1))
            else:
                weight_grad_VH += grad_NV.T @ part_LBH.flatten(0, 1)
            if bias_grad_V is not None:
                bias_grad_V += grad_NV.sum(0, dtype=torch.float32)
            del logits_LBV, said, grad_LBV, grad_NV  # else they live beside the next chunk's
        ctx.save_for_backward(hidden_grad_LBH, weight_grad_VH, bias_grad_V)
        ctx.weight, ctx.bias = weight_VH, bias_V
        first, *others = _together(answers)
        ctx.mark_non_differentiable(*others)
        return first, *others

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        hidden, *sums = ctx.saved_tensors
        parameters, adds = (ctx.weight, ctx.bias), unrounded(hidden)
        weight, bias = (
            None if total is None else accumulate(parameter, partial(_add_scaled, total, gradient), adds)
            for parameter, total in zip(parameters, sums, strict=True)
        )
        return hidden.mul_(gradient), weight, bias, None, None


def _add_scaled(total: Tensor, factor: Tensor, into: Tensor) -> None:
    into.addcmul_(total, factor)
