"""Creation of a model for ZeRO stage 3: each new parameter is cut into equal ranges, one for each data rank."""

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.zero.partition_parameters import Init
from deepspeed.utils import groups as deepspeed_groups

from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.models.megatron_config import DTYPES


def partitioned_init(config: RunConfig, groups: Groups) -> AbstractContextManager[Any]:
    """A context that partitions the parameters of each module created in it, in the precision they compute in."""
    remote = "cpu" if config.parallel.offload_parameters else None
    pin = remote is not None and torch.cuda.is_available()
    Init.param_id = 0  # or ranks with different earlier models would number this one's parameters differently
    context: AbstractContextManager[Any] = Init(
        data_parallel_group=groups.replica_group,
        mem_efficient_linear=False,
        remote_device=remote,
        pin_memory=pin,
        zero_param_parallel_group=_secondary_group(config.parallel.hpz, groups, config.health.timeout_s),
    )
    # As an argument it is ignored where the device has no fp16.
    context.dtype = DTYPES[config.precision]  # type: ignore[attr-defined]
    return context


def _secondary_group(size: int, groups: Groups, timeout_s: int) -> dist.ProcessGroup | None:
    """The `size` neighbouring data ranks that share a secondary copy of the weights (hpZ); None for a size of 1.

    DeepSpeed would take neighbours by global rank, which tensor ranks are. It reads the group from its own global."""
    deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None
    if size > 1:
        for ranks in groups.all_replica_groups:
            for first in range(0, len(ranks), size):
                neighbours = ranks[first : first + size]
                group = dist.new_group(neighbours, timeout=timedelta(seconds=timeout_s))
                if groups.rank in neighbours:
                    deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = group
    group_of_rank: dist.ProcessGroup | None = deepspeed_groups._ZERO_PARAM_INTRA_PARALLEL_GROUP
    return group_of_rank
