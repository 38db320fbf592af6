"""DeepSpeed's ZeRO stage 3: data ranks shard the weights too, and gather those of a layer while it is computed.

The model is created inside `partitioned_init.partitioned_init`: no rank ever holds the full model.
"""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero import parameter_offload
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadParamConfig
from deepspeed.runtime.zero.partition_parameters import register_external_parameter
from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.utils import set_z3_leaf_module
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups, StageRank
from pretrain.engine.zero.base import ParameterRange
from pretrain.engine.zero.deepspeed import DeepSpeedSharding, Flat
from pretrain.model_spec.parameters import bucket_parameters
from pretrain.models.placement import Parameter


class Stage3(DeepSpeedSharding):
    """See `base.Sharding`. The chunks were made inside `partitioned_init`."""

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
        parallel = config.parallel
        self._to_sum = float(dist.get_world_size(groups.replica_group))  # DeepSpeed averages
        all_chunks = [*chunks, *generator_chunks]
        self._modules = {chunk: list(chunk.modules()) for chunk in all_chunks}
        self._remaining: dict[nn.Module, int] = {}
        self._passes: dict[nn.Module, int] = {}
        for chunk in all_chunks:
            _register_tied_head(chunk)
            for module in chunk.modules():
                if getattr(module, "gathers_whole", False):
                    set_z3_leaf_module(module, True)
        offload = DeepSpeedZeroOffloadParamConfig(device="cpu", pin_memory=device.type == "cuda")
        root = all_chunks[0] if len(all_chunks) == 1 else nn.ModuleList(all_chunks)
        self.optimizer = DeepSpeedZeroOptimizer_Stage3(
            root,
            **self._shared_arguments,
            ds_config=None,
            prefetch_bucket_size=bucket_parameters(config, config.parallel.tensor),
            max_live_parameters=2
            * bucket_parameters(config, config.parallel.tensor),  # or every module would fetch one more bucket ahead
            # What the next module uses too stays gathered, such as a head's weights between its passes, but no more of
            # what the backward pass needs again.
            max_reuse_distance=1,
            param_persistence_threshold=10 * config.model.hidden,  # biases and norms: small, and gathered too often
            offload_param_config=offload if parallel.offload_parameters else None,
            offload_ratio=1.0,
            zero_hpz_partition_size=parallel.hpz,
            sub_group_size=100_000_000,  # bounds what the optimizer's step needs beside the state
        )
        for number, module in enumerate(root.modules()):
            # DeepSpeed would continue from earlier models' numbers, which differ between ranks.
            module.ds_id = number  # type: ignore[assignment]
        if parallel.pipeline > 1:
            # The hook records the order of modules to prefetch by, which varies in a pipeline, and checks by a
            # collective of all ranks that they have the same order, while stages run different modules.
            self.optimizer.parameter_offload.fwd_pre_hook.remove()
        self._make_moments()
        self.flats = list(self._find_flats(groups.own))
        self._set_ranges(groups)
        weakref.finalize(self, _release, self.optimizer, root).atexit = False
        self._indices = {value: index for group in self.optimizer.fp16_groups for index, value in enumerate(group)}

    def begin(self, keeps_gradients: bool) -> None:
        super().begin(keeps_gradients)
        self._passes = dict.fromkeys(self.chunks, 0)
        if self.generator_chunks:  # both models add to the gradient of their shared tables, in first passes too
            self.optimizer.grad_partitions_flat_buffer.zero_()
            self._passes = dict.fromkeys((*self.chunks, *self.generator_chunks), 1)

    def forwarded(self, chunk: Any, output: Any) -> None:
        # The number of a module's inputs that await their gradient: after the last, DeepSpeed releases its weights. It
        # holds the count of the latest forward pass only, while in a pipeline several wait; all have the same count.
        counted = (module for module in self._modules[chunk] if hasattr(module, "ds_grads_remaining"))
        self._remaining |= {module: getattr(module, "ds_grads_remaining") for module in counted}  # noqa: B009
        super().forwarded(chunk, output)

    def in_use(self) -> Iterator[ParameterRange]:
        for flat in self.flats:
            weights = self.optimizer.fp16_partitioned_groups_flat[flat.group]
            yield ParameterRange(flat.parameter.value, flat.start, weights.narrow(0, flat.position, flat.count))
        yield from self.frozen.in_use()

    def discard(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def _find_flats(self, rank: StageRank) -> Iterator[Flat]:
        for index, group in enumerate(self.optimizer.fp16_groups):
            position = 0
            for value in group:
                size = value.partition_numel()
                start = rank.replica * size
                count = min(size, value.ds_numel - start)  # the last ranks' ranges may be partly or only padding
                if count > 0:
                    yield Flat(self._parameter_of[value], index, start, position, count)
                position += size

    @property
    def _mains(self) -> Sequence[Tensor]:
        mains: Sequence[Tensor] = self.optimizer.fp32_partitioned_groups_flat
        return mains

    def _device_gradient(self, flat: Flat) -> Tensor:
        partition: Tensor = self.optimizer.averaged_gradients[flat.group][self._indices[flat.parameter.value]]
        return partition.narrow(0, 0, flat.count)

    def _backward_begins(self, chunk: Any) -> None:
        self.optimizer.clear_backward_seen_flag()
        # The first backward pass of a step writes gradients, later ones add to them. Each chunk has a first one.
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
        self.frozen.publish()
        for group in range(len(optimizer.fp16_groups)):
            optimizer._reassign_or_swap_out_partitioned_parameters(group)
        optimizer.invalidate_secondary_tensor()
        if optimizer.persistent_parameters:
            optimizer.persistent_parameters[0].all_gather(optimizer.persistent_parameters)


def _release(optimizer: DeepSpeedZeroOptimizer_Stage3, root: nn.Module) -> None:
    """Frees a model. Hooks keep parameters and optimizer alive in a cycle that Python's garbage collector does not see,
    and DeepSpeed holds references to every model and its modules."""
    optimizer.destroy()
    parameter_offload.FWD_MODULE_STACK[:] = [
        module for module in parameter_offload.FWD_MODULE_STACK if module is not root
    ]
    _find_cache().cache_clear()
    for module in root.modules():
        # Before 3.13.4, Python 3.13 collects no garbage through a namespace that was read early, until a value is
        # stored in it in this way (CPython's issue 133543).
        vars(module)["_modules"] = module._modules


def _find_cache() -> Any:
    """The coordinator's cache by module: an lru_cache behind a decorator."""
    method = PartitionedParameterCoordinator._PartitionedParameterCoordinator__params_to_release
    return next(cell.cell_contents for cell in method.__closure__ if hasattr(cell.cell_contents, "cache_clear"))


def _register_tied_head(chunk: Any) -> None:
    """Registers the embedding's weights with a head that uses them, so that they are gathered for the head too."""
    module: Any
    for module in chunk.modules():
        if getattr(module, "share_embeddings_and_output_weights", False) and module.pre_process and module.post_process:
            register_external_parameter(module.output_layer, module.embedding.word_embeddings.weight)
