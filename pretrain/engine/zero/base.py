"""The protocol of a sharding: which rank holds which part of the gradient, the weights and the optimizer's state.

A step is `begin`, the schedule (which reports each chunk's output by `forwarded`), `reduce`, then either `scale` and
`update` or `discard`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pretrain.config.optimizer import Optimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.optimizer import adam
from pretrain.engine.optimizer.base import Owned, OwnedRange, RowFactors, Rule
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.models.placement import Parameter

_BLOCK = 1024


@dataclass(frozen=True)
class ParameterRange:
    """Values [start, start + value.numel()) of a parameter's local shard, flattened: a live 1-D view."""

    parameter: nn.Parameter
    start: int
    value: Tensor


class Frozen(Protocol):
    """The parameters of a rank that no step updates (`zero.frozen`)."""

    def ranges(self) -> Iterator[ParameterRange]:
        """The ranges that this rank saves and loads, in fp32. No other data rank has them."""


class Sharding(Protocol):
    """One way to share a training step's memory between data ranks. All methods but the iterators are collective."""

    chunks: Sequence[Any]
    """the model chunks, wrapped as the schedule runs them"""
    generator_chunks: Sequence[Any]
    """chunks of the generator, if the run has one, wrapped alike"""
    replicated: bool
    """data ranks own the same ranges"""

    @property
    def frozen(self) -> Frozen:
        """The parameters that no step updates."""

    def watch(self, found: Callable[[nn.Parameter, Tensor], None]) -> None:
        """From now on calls `found` with a parameter and its gradient on this rank, before ranks exchange it: once in a
        step, or once in every backward pass. Not collective."""

    def begin(self, keeps_gradients: bool) -> None:
        """Prepares a step, before its first micro-batch. `keeps_gradients`: `gradients` stay readable until the next
        `begin`."""

    def forwarded(self, chunk: Any, output: Any) -> None:
        """Notes that `chunk` ran forward on a micro-batch whose backward pass follows."""

    def reduce(self, token_count: int) -> None:
        """Reduces gradients after the last micro-batch: those of the owned ranges become the sum over all ranks divided
        by `token_count`, and those of parameters that are still frozen zero. A loss scale is still in them."""

    def norm(self) -> Tensor:
        """[1] float64: the norm of the full model's gradient, each value counted once; the same on all ranks."""

    def scale(self, factor: float) -> None:
        """Multiplies the gradient by `factor`."""

    def update(self, learning_rate: float, row_factors: RowFactors) -> None:
        """Runs the optimizer's step with the gradient as it is, multiplies rows of the new weights, and refreshes the
        weights in use."""

    def discard(self) -> None:
        """Drops the gradient, in place of `update`."""

    def owned(self) -> Iterator[Owned]:
        """The ranges that this rank updates."""

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        """State that the optimizer keeps of full parameters (`optimizer.base.Rule.factors`)."""

    def reduced(self) -> Iterator[ParameterRange]:
        """The gradient of the owned ranges between `reduce` and `update`."""

    def gradients(self) -> Iterator[ParameterRange]:
        """The owned ranges of the last update's gradient, if `begin` said to keep it."""

    def in_use(self) -> Iterator[ParameterRange]:
        """The weights that this rank computes with."""

    def loaded(self, updates: int) -> None:
        """Refreshes the weights in use after weights and moments in `owned` were written to. `updates` is the number of
        updates that led to them, on which the next one depends."""


class OptimizerState(ABC):
    """The optimizer of a sharding: torch's Adam inside `optimizer`, or a rule."""

    generator_chunks: Sequence[Any] = ()
    _settings: Optimizer
    _rule: Rule | None
    """None: torch's Adam makes the step"""
    replicated: bool
    _updates = 0
    """updates that led to the weights"""

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        """See `Sharding.factors`."""
        if self._rule is not None:
            yield from self._rule.factors()

    def loaded(self, updates: int) -> None:
        """See `Sharding.loaded`."""
        self._updates = updates
        if self._rule is not None:
            self._rule.updates = updates
        else:
            for spec, state in self._adam_states():
                state["step"].fill_(adam.counted(self._settings, max(0, updates - spec.frozen_updates)))
        self._publish()

    def _set_ranges(self, groups: Groups) -> None:
        """Tells a rule what each rank owns."""
        ranks = 1 if self.replicated else dist.get_world_size(groups.stage_group)
        if self._rule is not None:
            self._rule.set_ranges([list(self._ranges_of(groups.stage_rank(number))) for number in range(ranks)])

    def _count_update(self) -> None:
        """Counts an update. torch's Adam has counted it for every parameter, and corrects its bias by that."""
        if self._rule is None:
            for spec, state in self._adam_states():
                if self._is_still_frozen(spec):
                    state["step"].fill_(adam.counted(self._settings, 0))
        self._updates += 1

    def _is_still_frozen(self, spec: ParameterSpec) -> bool:
        """Whether a parameter that is trained later is frozen in this step (`finetune.unfreeze_steps`)."""
        return self._updates < spec.frozen_updates

    @abstractmethod
    def _adam_states(self) -> Iterator[tuple[ParameterSpec, dict[str, Tensor]]]:
        """Adam's states, each with one of the parameters that it is of."""

    @abstractmethod
    def _ranges_of(self, rank: StageRank) -> Iterator[OwnedRange]:
        """The ranges that a rank of this stage updates, of its parts of the parameters."""

    @abstractmethod
    def _publish(self) -> None:
        """Copies the fp32 weights, frozen ones too, into those in use, on every data rank."""


def overlaps(config: RunConfig, device: torch.device) -> bool:
    """Whether gradients are exchanged during the backward pass. In a pipeline that would compete with what stages send
    each other; DeepSpeed's stage 1 has one exchange, after the last backward pass; the gradient of shared layers that
    are recomputed arrives once for each layer."""
    parallel = config.parallel
    if config.model.layers_share_by is not None and parallel.recompute == "full":
        return False
    if parallel.shards_by_deepspeed and parallel.zero == 1:
        return False
    return parallel.overlap if parallel.overlap is not None else device.type == "cuda" and parallel.pipeline == 1


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
