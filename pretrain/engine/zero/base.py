"""The protocol of a sharding: which rank holds which part of the gradient, the weights and the optimizer's state.

A step is `begin`, the schedule (which reports each chunk's output by `forwarded`), `reduce`, then either `scale` and
`update` or `discard`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.optimizer.base import Owned, RowFactors
from pretrain.models.placement import Parameter


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
