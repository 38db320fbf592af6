"""DeepSpeed's ZeRO under megatron-core's schedules: what stages 1, 2 and 3 have in common.

The schedule runs forward and backward; DeepSpeed's optimizer, without its engine, reduces gradients and holds the
optimizer's state. Everything after the reduction works on the owned ranges alone. These are the same on all tensor
ranks and, for parameters that several pipeline stages hold, on all of those stages: sums over such ranks, the division
by the token count, norm and clipping cost no more under stage 3 than under stage 1. DeepSpeed's own averaging, scaling
and clipping are off.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig
from deepspeed.utils.timer import NoopTimer
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.optimizer import adam
from pretrain.engine.optimizer.base import Owned, OwnedRange, RowFactors
from pretrain.engine.optimizer.rules import NullOptimizer, find_rule
from pretrain.engine.zero.base import ParameterRange, overlaps
from pretrain.engine.zero.frozen import FrozenParameters
from pretrain.engine.zero.gradient_norm import norm, scale
from pretrain.engine.zero.optimizer_state import OptimizerState
from pretrain.errors import RunError
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.models.outputs import tensors_in
from pretrain.models.placement import Parameter

EXPERTS = "experts"
"""DeepSpeed's name for parameters that expert ranks split"""


@dataclass(frozen=True)
class Flat:
    """Position of a parameter's range in the flat tensors of one of DeepSpeed's groups."""

    parameter: Parameter
    group: int
    start: int
    """in the parameter's local values"""
    position: int
    """in the group's flat tensors"""
    count: int


class DeepSpeedSharding(OptimizerState):
    """See `base.Sharding`."""

    replicated = False
    optimizer: Any
    """DeepSpeed's, around the optimizer of torch that is its `optimizer`"""
    flats: list[Flat]
    """where this rank's ranges lie in the groups of DeepSpeed's optimizer"""

    def __init__(
        self, *, config: RunConfig, groups: Groups, chunks: Sequence[nn.Module], generator_chunks: Sequence[nn.Module],
        parameters: Sequence[Parameter], device: torch.device,
    ) -> None:  # fmt: skip
        self.config, self.groups, self.device = config, groups, device
        self.chunks, self.generator_chunks = chunks, generator_chunks
        self.parameters = [parameter for parameter in parameters if parameter.spec.trained]
        self.frozen = FrozenParameters(parameters, groups)
        self._parameter_of = {parameter.value: parameter for parameter in parameters}
        self._offloads = config.parallel.offload_optimizer
        self._settings = config.optimizer
        self._rule = find_rule(config, self.parameters, groups, device, self.replicated)
        self._keeps = False
        self._kept: list[ParameterRange] = []

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that DeepSpeed wraps. Parameters that several pipeline stages hold, each among other ones, get
        groups of their own, so that each of these stages cuts them at the same positions; and so do those that expert
        ranks split, which other ranks cut."""
        untied = [p for p in self.parameters if not p.tied]
        split = [p for p in untied if self._has_fewer_replicas(p)]
        groups = adam.parameter_groups([p for p in untied if not self._has_fewer_replicas(p)])
        for parameter in split:
            parameter.value.group_name = EXPERTS  # type: ignore[attr-defined]
        groups += [{**group, "moe": True, "name": EXPERTS} for group in adam.parameter_groups(split)]
        for stages in ("ends", "all"):
            alike = sorted((p for p in self.parameters if p.stages == stages), key=lambda p: p.name)
            groups += adam.parameter_groups(alike)
        if self._rule is None and isinstance(self._settings, AdamOptimizer | AdamWOptimizer):
            return adam.adam(self._settings, groups)
        return NullOptimizer(groups, self._settings.learning_rate)

    def _has_fewer_replicas(self, parameter: Parameter) -> bool:
        """Whether a parameter is of experts that other ranks replicate than the rest: its ranges are theirs, too."""
        return parameter.splits_experts and self.groups.regroups_experts

    @property
    def _shared_arguments(self) -> dict[str, Any]:
        """Arguments that the constructors of DeepSpeed's optimizers have in common."""
        offload = DeepSpeedZeroOffloadOptimizerConfig(device="cpu", pin_memory=self.device.type == "cuda")
        return {
            "init_optimizer": self._torch_optimizer(),
            "param_names": self.names,
            "timers": NoopTimer(),
            "reduce_bucket_size": bucket_parameters(self.config, self.config.parallel.tensor),
            "dp_process_group": self.groups.replica_group,
            "overlap_comm": overlaps(self.config, self.device),
            "offload_optimizer_config": offload if self._offloads else None,
            "gradient_accumulation_dtype": torch.float32,
            "communication_data_type": torch.float32,
        }

    def _make_moments(self) -> None:
        """Makes Adam's moments of the flat groups of weights. (A rule makes its own.)"""
        for main in self._mains if self._rule is None else ():
            self.optimizer.optimizer.state[main] = adam.adam_state(self._settings, main)

    @property
    def names(self) -> dict[nn.Parameter, str]:
        return {parameter.value: parameter.name for parameter in self.parameters}

    def watch(self, found: Callable[[nn.Parameter, Tensor], None]) -> None:
        for parameter in self.parameters:
            parameter.value.register_hook(partial(found, parameter.value))

    def begin(self, keeps_gradients: bool) -> None:
        self._keeps, self._kept = keeps_gradients, []
        self.optimizer.zero_grad(set_to_none=True)
        self.optimizer.set_gradient_accumulation_boundary(False)

    def forwarded(self, chunk: Any, output: Any) -> None:
        """Hooks the chunk's backward pass: it begins when a gradient arrives at the chunk's output (at the first, if it
        has several). DeepSpeed's engine would call these two methods; in a pipeline, several forward passes lie
        between."""

        def begins(_: Any) -> None:
            self._backward_begins(chunk)
            # Called at the end of this backward pass, not of those nested in it (recomputed layers run their own).
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

        if differentiable := [tensor for tensor in tensors_in(output) if tensor.requires_grad]:
            register_multi_grad_hook(differentiable, begins, mode="any")

    def reduce(self, token_count: int) -> None:
        self._finish()
        if self._offloads and self.device.type == "cuda":
            torch.cuda.synchronize()  # gradients are still on their way to page-locked memory
        for flat in self.flats:
            if getattr(flat.parameter.value, "sequence_parallel", False):
                self._sum(self._gradient(flat), self.groups.tensor_group)
        tied = (flat for flat in self.flats if flat.parameter.tied)
        for flat in sorted(tied, key=lambda flat: (flat.parameter.stages, flat.parameter.name)):  # alike on all stages
            self._sum(self._gradient(flat), self.groups.tied_group(flat.parameter.stages))
        self.scale(self._to_sum / max(1, token_count))  # without tokens it is zero
        for flat in self.flats:
            if self._is_still_frozen(flat.parameter.spec):
                self._gradient(flat).zero_()

    def norm(self) -> Tensor:
        primary = [self._gradient(flat) for flat in self.flats if flat.parameter.primary]
        copies = [self._gradient(flat) for flat in self.flats if not flat.parameter.primary]
        return norm(primary, None, self.device, copies)

    def scale(self, factor: float) -> None:
        scale([self._gradient(flat) for flat in self.flats], factor)

    def update(self, learning_rate: float, row_factors: RowFactors) -> None:
        assert self._rule is not None or not row_factors, "only rules multiply rows"
        adam.set_rates(self._settings, self.optimizer.param_groups, learning_rate, self._updates)
        if self._keeps:  # DeepSpeed frees them once they are applied
            self._kept = [ParameterRange(f.parameter.value, f.start, self._gradient(f).clone()) for f in self.flats]
        if self._rule is not None:
            self._rule.update(self.owned(), map(self._gradient, self.flats), learning_rate, row_factors)
        self.optimizer.step()
        if self.optimizer.overflow:
            raise RunError("DeepSpeed skipped an update because of an overflow, although the gradient is finite")
        self._count_update()

    def reduced(self) -> Iterator[ParameterRange]:
        for flat in self.flats:
            yield ParameterRange(flat.parameter.value, flat.start, self._gradient(flat))

    def gradients(self) -> Iterator[ParameterRange]:
        yield from self._kept

    def owned(self) -> Iterator[Owned]:
        for flat in self.flats:
            yield Owned(
                flat.parameter.value, flat.start, self._range(flat, self._mains[flat.group]), self._moments(flat)
            )

    def _ranges_of(self, rank: StageRank) -> Iterator[OwnedRange]:
        for flat in self._find_flats(rank):
            yield OwnedRange(flat.parameter.value, flat.start, flat.count)

    def _adam_states(self) -> Iterator[tuple[ParameterSpec, dict[str, Tensor]]]:
        for index, spec in {flat.group: flat.parameter.spec for flat in self.flats}.items():
            yield spec, self.optimizer.optimizer.state[self._mains[index]]

    def _range(self, flat: Flat, group: Tensor) -> Tensor:
        return group.detach().narrow(0, flat.position, flat.count)

    def _moments(self, flat: Flat) -> dict[str, Tensor]:
        main = self._mains[flat.group]
        if self._rule is not None:
            return self._rule.moments(flat.parameter, self._range(flat, main))
        state = self.optimizer.optimizer.state[main]
        return {name: self._range(flat, state[name]) for name in adam.MOMENTS}

    def _sum(self, gradient: Tensor, group: dist.ProcessGroup) -> None:
        """Sums over the ranks of `group` in place, on the device: NCCL cannot read offloaded gradients."""
        on_device = gradient.to(self.device)
        dist.all_reduce(on_device, group=group)
        gradient.copy_(on_device)

    def _gradient(self, flat: Flat) -> Tensor:
        """The gradient of a range after `_finish`: fp32, flat."""
        if self._offloads:
            offloaded = self._mains[flat.group].grad
            assert offloaded is not None
            return offloaded.narrow(0, flat.position, flat.count)
        return self._device_gradient(flat)

    _to_sum = 1.0
    """factor that turns the gradient as DeepSpeed leaves it into a sum over data ranks"""

    @property
    @abstractmethod
    def _mains(self) -> Sequence[Tensor]:
        """The fp32 weights that this rank updates: one flat tensor for each group."""

    @abstractmethod
    def _find_flats(self, rank: StageRank) -> Iterator[Flat]:
        """Where the ranges of a rank of this stage lie in its flat tensors."""

    @abstractmethod
    def _device_gradient(self, flat: Flat) -> Tensor:
        """See `_gradient`, where gradients are not offloaded."""

    @abstractmethod
    def _backward_begins(self, chunk: Any) -> None: ...

    @abstractmethod
    def _backward_ends(self) -> None: ...

    @abstractmethod
    def _finish(self) -> None:
        """Completes the exchange of gradients after the last backward pass of a step."""
