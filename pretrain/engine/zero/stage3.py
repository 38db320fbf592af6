"""DeepSpeed's ZeRO stage 3: data ranks share the weights too, and gather those of a layer while it is computed.

Each parameter is cut into equal ranges, one for each data rank, as it is created: no rank ever holds the whole model.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero import parameter_offload
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
from deepspeed.runtime.zero.partition_parameters import Init, register_external_parameter
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.utils import groups as deepspeed_groups
from deepspeed.utils.timer import NoopTimer
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.zero.base import ParameterRange, bucket_parameters, overlaps
from pretrain.engine.zero.deepspeed import DeepSpeedSharding, Flat
from pretrain.models.megatron_config import DTYPES
from pretrain.models.placement import Parameter


def creating(config: RunConfig, groups: Groups) -> AbstractContextManager[Any]:
    """Modules made inside have their parameters shared out, in the precision they compute in."""
    remote = "cpu" if config.parallel.offload_parameters else None
    pin = remote is not None and torch.cuda.is_available()
    Init.param_id = 0  # or ranks whose earlier models were of other sizes would number this one's otherwise
    context: AbstractContextManager[Any] = Init(
        data_parallel_group=groups.replica_group,
        mem_efficient_linear=False,
        remote_device=remote,
        pin_memory=pin,
        zero_param_parallel_group=_share_second_copies(config.parallel.hpz, groups, config.health.timeout_s),
    )
    context.dtype = DTYPES[config.precision]  # type: ignore[attr-defined]  # as an argument it is ignored where the device has no fp16
    return context


class Stage3(DeepSpeedSharding):
    """See `base.Sharding`. The chunks were made inside `creating`."""

    def __init__(
        self, config: RunConfig, groups: Groups, chunks: Sequence[nn.Module], parameters: Sequence[Parameter],
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(config, groups, chunks, parameters, device)
        parallel = config.parallel
        self._summed = float(dist.get_world_size(groups.replica_group))  # DeepSpeed averages
        self._pipelined = parallel.pipeline > 1
        self._modules = {chunk: list(chunk.modules()) for chunk in chunks}
        self._remaining: dict[nn.Module, int] = {}
        self._passes: dict[nn.Module, int] = {}
        for chunk in chunks:
            _announce_tied_head(chunk)
        pin = device.type == "cuda"
        root = chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)
        self.optimizer = DeepSpeedZeroOptimizer_Stage3(
            root,
            self._torch_optimizer(),
            self.names,
            NoopTimer(),
            ds_config=None,
            reduce_bucket_size=bucket_parameters(config),
            prefetch_bucket_size=bucket_parameters(config),
            max_live_parameters=2 * bucket_parameters(config),  # or every module would fetch one more bucket ahead
            max_reuse_distance=0,  # or what the backward pass needs again would stay
            param_persistence_threshold=10 * config.model.hidden,  # biases and norms: small, and gathered too often
            dp_process_group=groups.replica_group,
            overlap_comm=overlaps(config, device),
            offload_optimizer_config=DeepSpeedZeroOffloadOptimizerConfig(device="cpu", pin_memory=pin)
            if self._offloads
            else None,
            offload_param_config=DeepSpeedZeroOffloadParamConfig(device="cpu", pin_memory=pin)
            if parallel.offload_parameters
            else None,
            offload_ratio=1.0,
            zero_hpz_partition_size=parallel.hpz,
            sub_group_size=100_000_000,  # bounds what the optimizer's step needs beside the state
            gradient_accumulation_dtype=torch.float32,
            communication_data_type=torch.float32,
        )
        for number, module in enumerate(root.modules()):
            module.ds_id = number  # type: ignore[assignment]  # DeepSpeed goes on counting from earlier models, which other ranks may not have had
        if self._pipelined:
            # Its hook looks for an order of modules to prefetch by, which a pipeline has not; and asks all ranks of
            # the world whether theirs is the same, where stages are at different places.
            self.optimizer.parameter_offload.fwd_pre_hook.remove()
        self._make_moments(self.optimizer.fp32_partitioned_groups_flat)
        self.flats = list(self._find_flats())
        weakref.finalize(self, _forget, self.optimizer, root).atexit = False
        self._indices = {value: index for group in self.optimizer.fp16_groups for index, value in enumerate(group)}

    def begin(self, keeps_gradients: bool) -> None:
        super().begin(keeps_gradients)
        self._passes = dict.fromkeys(self.chunks, 0)

    def forwarded(self, chunk: Any, output: Any) -> None:
        # How many of a module's inputs await their gradient: after the last, DeepSpeed lets its weights go. It counts
        # for the latest forward pass only, and in a pipeline others wait; they are all alike.
        counted = (module for module in self._modules[chunk] if hasattr(module, "ds_grads_remaining"))
        self._remaining |= {module: getattr(module, "ds_grads_remaining") for module in counted}  # noqa: B009
        super().forwarded(chunk, output)

    def in_use(self) -> Iterator[ParameterRange]:
        for flat in self.flats:
            weights = self.optimizer.fp16_partitioned_groups_flat[flat.group]
            yield ParameterRange(flat.parameter.value, flat.start, weights.narrow(0, flat.position, flat.count))

    def discard(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _find_flats(self) -> Iterator[Flat]:
        known = {parameter.value: parameter for parameter in self.parameters}
        for index, group in enumerate(self.optimizer.fp16_groups):
            position = 0
            for value in group:
                size = value.partition_numel()
                start = self.groups.replica_rank * size
                count = min(size, value.ds_numel - start)  # the last ranks' may be padding in part or whole
                if count > 0:
                    yield Flat(known[value], index, start, position, count)
                position += size

    def _main(self, group: int) -> Tensor:
        main: Tensor = self.optimizer.fp32_partitioned_groups_flat[group]
        return main

    def _gradient(self, flat: Flat) -> Tensor:
        if self._offloads:
            whole: Tensor = self.optimizer.fp32_partitioned_groups_flat[flat.group].grad
            return whole.narrow(0, flat.position, flat.count)
        own: Tensor = self.optimizer.averaged_gradients[flat.group][self._indices[flat.parameter.value]]
        return own.narrow(0, 0, flat.count)

    def _backward_begins(self, chunk: Any) -> None:
        self.optimizer.clear_backward_seen_flag()
        # The first backward pass of a step writes gradients, others add to them. Here it is the first of each chunk.
        self.optimizer.micro_step_id = self._passes[chunk]
        self._passes[chunk] += 1
        for module in self._modules[chunk]:
            if module in self._remaining:
                module.ds_grads_remaining = self._remaining[module]  # type: ignore[assignment]

    def _backward_ends(self) -> None:
        self.optimizer.overlapping_partition_gradients_reduce_epilogue()
        self.optimizer.parameter_offload.release_backward_leftovers()

    def _finish(self) -> None:
        self.optimizer.finalize_gradient_accumulation_boundary()

    def _publish(self) -> None:
        optimizer = self.optimizer
        optimizer.parameter_offload.partition_all_parameters()
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.invalidate_secondary_tensor()
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def _share_second_copies(size: int, groups: Groups, timeout_s: int) -> dist.ProcessGroup | None:
    """The neighbours among this rank's data ranks that keep a second copy of the weights. DeepSpeed would take
    neighbours in the world, which tensor ranks are, and looks for the group where it would have put it."""
    deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    if size > 1:
        for ranks in groups.all_replica_groups:
            for first in range(0, len(ranks), size):
                neighbours = ranks[first : first + size]
                group = dist.new_group(neighbours, timeout=timedelta(seconds=timeout_s))
                if groups.rank in neighbours:
                    deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = group
    found: dist.ProcessGroup | None = deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP
    return found


def _forget(optimizer: DeepSpeedZeroOptimizer_Stage3, root: nn.Module) -> None:
    """Lets a model go. Hooks keep parameters and optimizer alive together, where Python's garbage collection does not
    see it; and DeepSpeed remembers every model and its modules."""
    optimizer.destroy()
    parameter_offload.FWD_MODULE_STACK[:] = [kept for kept in parameter_offload.FWD_MODULE_STACK if kept is not root]
    _find_cache().cache_clear()


def _find_cache() -> Any:
    """What the coordinator remembers of modules, by module: an lru_cache behind a decorator."""
    method = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    return next(cell.cell_contents for cell in method.__closure__ if hasattr(cell.cell_contents, "cache_clear"))


def _announce_tied_head(chunk: Any) -> None:
    """A head that uses the embedding's weights needs them gathered when it is its turn."""
    module: Any
    for module in chunk.modules():
        if getattr(module, "share_embeddings_and_output_weights", False) and module.pre_process and module.post_process:
            register_external_parameter(module.output_layer, module.embedding.word_embeddings.weight)
