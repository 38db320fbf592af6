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
        x = x / torch.stack([frobenius_norm(matrix) for matrix in stack]).clamp(min=eps).view(-1, 1, 1)
    step = _STEPS[precision]
    for coefficients in steps:
        x = step(x, *coefficients)
    return (x.mT if is_tall else x).float()


def _in_own_numbers(x: Tensor, a: float, b: float, c: float) -> Tensor:
    gram = x @ x.mT
    return torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)


def _in_three_parts(x: Tensor, a: float, b: float, c: float) -> Tensor:
    of_x = _parts(x)
    gram = _product(of_x, tuple(part.mT for part in of_x))
    of_gram = _parts(gram)
    factor = gram.mul_(b).add_(_product(of_gram, of_gram), alpha=c)
    return _product(_parts(factor), of_x).add_(x, alpha=a)


_STEPS: Mapping[str, Callable[[Tensor, float, float, float], Tensor]] = {
    "fp32": _in_own_numbers,
    "bf16": _in_own_numbers,
    "bf16x3": _in_three_parts,
}


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """fp32 numbers as a bf16 one and what that leaves out, in bf16."""
    high = x.bfloat16()
    return high, (x - high).bfloat16()


def _product(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
    """[N, R, K] times [N, K, C], each in two parts -> fp32: one product of three times the depth. Products of parts are
    exact in fp32, in which a CPU multiplies them."""
    (high, low), (other_high, other_low) = left, right
    rows, columns = torch.cat([high, high, low], dim=2), torch.cat([other_high, other_low, other_high], dim=1)
    if not rows.is_cuda:
        return rows.float() @ columns.float()
    return torch.bmm(rows, columns, out_dtype=torch.float32)


def frobenius_norm(matrix: Tensor) -> Tensor:
    """In fp32: blocks in fp32, and their sum in fp64. torch's norm of a large fp32 tensor is off on a CPU, by 1e-5 of
    that of 1024 x 1024 values."""
    flat = matrix.reshape(-1)
    blocked = flat.numel() // _BLOCK * _BLOCK
    norms = [
        torch.linalg.vector_norm(blocks, dim=1).double()
        for blocks in (flat[:blocked].view(-1, _BLOCK), flat[blocked:].view(1, -1))
    ]
    return torch.cat(norms).square().sum().sqrt().float()
