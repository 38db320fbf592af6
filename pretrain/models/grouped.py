"""Products of each expert's tokens and its own matrix. Tokens lie by expert: those of the first one come first.

Shapes: N rows (tokens times experts of each), E experts, I inputs, O outputs of each matrix.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretrain.models.parameter_gradients import accumulate, hand_over
from pretrain.models.products import add_gradient, by_fp32, matmul, matmul_grad

_STRIDE_BYTES = 16
"""bytes of which strides are to be a multiple in `F.grouped_mm`"""


class GroupedLinear(nn.Module):
    """Linear layers of several experts, [N, I] -> [N, O], whose weights are one parameter [E, O, I]."""

    def __init__(self, experts: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))

    def forward(self, x_NI: Tensor, counts_E: Tensor) -> Tensor:
        """`counts_E`: int64, how many rows each expert has."""
        out: Tensor = _GroupedProduct.apply(x_NI, self.weight, counts_E)  # type: ignore[no-untyped-call]
        return out


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NI: Tensor, weight_EOI: Tensor, counts_E: Tensor) -> Tensor:
        ctx.save_for_backward(x_NI if ctx.needs_input_grad[1] else None, weight_EOI, counts_E)
        return _products(x_NI, weight_EOI.transpose(1, 2), counts_E, matmul_transposed)

    @staticmethod
    def backward(ctx: Any, gradient_NO: Tensor) -> tuple[Tensor | None, ...]:
        x_NI, weight_EOI, counts_E = ctx.saved_tensors
        gradient_NO = gradient_NO.contiguous()
        of_x_NI = _products(gradient_NO, weight_EOI, counts_E, matmul_grad) if ctx.needs_input_grad[0] else None
        if x_NI is None:
            return of_x_NI, None, None
        if _is_grouped(gradient_NO, x_NI) and x_NI.is_cuda:
            return of_x_NI, hand_over(weight_EOI, F.grouped_mm(gradient_NO.T, x_NI, offs=_ends(counts_E))), None

        def add(into_EOI: Tensor) -> None:
            for into, gradient, x in zip(into_EOI, *_apart(counts_E, gradient_NO, x_NI), strict=True):
                add_gradient(into, gradient, x)

        return of_x_NI, accumulate(weight_EOI, add), None


def matmul_transposed(x: Tensor, weight: Tensor) -> Tensor:
    """x [N, I], weight [I, O] -> [N, O]"""
    return matmul(x, weight.T)


def _products(
    x_NI: Tensor, matrices_EIO: Tensor, counts_E: Tensor, product: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Each expert's rows times its matrix: by torch's kernel where it takes such tensors, otherwise one `product` for
    each expert. On a CPU both give the same bits."""
    if by_fp32(x_NI):
        return _products(x_NI.float(), matrices_EIO.float(), counts_E, product).to(x_NI.dtype)
    if _is_grouped(x_NI, matrices_EIO):
        return F.grouped_mm(x_NI, matrices_EIO, offs=_ends(counts_E))
    (parts,) = _apart(counts_E, x_NI)
    return torch.cat([product(part, matrix) for part, matrix in zip(parts, matrices_EIO, strict=True)])


def _is_grouped(*tensors: Tensor) -> bool:
    """Whether torch's kernel takes them: on a GPU it multiplies bf16 alone."""
    kinds = (torch.bfloat16,) if tensors[0].is_cuda else (torch.bfloat16, torch.float32)
    return all(
        x.dtype in kinds
        and x.numel() > 0
        and all(stride * x.element_size() % _STRIDE_BYTES == 0 for stride in x.stride() if stride != 1)
        for x in tensors
    )


def _ends(counts_E: Tensor) -> Tensor:
    return counts_E.cumsum(0).int()


def _apart(counts_E: Tensor, *tensors: Tensor) -> tuple[tuple[Tensor, ...], ...]:
    """The rows of each expert, of each tensor."""
    counts = host_counts(counts_E, len(tensors[0]))
    return tuple(x.split(counts) for x in tensors)


def host_counts(counts_E: Tensor, rows: int) -> list[int]:
    """Number of the `rows` that each expert has, for the host, which waits for the device to know."""
    counts: list[int] = counts_E.tolist()
    assert sum(counts) == rows
    return counts
