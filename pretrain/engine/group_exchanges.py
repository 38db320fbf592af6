"""The collectives that an engine needs beyond megatron-core's own."""

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


class GroupExchanges:
    """The exchanges of one rank. `groups.Groups` says among which ranks."""

    replica_group: dist.ProcessGroup
    """data and context ranks: those that hold the same part of the model"""
    data_group: dist.ProcessGroup
    context_group: dist.ProcessGroup
    """the ranks that share each sequence"""
    pipeline_group: dist.ProcessGroup
    model_group: dist.ProcessGroup
    """tensor ranks and stages: those that share a model"""
    hosts: dist.ProcessGroup | None
    """the group in which hosts communicate; None: the default one"""
    tensor_world: int
    context_world: int
    pipeline_world: int
    last_stage_rank: int
    """global rank of the last stage in `pipeline_group`"""
    is_first_of_replica: bool

    def sum_over_replicas(self, value: Tensor) -> Tensor:
        """Sums over data and context ranks, which have tokens of their own."""
        dist.all_reduce(value, group=self.replica_group)
        return value

    def gather_over_context(self, value: Tensor) -> Tensor:
        """[..., positions] of each context rank, joined in rank order. Equal shapes."""
        if self.context_world == 1:
            return value
        gathered = [torch.empty_like(value) for _ in range(self.context_world)]
        dist.all_gather(gathered, value.contiguous(), group=self.context_group)
        return torch.cat(gathered, dim=-1)

    def sum_over_context(self, value: Tensor) -> Tensor:
        """Sums over the ranks that share each sequence."""
        if self.context_world > 1:
            dist.all_reduce(value, group=self.context_group)
        return value

    def sum_over_pipeline(self, value: Tensor) -> Tensor:
        """Sums over the stages."""
        if self.pipeline_world > 1:
            dist.all_reduce(value, group=self.pipeline_group)
        return value

    def broadcast_over_pipeline(self, value: Tensor) -> Tensor:
        """The last stage's value, on every stage. `value` is the buffer: same shape and dtype everywhere."""
        if self.pipeline_world > 1:
            dist.broadcast(value, src=self.last_stage_rank, group=self.pipeline_group)
        return value

    def broadcast_from_last_stage(self, value: Tensor) -> Tensor:
        """The value of the last stage's first tensor rank, on every rank of the replica: the same bits, also where
        ranks run the same computation on different hardware. `value` is the buffer; only without context ranks."""
        if self.tensor_world * self.pipeline_world > 1:
            source = dist.get_process_group_ranks(self.model_group)[-self.tensor_world]
            dist.broadcast(value, src=source, group=self.model_group)
        return value

    def any(self, flag: bool) -> bool:
        """True on every rank if it is on one."""
        return bool(self.largest(np.array([float(flag)]))[0])

    def largest(self, values: np.ndarray) -> np.ndarray:
        """The maximum over all ranks of each element, in place. Hosts communicate directly, without waiting for
        GPUs."""
        dist.all_reduce(torch.from_numpy(values), op=dist.ReduceOp.MAX, group=self.hosts)
        return values

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        """The sum over data ranks of each element. Hosts communicate directly, without waiting for GPUs."""
        if self.hosts is None:
            dist.all_reduce(torch.from_numpy(values), group=self.data_group)
            return values
        if not self.is_first_of_replica:  # whose rows it has
            values = np.zeros_like(values)
        dist.all_reduce(torch.from_numpy(values), group=self.hosts)
        return values
