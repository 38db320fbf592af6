"""The norm of a gradient that ranks share, and clipping by it."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

_BLOCK = 1024


def clip_factor(grad_norm: float, limit: float) -> float:
    """The factor that clips a gradient of `grad_norm` to `limit`, computed as torch's clipping does (0: no limit)."""
    if not 0 < limit < grad_norm:
        return 1.0
    return float(np.float32(limit) / (np.float32(grad_norm) + np.float32(1e-6)))


def scale(gradients: list[Tensor], factor: float) -> None:
    """Multiplies in place. A rank with little to update may have no gradients."""
    if gradients:
        torch._foreach_mul_(gradients, factor)


def norm(
    gradients: Sequence[Tensor],
    group: dist.ProcessGroup | None,
    device: torch.device,
    copies: Sequence[Tensor] = (),
) -> Tensor:
    """[1] float64, rounded to fp32: the norm over all ranks' `gradients`. It is not finite if one of `copies` is not
    finite (another rank counts these, and this one applies them too), or if its square, which second moments may reach,
    is beyond fp32."""
    return root(sum_of_squares(gradients, group, device, copies))


def sum_of_squares(
    gradients: Sequence[Tensor], group: dist.ProcessGroup | None, device: torch.device, copies: Sequence[Tensor]
) -> Tensor:  # fmt: skip
    """[1] float64: the square of `norm`, not rounded. Collective."""
    squares = squares_of(gradients, device)
    if copies:
        squares += 0 * squares_of(copies, device)  # 0; NaN if one is not finite
    dist.all_reduce(squares, group=group)
    return squares


def root(squares: Tensor) -> Tensor:
    """[1] float64 -> the norm, rounded to fp32; not finite where the square is beyond fp32."""
    return squares.masked_fill(squares > torch.finfo(torch.float32).max, torch.inf).sqrt().float().double()


def squares_of(gradients: Sequence[Tensor], device: torch.device) -> Tensor:
    """[1] float64 on `device`: the sum of all squares."""
    squares = torch.zeros(1, dtype=torch.float64, device=device)
    if gradients and gradients[0].is_cuda:
        squares += torch.stack(norms_in_few_kernels(gradients)).square().sum()
        return squares
    # torch's norm of a large fp32 tensor is off on a CPU (by 7e-4 of that of a GPT-2's gradients), and by how much
    # depends on how ranks share it: so blocks in fp32, and their sum in fp64.
    for gradient in gradients:
        flat = gradient.reshape(-1)
        blocked = flat.numel() // _BLOCK * _BLOCK
        for blocks in (flat[:blocked].view(-1, _BLOCK), flat[blocked:].view(1, -1)):
            squares += torch.linalg.vector_norm(blocks, dim=1).double().square().sum().to(device)
    return squares


def norms_in_few_kernels(gradients: Sequence[Tensor]) -> list[Tensor]:
    """float64 norm of each gradient, accumulated in float64. On a GPU one kernel takes many of them."""
    norms: list[Tensor] = list(torch._foreach_norm(list(gradients), 2, dtype=torch.float64))
    return norms
