"""DeepSpeed's ZeRO stages 1 and 2: each data rank updates a range of the parameters and holds its optimizer state.

Stage 1 accumulates whole gradients on every rank and exchanges them once, after the last micro-batch. Stage 2 exchanges
them in every backward pass and keeps the sum of its own range only: less memory, `micro-batches` times the traffic.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from deepspeed.utils.timer import NoopTimer
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.zero.base import ParameterRange, bucket_parameters, overlaps
from pretrain.engine.zero.deepspeed import DeepSpeedSharding, Flat
from pretrain.models.placement import Parameter


class _Compact(DeepSpeedZeroOptimizer):
    """DeepSpeed holds the gradient of just its own range, in fp32, where weights are half precision. Where they are
    fp32 it would hold whole parameters that reach into the range, an embedding on every rank; so here always."""

    def _use_compact_grad_partition_buffer(self, group_idx: int) -> bool:
        return True


class Stage12(DeepSpeedSharding):
    """See `base.Sharding`."""

    def __init__(
        self, config: RunConfig, groups: Groups, chunks: Sequence[nn.Module], parameters: Sequence[Parameter],
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(config, groups, chunks, parameters, device)
        parallel = config.parallel
        self._exchanges_often = parallel.zero == 2
        pin = device.type == "cuda"
        self.optimizer = _Compact(
            self._torch_optimizer(),
            self.names,
            NoopTimer(),
            optimizer_params={},
            contiguous_gradients=True,
            reduce_bucket_size=bucket_parameters(config),
            allgather_bucket_size=2 * bucket_parameters(config),
            dp_process_group=groups.replica_group,
            overlap_comm=overlaps(config, device),
            offload_optimizer_config=DeepSpeedZeroOffloadOptimizerConfig(device="cpu", pin_memory=pin)
            if self._offloads
            else None,
            gradient_accumulation_dtype=torch.float32,
            communication_data_type=torch.float32,
            gradient_average=False,
            partition_grads=self._exchanges_often,
            check_grad_overflow=False,
            compute_grad_norm=self._offloads,  # DeepSpeed insists on it there
        )
        self._make_moments(main for group in self.optimizer.optimizer.param_groups for main in group["params"])
        self.flats = list(self._find_flats())
        # Its hooks keep parameters and optimizer alive together, where Python's garbage collection does not see it.
        weakref.finalize(self, self.optimizer.destroy).atexit = False

    def in_use(self) -> Iterator[ParameterRange]:
        for parameter in self.parameters:
            yield ParameterRange(parameter.value, 0, parameter.value.detach().view(-1))

    def discard(self) -> None:
        optimizer = self.optimizer
        optimizer.zero_grad(set_to_none=True)
        for group in optimizer.averaged_gradients:
            optimizer.averaged_gradients[group] = None
        if self._offloads:
            optimizer.reset_cpu_buffers()

    def _find_flats(self) -> Iterator[Flat]:
        known = {parameter.value: parameter for parameter in self.parameters}
        for index, group in enumerate(self.optimizer.bit16_groups):
            size = self.optimizer.partition_size[index]
            first = self.groups.replica_rank * size
            for value, offset in zip(group, self.optimizer.round_robin_bit16_offsets[index], strict=True):
                low, high = max(first, offset), min(first + size, offset + value.numel())
                if low < high:
                    yield Flat(known[value], index, low - offset, low - first, high - low)

    def _main(self, group: int) -> Tensor:
        main: Tensor = self.optimizer.single_partition_of_fp32_groups[group]
        return main

    def _gradient(self, flat: Flat) -> Tensor:
        if self._offloads:
            whole: Tensor = self.optimizer.single_partition_of_fp32_groups[flat.group].grad
        else:
            whole = self.optimizer.averaged_gradients[flat.group].flat_partition
        return whole.narrow(0, flat.position, flat.count)

    def _backward_begins(self, chunk: Any) -> None:
        self.optimizer.clear_backward_seen_flag()

    def _backward_ends(self) -> None:
        if self._exchanges_often:
            self.optimizer.overlapping_partition_gradients_reduce_epilogue()

    def _finish(self) -> None:
        if self._exchanges_often:
            self.optimizer.finalize_gradient_accumulation_boundary()
        else:
            self.optimizer.set_gradient_accumulation_boundary(True)
            self.optimizer.reduce_gradients()

    def _publish(self) -> None:
        self.optimizer.update_lp_params()
