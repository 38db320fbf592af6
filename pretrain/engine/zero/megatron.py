"""megatron-core's own ways: plain data parallelism (stage 0), and its distributed optimizer (stage 1).

Its schedule calls `finalize_model_grads`, which sums gradients over ranks. Experts that expert ranks share have buffers
and an optimizer of their own, whose ranks are those that hold the same experts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import (
    OptimizerConfig,
    ParamGroupOverride,
    ParamKey,
    ParamPredicate,
    get_megatron_optimizer,
)
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_model_config
from torch import Tensor, nn

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.optimizer import adam
from pretrain.engine.optimizer.base import Owned, OwnedRange, RowFactors
from pretrain.engine.optimizer.rules import find_rule
from pretrain.engine.zero.base import ParameterRange, overlaps
from pretrain.engine.zero.frozen import FrozenParameters
from pretrain.engine.zero.gradient_norm import root, scale, sum_of_squares
from pretrain.engine.zero.optimizer_state import OptimizerState
from pretrain.layout.layout import Layout
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.models.megatron_config import DTYPES
from pretrain.models.megatron_versions import data_parallel, gradients_of_norm
from pretrain.models.placement import Parameter


class MegatronSharding(OptimizerState):
    """See `base.Sharding`."""

    def __init__(
        self, *, config: RunConfig, layout: Layout, groups: Groups, megatron: TransformerConfig,
        chunks: Sequence[nn.Module], generator_chunks: Sequence[nn.Module], parameters: Sequence[Parameter],
        device: torch.device,
    ) -> None:  # fmt: skip
        shares = layout.zero == 1 and layout.replicates  # one rank would copy its weights twice for nothing
        self.replicated = not shares
        self._parameters, self._groups, self._device = parameters, groups, device
        self._specs = {parameter.value: parameter.spec for parameter in parameters}
        self.frozen = FrozenParameters(parameters, groups)
        trained = [parameter for parameter in parameters if parameter.spec.trained]
        self._rule = find_rule(config, trained, groups, device, self.replicated)
        ddp = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=shares,
            overlap_grad_reduce=overlaps(config, device),
            bucket_size=bucket_parameters(
                config, config.parallel.tensor
            ),  # heeded where the exchange overlaps with the backward pass
        )
        self.chunks: Sequence[Any] = [data_parallel(megatron, ddp, chunk) for chunk in chunks]
        self.generator_chunks = [data_parallel(get_model_config(chunk), ddp, chunk) for chunk in generator_chunks]
        self._all_chunks = [*self.chunks, *self.generator_chunks]
        if not generator_chunks:  # else gradients are complete only after the schedules of both models
            megatron.finalize_model_grads_func = _sum_gradients
        if ddp.overlap_grad_reduce:  # but for the last micro-batch; of a table that both models read, the model's
            for wrapped in (self.chunks, self.generator_chunks):
                waits = [chunk.no_sync for chunk in wrapped]
                for chunk in wrapped:
                    get_model_config(chunk).no_sync_func = waits if len(waits) > 1 else waits[0]
        self._settings = settings = config.optimizer
        chained = get_megatron_optimizer(
            _optimizer_config(config, shares), self._all_chunks, _overrides(parameters), use_gloo_process_groups=False
        )
        self.optimizers: Sequence[Any] = chained.chained_optimizers
        """megatron-core's, each around the optimizer of torch that is its `optimizer`"""
        for optimizer in self.optimizers[:-1] if shares else ():
            optimizer.model_chunks = []  # whose weights each step would gather: the last one does, after all are made
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for name, value in adam.DEFAULT_GROUP.items():
                    group.setdefault(name, value)
                group["fused"] = True  # one pass over weights and moments; megatron-core leaves torch's default
            inner = optimizer.optimizer  # which never makes a step if there is a rule; None where nothing is trained
            for main in (main for group in optimizer.param_groups for main in group["params"] if self._rule is None):
                inner.state[main] = adam.adam_state(settings, main)
        self._set_ranges(groups)

    def watch(self, found: Callable[[nn.Parameter, Tensor], None]) -> None:
        for chunk in self._all_chunks:
            for buckets in (*chunk.bucket_groups, *chunk.expert_parallel_bucket_groups):
                buckets.start_grad_sync = _watched(buckets, found)

    def begin(self, keeps_gradients: bool) -> None:
        for chunk in self._all_chunks:
            chunk.zero_grad_buffer()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def forwarded(self, chunk: Any, output: Any) -> None:
        pass

    def reduce(self, token_count: int) -> None:
        if (
            self.generator_chunks
        ):  # last, as its tied embedding is summed over stages, after the model's over data ranks
            _sum_gradients(list(self.chunks), torch.empty(0))
            _sum_gradients(list(self.generator_chunks), torch.empty(0))
        # Else the schedule has summed all, and a tied embedding's on both its stages.
        for chunk in self._all_chunks if token_count else ():
            chunk.scale_gradients(1.0 / token_count)
        for parameter in (p for p in self._parameters if p.stages == "all" and p.spec.trained):
            dist.all_reduce(parameter.value.main_grad, group=self._groups.tied_group("all"))  # type: ignore[attr-defined]
        for optimizer in self.optimizers:
            optimizer.prepare_grads()
        for value, _, main, _ in self._mains():
            if self._is_still_frozen(self._specs[value]):
                _gradient(main).zero_()

    def norm(self) -> Tensor:
        squares = [self._square(optimizer) for optimizer in self.optimizers]
        return root(torch.stack(squares).sum(0))

    def _square(self, optimizer: Any) -> Tensor:
        """[1] float64: the sum of squares of the gradients of an optimizer's parameters, each value counted once."""
        group = optimizer.get_grad_stats_parallel_group()
        counted = gradients_of_norm(optimizer)
        counted_pointers = {gradient.data_ptr() for gradient in counted}
        every = [main.grad for main in optimizer.get_parameters() if main.grad is not None]
        copies = [gradient for gradient in every if gradient.data_ptr() not in counted_pointers]
        return sum_of_squares(counted, group, self._device, copies)

    def scale(self, factor: float) -> None:
        scale([main.grad for optimizer in self.optimizers for main in optimizer.get_parameters()], factor)

    def update(self, learning_rate: float, row_factors: RowFactors) -> None:
        if self._rule is None:
            assert not row_factors, "only rules multiply rows"
            for optimizer in self.optimizers:
                adam.set_rates(self._settings, optimizer.param_groups, learning_rate, self._updates)
                optimizer.step_with_ready_grads()
        else:
            gradients = (_gradient(main) for _, _, main, _ in self._mains())
            self._rule.update(self.owned(), gradients, learning_rate, row_factors)
            self._publish_trained()
        self._count_update()

    def discard(self) -> None:
        pass

    def owned(self) -> Iterator[Owned]:
        for parameter, optimizer, main, start in self._mains():
            yield Owned(parameter, start, main.detach(), self._moments(parameter, optimizer, main))

    def _ranges_of(self, rank: StageRank) -> Iterator[OwnedRange]:
        for optimizer in self.optimizers:
            if not isinstance(optimizer, DistributedOptimizer):
                yield from (OwnedRange(value, 0, main.numel()) for value, main, _ in _mains_of(optimizer))
                continue
            ranks = dist.get_world_size(optimizer.data_parallel_group)
            for buffer in optimizer.buffers:  # of each bucket, megatron-core gives every rank an equal share
                for value, (start, end, index) in buffer.param_index_map.items():
                    bucket = buffer.buckets[index]
                    size = bucket.grad_data.numel() // ranks
                    first = bucket.offset + rank.replica_of("expert" in self._specs[value].axes) * size
                    low, high = max(first, start), min(first + size, end)
                    if low < high:
                        yield OwnedRange(value, low - start, high - low)

    def reduced(self) -> Iterator[ParameterRange]:
        return self.gradients()

    def gradients(self) -> Iterator[ParameterRange]:
        for parameter, _, main, start in self._mains():
            yield ParameterRange(parameter, start, _gradient(main).view(-1))

    def in_use(self) -> Iterator[ParameterRange]:
        for parameter in self._parameters:
            yield ParameterRange(parameter.value, 0, parameter.value.detach().view(-1))

    def _moments(self, parameter: nn.Parameter, optimizer: Any, main: Tensor) -> dict[str, Tensor]:
        if self._rule is not None:
            return self._rule.moments(self._rule.replica_groups.parameters[parameter], main)
        state = optimizer.optimizer.state[main]
        return {name: state[name] for name in adam.MOMENTS}

    def _adam_states(self) -> Iterator[tuple[ParameterSpec, dict[str, Tensor]]]:
        for parameter, optimizer, main, _ in self._mains():
            yield self._specs[parameter], optimizer.optimizer.state[main]

    def _publish(self) -> None:
        self._publish_trained()
        self.frozen.publish()

    def _publish_trained(self) -> None:
        for optimizer in self.optimizers:
            if not isinstance(optimizer, FP32Optimizer):
                optimizer._copy_main_params_to_model_params()
        if not self.replicated:
            for chunk in self._all_chunks:
                chunk.start_param_sync(force_sync=True)

    def _mains(self) -> Iterator[tuple[nn.Parameter, Any, Tensor, int]]:
        """(parameter, its optimizer, fp32 weights that this rank updates, where these begin)"""
        for optimizer in self.optimizers:
            for parameter, main, start in _mains_of(optimizer):
                yield parameter, optimizer, main, start


def _mains_of(optimizer: Any) -> Iterator[tuple[nn.Parameter, Tensor, int]]:
    if isinstance(optimizer, DistributedOptimizer):
        for models, mains in (
            (optimizer.model_float16_groups, optimizer.shard_fp32_from_float16_groups),
            (optimizer.model_fp32_groups, optimizer.shard_fp32_groups),
        ):
            for parameter, main in _pairs(models, mains):
                yield parameter, main, optimizer._get_model_param_range_map(parameter)["param"].start
    elif isinstance(optimizer, FP32Optimizer):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter, parameter, 0
    elif optimizer.param_groups:  # none on a stage where nothing is trained
        for models, mains in (
            (optimizer.float16_groups, optimizer.fp32_from_float16_groups),
            (optimizer.fp32_from_fp32_groups, optimizer.fp32_from_fp32_groups),
        ):
            for parameter, main in _pairs(models, mains):
                yield parameter, main, 0


def _optimizer_config(config: RunConfig, shares: bool) -> OptimizerConfig:
    """megatron-core's settings of the optimizer; whether data ranks share its state."""
    settings = config.optimizer
    moments = {}
    if isinstance(settings, AdamOptimizer | AdamWOptimizer):  # under a rule megatron-core's Adam never makes a step
        moments = {"adam_beta1": settings.beta1, "adam_beta2": settings.beta2, "adam_eps": settings.eps}
    return OptimizerConfig(
        optimizer="adam",
        lr=settings.learning_rate,
        min_lr=0.0,
        weight_decay=settings.weight_decay,
        **moments,
        decoupled_weight_decay=settings.name != "adam",
        clip_grad=settings.clip_norm,
        bf16=config.precision != "fp32",  # means fp32 weights beside those in use; loss scaling is the engine's
        params_dtype=DTYPES[config.precision],
        use_distributed_optimizer=shares,
    )


def _overrides(parameters: Sequence[Parameter]) -> dict[ParamKey, ParamGroupOverride]:
    """megatron-core's description of the parameter groups: what differs from its default one."""
    groups: dict[tuple[tuple[str, float], ...], set[nn.Parameter]] = {}
    for parameter in parameters:
        settings = adam.group_settings(parameter.spec).items()
        groups.setdefault(tuple(sorted(settings - adam.DEFAULT_GROUP.items())), set()).add(parameter.value)
    return {
        ParamKey(predicate=ParamPredicate(str(different), values.__contains__)): ParamGroupOverride(**dict(different))
        for different, values in groups.items()
        if different
    }


def _sum_gradients(chunks: list[Any], num_tokens: Tensor, **more: Any) -> None:
    """megatron-core would divide by the count that is on the device, and wait for it."""
    finalize_model_grads(chunks, None, **more)


def _watched(buckets: Any, found: Callable[[nn.Parameter, Tensor], None]) -> Callable[..., None]:
    """megatron-core's method that starts the exchange of some buckets, which shows their gradients first."""
    start = buckets.start_grad_sync

    def watched(*arguments: Any, **options: Any) -> None:
        if buckets.grad_reduce_handle is None:  # else they are on their way
            for bucket in buckets.buckets:
                for parameter in bucket.params_list:
                    found(parameter, parameter.main_grad)
        start(*arguments, **options)

    return watched


def _gradient(main: Tensor) -> Tensor:
    assert main.grad is not None, "prepare_grads gives each one"
    return main.grad


def _pairs(left: list[list[nn.Parameter]], right: list[list[Tensor]]) -> Iterator[tuple[nn.Parameter, Tensor]]:
    for left_group, right_group in zip(left, right, strict=True):
        yield from zip(left_group, right_group, strict=True)
