"""The seam under the engine: who holds which part of the gradient, of the weights and of the optimizer's state.

A step is `begin`, the schedule (which tells of each chunk's output by `forwarded`), `reduce`, then either `scale` and
`update` or `discard`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.optimizer.base import Owned
from pretrain.model_spec.parameters import first_layer_matrix_size
from pretrain.models.placement import Parameter

_BLOCK = 1024


@dataclass(frozen=True)
class ParameterRange:
    """Values [start, start + value.numel()) of a parameter's local part, flattened: a live view, in one dimension."""

    parameter: nn.Parameter
    start: int
    value: Tensor


class Sharding(Protocol):
    """One way to share a training step's memory between data ranks. All methods but the iterators are collective."""

    chunks: Sequence[Any]
    """the model chunks as the schedule is to run them"""
    replicated: bool
    """data ranks own the same ranges"""

    def begin(self, keeps_gradients: bool) -> None:
        """Before the first micro-batch of a step. `keeps_gradients`: until the next step's beginning."""

    def forwarded(self, chunk: Any, output: Any) -> None:
        """`chunk` has been run on a micro-batch that will be trained on."""

    def reduce(self, token_count: int) -> None:
        """After the last micro-batch: the gradient of the owned ranges becomes the sum over all ranks divided by
        `token_count`. (A loss scale is still in it.)"""

    def norm(self) -> Tensor:
        """[1] float64: of the whole gradient, every value of the model once, on all ranks the same."""

    def scale(self, factor: float) -> None:
        """Multiplies the gradient by `factor`."""

    def update(self, learning_rate: float) -> None:
        """Makes the optimizer's step with the gradient as it is, and brings the weights in use up to date."""

    def discard(self) -> None:
        """Instead of `update`: forgets the gradient."""

    def owned(self) -> Iterator[Owned]:
        """The ranges that this rank updates."""

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        """What the optimizer keeps of whole parameters (`optimizer.base.Rule.factors`)."""

    def gradients(self) -> Iterator[ParameterRange]:
        """The gradient of the last update, if it was to be kept, of the owned ranges."""

    def in_use(self) -> Iterator[ParameterRange]:
        """The weights as this rank holds them for computing."""

    def loaded(self, updates: int) -> None:
        """The weights and moments in `owned` have been written to: makes the weights in use follow. `updates` is how
        many led to them, on which the next one depends."""


def bucket_parameters(config: RunConfig) -> int:
    """Parameters whose gradients are exchanged at once: unless the config says otherwise, as many as a layer's matrices
    have. Fewer would mean more messages, more would mean more memory and a later first exchange."""
    return config.parallel.bucket_parameters or first_layer_matrix_size(config.model) // config.parallel.tensor


def overlaps(config: RunConfig, device: torch.device) -> bool:
    """Whether gradients are exchanged during the backward pass. In a pipeline that would compete with what stages send
    each other; DeepSpeed's stage 1 has one exchange, after the last pass; and of layers that are one and recomputed, a
    gradient arrives once for each."""
    parallel = config.parallel
    if config.model.shared_layers and parallel.recompute == "full":
        return False
    if parallel.shards_by_deepspeed and parallel.zero == 1:
        return False
    return parallel.overlap if parallel.overlap is not None else device.type == "cuda" and parallel.pipeline == 1


def clip_factor(grad_norm: float, limit: float) -> float:
    """What shortens a gradient of `grad_norm` to `limit`, as torch's clipping does (0: no limit)."""
    if not 0 < limit < grad_norm:
        return 1.0
    return float(np.float32(limit) / (np.float32(grad_norm) + np.float32(1e-6)))


def scale(gradients: list[Tensor], factor: float) -> None:
    """In place. A rank with little to update may have none."""
    if gradients:
        torch._foreach_mul_(gradients, factor)


def norm(
    gradients: Sequence[Tensor],
    group: dist.ProcessGroup | None,
    device: torch.device,
    copies: Sequence[Tensor] = (),
) -> Tensor:
    """[1] float64, rounded to fp32: the norm of all ranks' `gradients` together; not finite either if one of `copies`
    isn't, which count elsewhere and are applied here as well, nor if its square, as a second moment may be, is beyond
    fp32."""
    squares = squares_of(gradients, device)
    if copies:
        squares += 0 * squares_of(copies, device)  # 0, but of what is not finite NaN
    dist.all_reduce(squares, group=group)
    squares.masked_fill_(squares > torch.finfo(torch.float32).max, torch.inf)
    return squares.sqrt().float().double()


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
        whole = flat.numel() // _BLOCK * _BLOCK
        for blocks in (flat[:whole].view(-1, _BLOCK), flat[whole:].view(1, -1)):
            squares += torch.linalg.vector_norm(blocks, dim=1).double().square().sum().to(device)
    return squares


def norms_in_few_kernels(gradients: Sequence[Tensor]) -> list[Tensor]:
    """float64 norm of each, summed up in float64. On a GPU a kernel takes many of them at once."""
    found: list[Tensor] = list(torch._foreach_norm(list(gradients), 2, dtype=torch.float64))
    return found
