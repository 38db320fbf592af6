"""Orthogonalization of matrices by Newton-Schulz steps (Keller Jordan 2024; torch.optim.Muon).

    X = G / max(|G|, eps)                         |G|: the Frobenius norm
    X = a X + b (X X') X + c (X X')^2 X           a few times

The steps bring all singular values close to 1: with torch's coefficients and 5 steps to between 0.68 and 1.13, where
they began above about 0.01 of the norm. Matrices of more rows than columns are transposed, as that is less work.

Equal matrices are a stack, of which each product is one call. `bf16x3` is the arithmetic of fp32 numbers in two parts
of bf16 each, high and low: of a product's four parts the largest three, added up in fp32.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

_BLOCK = 1024  # values whose squares are added in fp32

Coefficients = tuple[float, float, float]


def orthogonalize(stack: Tensor, steps: Sequence[Coefficients], eps: float, precision: str) -> Tensor:
    """fp32 matrices `stack` [N, R, C] after the `steps`, in fp32. `precision`: in bf16 each is computed as torch does,
    to the bit; in fp32 and bf16x3 norms are exact, so that they have no part in the result's rounding."""
    is_tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if is_tall else stack
    if precision == "bf16":
        x = x.bfloat16()
        x = x / torch.stack([matrix.norm() for matrix in x]).clamp(min=eps).view(-1, 1, 1)
    else:
        x = x / frobenius_norms(stack).clamp(min=eps).view(-1, 1, 1)
    step = _STEPS[precision]
    for coefficients in steps:
        x = step(x, *coefficients)
    return (x.mT if is_tall else x).float()


def _in_own_numbers(x: Tensor, a: float, b: float, c: float) -> Tensor:
    gram = x @ x.mT
    return torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)


def _in_three_parts(x: Tensor, a: float, b: float, c: float) -> Tensor:
    rows = x.shape[1]
    of_x = x.new_empty((len(x), 3 * rows, x.shape[2]), dtype=torch.bfloat16)  # high, low and high below one another
    high, low, again = of_x.split(rows, dim=1)
    again.copy_(_split(x, high, low))
    gram = _times_transposed(high, low)
    high, low = torch.empty_like(gram, dtype=torch.bfloat16), torch.empty_like(gram, dtype=torch.bfloat16)
    _split(gram, high, low)
    factor = gram.mul_(b).add_(_times_transposed(high, low), alpha=c)
    _split(factor, high, low)
    of_factor = torch.cat([high, high, low], dim=2)
    if not x.is_cuda:
        return torch.baddbmm(x, of_factor.float(), of_x.float(), beta=a)
    return torch.bmm(of_factor, of_x, out_dtype=x.dtype).add_(x, alpha=a)


def _split(x: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Writes fp32 numbers as a bf16 one and what that leaves out, in bf16. Returns the first."""
    torch.sub(x, high.copy_(x), out=low)
    return high


def _times_transposed(high: Tensor, low: Tensor) -> Tensor:
    """The product of matrices in two parts and their transposes, in fp32. Two of the three products of parts are each
    other's transposes. On a CPU they are multiplied in fp32, where they are exact."""
    if high.is_cuda:
        whole, mixed = (torch.bmm(high, part.mT, out_dtype=torch.float32) for part in (high, low))
    else:
        whole, mixed = (high.float() @ part.float().mT for part in (high, low))
    return whole.add_(mixed).add_(mixed.mT)


_STEPS: Mapping[str, Callable[[Tensor, float, float, float], Tensor]] = {
    "fp32": _in_own_numbers,
    "bf16": _in_own_numbers,
    "bf16x3": _in_three_parts,
}


def frobenius_norms(stack: Tensor) -> Tensor:
    """Norm of each matrix [N, R, C], in fp32: those of blocks in fp32, and their sum in fp64. torch's norm of a large
    fp32 tensor is off on a CPU, by 1e-5 of that of 1024 x 1024 values."""
    flat = stack.reshape(len(stack), -1)
    blocked = flat.shape[1] // _BLOCK * _BLOCK
    blocks = flat[:, :blocked].view(len(stack), -1, _BLOCK)
    norms = [torch.linalg.vector_norm(part, dim=-1).double() for part in (blocks, flat[:, None, blocked:])]
    return torch.cat(norms, dim=1).square().sum(1).sqrt().float()
