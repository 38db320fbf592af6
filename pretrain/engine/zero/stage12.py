"""DeepSpeed's ZeRO stages 1 and 2: each data rank updates a range of the parameters and holds its optimizer state.

Stage 1 accumulates full gradients on every rank and reduces them once, after the last micro-batch. Stage 2 reduces them
in every backward pass and keeps the sum of its own range only: less memory, `micro-batches` times the traffic.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.zero.base import ParameterRange
from pretrain.engine.zero.deepspeed import EXPERTS, DeepSpeedSharding, Flat
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.models.placement import Parameter


class _Compact(DeepSpeedZeroOptimizer):
    """Holds the fp32 gradient of the rank's own range only. DeepSpeed does so for half-precision weights; for fp32 ones
    it would hold every full parameter that overlaps the range, an embedding on every rank."""

    def _use_compact_grad_partition_buffer(self, group_idx: int) -> bool:
        return True


class Stage12(DeepSpeedSharding):
    """See `base.Sharding`."""

    def __init__(
        self, *, config: RunConfig, groups: Groups, chunks: Sequence[nn.Module], generator_chunks: Sequence[nn.Module],
        parameters: Sequence[Parameter], device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(
            config=config,
            groups=groups,
            chunks=chunks,
            generator_chunks=generator_chunks,
            parameters=parameters,
            device=device,
        )
        self._reduces_every_pass = config.parallel.zero == 2
        self.optimizer = _Compact(
            **self._shared_arguments,
            optimizer_params={},
            contiguous_gradients=True,
            allgather_bucket_size=2 * bucket_parameters(config, config.parallel.tensor),
            gradient_average=False,
            partition_grads=self._reduces_every_pass,
            check_grad_overflow=False,
            compute_grad_norm=self._offloads,  # required with offloading
            **self._expert_arguments,
        )
        self._make_moments()
        self.flats = list(self._find_flats(groups.own))
        self._set_ranges(groups)
        # Its hooks keep parameters and optimizer alive together, where Python's garbage collection does not see it.
        weakref.finalize(self, self.optimizer.destroy).atexit = False

    @property
    def _expert_arguments(self) -> dict[str, Any]:
        """Has DeepSpeed sum gradients of experts that ranks share, and cut their state, over the ranks that hold the
        same ones: as of its own layers of experts."""
        if not any(map(self._has_fewer_replicas, self.parameters)):  # DeepSpeed refuses a stage without experts
            return {}
        return {
            "has_moe_layers": True,
            "expert_parallel_group": {EXPERTS: self.groups.expert_group},
            "expert_data_parallel_group": {EXPERTS: self.groups.replicas_of(splits_experts=True)},
        }

    def in_use(self) -> Iterator[ParameterRange]:
        for value in (*self.frozen.values, *(parameter.value for parameter in self.parameters)):
            yield ParameterRange(value, 0, value.detach().view(-1))

    def discard(self) -> None:
        optimizer = self.optimizer
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.averaged_gradients:
            optimizer.averaged_gradients[group] = None
        if self._offloads:
            optimizer.reset_cpu_buffers()

    def _find_flats(self, rank: StageRank) -> Iterator[Flat]:
        for index, group in enumerate(self.optimizer.bit16_groups):
            size = self.optimizer.partition_size[index]
            first = rank.replica_of(self._has_fewer_replicas(self._parameter_of[group[0]])) * size
            for value, offset in zip(group, self.optimizer.round_robin_bit16_offsets[index], strict=True):
                low, high = max(first, offset), min(first + size, offset + value.numel())
                if low < high:
                    yield Flat(self._parameter_of[value], index, low - offset, low - first, high - low)

    @property
    def _mains(self) -> Sequence[Tensor]:
        mains: Sequence[Tensor] = self.optimizer.single_partition_of_fp32_groups
        return mains

    def _device_gradient(self, flat: Flat) -> Tensor:
        partition: Tensor = self.optimizer.averaged_gradients[flat.group].flat_partition
        return partition.narrow(0, flat.position, flat.count)

    def _backward_begins(self, chunk: Any) -> None:
        self.optimizer.clear_backward_seen_flag()

    def _backward_ends(self) -> None:
        if self._reduces_every_pass:
            self.optimizer.overlapping_partition_gradients_reduce_epilogue()

    def _finish(self) -> None:
        if self._reduces_every_pass:
            self.optimizer.finalize_gradient_accumulation_boundary()
        else:
            self.optimizer.set_gradient_accumulation_boundary(True)
            self.optimizer.reduce_gradients()

    def _publish(self) -> None:
        self.optimizer.update_lp_params()
        self.frozen.publish()
