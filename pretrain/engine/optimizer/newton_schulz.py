"""Orthogonalization of a matrix by Newton-Schulz steps (Keller Jordan 2024; torch.optim.Muon).

    X = G / max(|G|, eps)                         |G|: the Frobenius norm
    X = a X + b (X X') X + c (X X')^2 X           a few times

The steps bring all singular values close to 1: with torch's coefficients and 5 steps to between 0.68 and 1.13, where
they began above about 0.01 of the norm. A matrix of more rows than columns is transposed, as that is less work.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_BLOCK = 1024  # values whose squares are added in fp32

Coefficients = tuple[float, float, float]


def orthogonalize(matrix: Tensor, steps: Sequence[Coefficients], eps: float, dtype: torch.dtype) -> Tensor:
    """fp32 `matrix` [R, C] after the `steps`, in fp32. In bf16 it is computed as torch does, to the bit; in fp32 the
    norm is exact, so that it has no part in the result's rounding."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    if dtype == torch.bfloat16:
        x = matrix.bfloat16()
        x = x.T if is_tall else x
        x = x / x.norm().clamp(min=eps)
    else:
        x = (matrix.T if is_tall else matrix) / frobenius_norm(matrix).clamp(min=eps)
    for a, b, c in steps:
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if is_tall else x).float()


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
