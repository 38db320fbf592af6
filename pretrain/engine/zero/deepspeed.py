"""DeepSpeed's ZeRO under megatron-core's schedules: what stages 1, 2 and 3 have in common.

The schedule runs forward and backward; DeepSpeed's optimizer, without its engine, shares out gradients and holds the
optimizer's state. A step is closed on the owned ranges alone, which lie the same way on all tensor ranks and, for what
several stages hold, on all of these: sums over those ranks, the division by the token count, norm and clipping cost
nothing more under stage 3 than under stage 1. DeepSpeed's own averaging, scaling and clipping are off.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.optimizer import adam
from pretrain.engine.optimizer.base import Owned
from pretrain.engine.optimizer.rules import NullOptimizer, find_rule
from pretrain.engine.zero.base import ParameterRange, norm, scale
from pretrain.errors import RunError
from pretrain.models.placement import Parameter


@dataclass(frozen=True)
class Flat:
    """Where a range of a parameter lies in the flat tensors of one of DeepSpeed's groups."""

    parameter: Parameter
    group: int
    start: int
    """in the parameter's local values"""
    position: int
    """in the group's flat tensors"""
    count: int


class DeepSpeedSharding(ABC):
    """See `base.Sharding`. `optimizer` is DeepSpeed's, `flats` where this rank's ranges lie in its groups."""

    replicated = False
    optimizer: Any
    flats: list[Flat]

    def __init__(
        self, config: RunConfig, groups: Groups, chunks: Sequence[nn.Module], parameters: Sequence[Parameter],
        device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.groups, self.chunks, self.device = config, groups, chunks, device
        self.parameters = parameters
        self._offloads = config.parallel.offload_optimizer
        self._rule = find_rule(config, parameters, groups, device, self.replicated)
        self._keeps = False
        self._kept: list[ParameterRange] = []

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that DeepSpeed is to wrap. What several stages hold, each among other parameters, gets groups
        of its own, so that it is cut alike on all."""
        settings = self.config.optimizer
        groups = adam.parameter_groups(settings, [p for p in self.parameters if not p.tied])
        for stages in ("ends", "all"):
            alike = sorted((p for p in self.parameters if p.stages == stages), key=lambda p: p.name)
            groups += adam.parameter_groups(settings, alike)
        if isinstance(settings, AdamOptimizer | AdamWOptimizer):
            return adam.adam(settings, groups)
        return NullOptimizer(groups, settings.learning_rate)

    def _make_moments(self, mains: Iterable[Tensor]) -> None:
        """Adam's, of flat groups of weights. (A rule makes its own.)"""
        for main in mains if self._rule is None else ():
            self.optimizer.optimizer.state[main] = adam.adam_state(main)

    @property
    def names(self) -> dict[nn.Parameter, str]:
        return {parameter.value: parameter.name for parameter in self.parameters}

    def begin(self, keeps_gradients: bool) -> None:
        self._keeps, self._kept = keeps_gradients, []
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.set_gradient_accumulation_boundary(False)

    def forwarded(self, chunk: Any, output: Any) -> None:
        """The gradient's arrival at the chunk's output (at the first, if it has several) is the beginning of its
        backward pass. DeepSpeed's engine would call these two; in a pipeline, several forward passes lie between."""

        def begins(_: Any) -> None:
            self._backward_begins(chunk)
            # Of this backward pass, however many are nested in it (recomputed layers run their own).
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

        register_multi_grad_hook([one for one in _tensors(output) if one.requires_grad], begins, mode="any")

    def reduce(self, token_count: int) -> None:
        self._finish()
        if self._offloads and self.device.type == "cuda":
            torch.cuda.synchronize()  # gradients are still on their way to page-locked memory
        for flat in self.flats:
            if getattr(flat.parameter.value, "sequence_parallel", False):
                self._sum(self._gradient(flat), self.groups.tensor_group)
        tied = (flat for flat in self.flats if flat.parameter.tied)
        for flat in sorted(tied, key=lambda flat: (flat.parameter.stages, flat.parameter.name)):  # alike on all stages
            self._sum(self._gradient(flat), self.groups.holders(flat.parameter.stages))
        self.scale(self._summed / max(1, token_count))  # without tokens it is zero

    def norm(self) -> Tensor:
        once = [self._gradient(flat) for flat in self.flats if flat.parameter.primary]
        copies = [self._gradient(flat) for flat in self.flats if not flat.parameter.primary]
        return norm(once, None, self.device, copies)

    def scale(self, factor: float) -> None:
        scale([self._gradient(flat) for flat in self.flats], factor)

    def update(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self._keeps:  # DeepSpeed frees them once they are applied
            self._kept = [ParameterRange(f.parameter.value, f.start, self._gradient(f).clone()) for f in self.flats]
        if self._rule is not None:
            self._rule.update(self.owned(), map(self._gradient, self.flats), learning_rate)
        self.optimizer.step()
        if self.optimizer.overflow:
            raise RunError("DeepSpeed took a finite gradient for one that is not, and left the update out")

    def gradients(self) -> Iterator[ParameterRange]:
        yield from self._kept

    def owned(self) -> Iterator[Owned]:
        for flat in self.flats:
            yield Owned(
                flat.parameter.value, flat.start, self._range(flat, self._main(flat.group)), self._moments(flat)
            )

    def factors(self) -> Iterator[tuple[Parameter, dict[str, Tensor]]]:
        if self._rule is not None:
            yield from self._rule.factors()

    def loaded(self, updates: int) -> None:
        if self._rule is not None:
            self._rule.updates = updates
        else:
            for state in self.optimizer.optimizer.state.values():
                state["step"].fill_(float(updates))
        self._publish()

    def _range(self, flat: Flat, group: Tensor) -> Tensor:
        return group.detach().narrow(0, flat.position, flat.count)

    def _moments(self, flat: Flat) -> dict[str, Tensor]:
        main = self._main(flat.group)
        if self._rule is not None:
            return self._rule.moments(flat.parameter, self._range(flat, main))
        state = self.optimizer.optimizer.state[main]
        return {name: self._range(flat, state[name]) for name in adam.MOMENTS}

    def _sum(self, gradient: Tensor, group: dist.ProcessGroup) -> None:
        """Over the ranks of `group`, in place. NCCL knows no gradients that are offloaded."""
        on_device = gradient.to(self.device)
        dist.all_reduce(on_device, group=group)
        gradient.copy_(on_device)

    _summed = 1.0
    """what turns the gradient as DeepSpeed leaves it into a sum over data ranks"""

    @abstractmethod
    def _main(self, group: int) -> Tensor:
        """The fp32 weights of a group that this rank updates, flat."""

    @abstractmethod
    def _gradient(self, flat: Flat) -> Tensor:
        """The gradient of a range after `_finish`: fp32, flat."""

    @abstractmethod
    def _backward_begins(self, chunk: Any) -> None: ...

    @abstractmethod
    def _backward_ends(self) -> None: ...

    @abstractmethod
    def _finish(self) -> None:
        """Completes the exchange of gradients after the last backward pass of a step."""

    @abstractmethod
    def _publish(self) -> None:
        """Copies the fp32 weights into those in use, on every data rank."""


def _tensors(output: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples."""
    if isinstance(output, tuple):
        for one in output:
            yield from _tensors(one)
    else:
        yield output
