"""Process groups. The only file that touches megatron-core's parallel_state."""

from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from pretrain.layout.layout import Layout
from pretrain.model_spec.parameters import Stages


@dataclass(frozen=True, kw_only=True)
class StageRank:
    """Coordinates of a rank of a pipeline stage among those that share weights, and among those that hold the same."""

    tensor: int
    replica: int
    expert: int
    expert_tensor: int
    expert_replica: int

    def replica_of(self, splits_experts: bool) -> int:
        """The rank's number among those that hold the same part of a parameter (`Parameter.splits_experts`)."""
        return self.expert_replica if splits_experts else self.replica


class Groups:
    """This rank's coordinates in a layout, and the few collectives the engine needs beyond megatron-core's own."""

    def __init__(self, layout: Layout, timeout_s: int, hosts_backend: str = "gloo") -> None:
        """`hosts_backend`: of the group in which hosts communicate where the default group is one of GPUs."""
        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            virtual_pipeline_model_parallel_size=layout.virtual if layout.virtual > 1 else None,
            context_parallel_size=layout.context,
            expert_model_parallel_size=layout.expert,
            expert_tensor_parallel_size=layout.expert_tensor,
            distributed_timeout_minutes=timeout_s / 60,  # into a timedelta, which takes fractions
            create_gloo_process_groups=False,
        )
        self.rank = dist.get_rank()
        self.tensor_rank = parallel_state.get_tensor_model_parallel_rank()
        self.context_rank = parallel_state.get_context_parallel_rank()
        self.data_rank = parallel_state.get_data_parallel_rank()
        self.pipeline_rank = parallel_state.get_pipeline_model_parallel_rank()
        coordinates = (self.tensor_rank, self.context_rank, self.data_rank, self.pipeline_rank)
        assert coordinates == layout.coordinates(self.rank)
        self.replica_rank = parallel_state.get_data_parallel_rank(with_context_parallel=True)
        self.stage = parallel_state.get_pipeline_model_parallel_rank()
        self.first_stage = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
        self.last_stage = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        self.pipeline_world = layout.pipeline
        self.data_world = layout.data
        self.tensor_world = layout.tensor
        self.context_world = layout.context
        self.expert_world = layout.expert
        self.expert_tensor_world = layout.expert_tensor
        self.regroups_experts = layout.regroups_experts
        self.own = self.stage_rank(self.rank % (layout.world // layout.pipeline))
        expected = (parallel_state.get_expert_model_parallel_rank(), parallel_state.get_expert_tensor_parallel_rank())
        assert (self.own.expert, self.own.expert_tensor) == expected, "neighbouring ranks share experts"
        self._hosts: dist.ProcessGroup | None = None
        if torch.cuda.is_available():  # else the default group is one of hosts
            self._hosts = dist.new_group(
                backend=hosts_backend, timeout=timedelta(seconds=timeout_s), group_desc="HOSTS"
            )

    def stage_rank(self, number: int) -> StageRank:
        """The coordinates of a rank of `stage_group`."""
        replica, tensor = divmod(number, self.tensor_world)
        among_experts, expert_tensor = divmod(number, self.expert_tensor_world)
        expert_replica, expert = divmod(among_experts, self.expert_world)
        return StageRank(
            tensor=tensor, replica=replica, expert=expert, expert_tensor=expert_tensor, expert_replica=expert_replica
        )

    @property
    def axes(self) -> dict[str, tuple[int, int]]:
        """(rank, number of ranks) on the axes whose ranks share activations."""
        return {"tensor": (self.tensor_rank, self.tensor_world), "context": (self.context_rank, self.context_world)}

    @property
    def weight_axes(self) -> dict[str, tuple[int, int]]:
        """(rank, number of ranks) on the axes whose ranks share weights."""
        return {
            "tensor": (self.tensor_rank, self.tensor_world),
            "expert": (self.own.expert, self.expert_world),
            "expert_tensor": (self.own.expert_tensor, self.expert_tensor_world),
        }

    @property
    def tensor_group(self) -> dist.ProcessGroup:
        group: dist.ProcessGroup = parallel_state.get_tensor_model_parallel_group()
        return group

    @property
    def context_group(self) -> dist.ProcessGroup:
        """The ranks that share each sequence."""
        group: dist.ProcessGroup = parallel_state.get_context_parallel_group()
        return group

    @property
    def replica_group(self) -> dist.ProcessGroup:
        """Data and context ranks: those that hold the same part of the model."""
        group: dist.ProcessGroup = parallel_state.get_data_parallel_group(with_context_parallel=True)
        return group

    @property
    def expert_group(self) -> dist.ProcessGroup:
        """The ranks that share the experts of each layer: data and context ranks, and tensor ranks that split no
        expert."""
        group: dist.ProcessGroup = parallel_state.get_expert_model_parallel_group()
        return group

    @property
    def all_experts_group(self) -> dist.ProcessGroup:
        """The ranks that together hold all experts of each layer once, this one among them."""
        group: dist.ProcessGroup = parallel_state.get_expert_tensor_and_model_parallel_group()
        return group

    def replicas_of(self, splits_experts: bool) -> dist.ProcessGroup:
        """The ranks that hold the same part of a parameter as this one and have other tokens. `splits_experts`: whether
        it is of experts (`Parameter.splits_experts`)."""
        if not (splits_experts and self.regroups_experts):
            return self.replica_group
        group: dist.ProcessGroup = parallel_state.get_expert_data_parallel_group()
        return group

    def replica_rank_of(self, splits_experts: bool) -> int:
        """This rank's number in `replicas_of`."""
        return self.own.replica_of(splits_experts)

    @property
    def stage_group(self) -> dist.ProcessGroup:
        """Tensor, data and context ranks: those that hold parts or copies of the same parameters."""
        group: dist.ProcessGroup = parallel_state.get_tensor_and_data_parallel_group(with_context_parallel=True)
        return group

    @property
    def all_replica_groups(self) -> list[list[int]]:
        """The global ranks of every `replica_group`."""
        everyone: list[list[int]] = [[]] * dist.get_world_size()
        dist.all_gather_object(everyone, dist.get_process_group_ranks(self.replica_group))
        return [ranks for rank, ranks in enumerate(everyone) if rank == ranks[0]]

    @property
    def embedding_group(self) -> dist.ProcessGroup:
        """The first and the last stage's ranks that hold the same part of a tied embedding. Only for those."""
        group: dist.ProcessGroup = parallel_state.get_embedding_group()
        return group

    def tied_group(self, stages: Stages) -> dist.ProcessGroup:
        """The ranks of these stages that hold the same part of a parameter as this one, which is on one of them."""
        if stages == "ends":
            return self.embedding_group
        group: dist.ProcessGroup = parallel_state.get_pipeline_model_parallel_group()
        return group

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
            dist.all_reduce(value, group=parallel_state.get_pipeline_model_parallel_group())
        return value

    def broadcast_over_pipeline(self, value: Tensor) -> Tensor:
        """The last stage's value, on every stage. `value` is the buffer: same shape and dtype everywhere."""
        if self.pipeline_world > 1:
            source = parallel_state.get_pipeline_model_parallel_last_rank()
            dist.broadcast(value, src=source, group=parallel_state.get_pipeline_model_parallel_group())
        return value

    def broadcast_from_last_stage(self, value: Tensor) -> Tensor:
        """The value of the last stage's first tensor rank, on every rank of the replica: the same bits, also where
        ranks run the same computation on different hardware. `value` is the buffer; only without context ranks."""
        if self.tensor_world * self.pipeline_world > 1:
            group = parallel_state.get_model_parallel_group()
            dist.broadcast(value, src=dist.get_process_group_ranks(group)[-self.tensor_world], group=group)
        return value

    def any(self, flag: bool) -> bool:
        """True on every rank if it is on one."""
        return bool(self.largest(np.array([float(flag)]))[0])

    def largest(self, values: np.ndarray) -> np.ndarray:
        """The maximum over all ranks of each element, in place. Hosts communicate directly, without waiting for
        GPUs."""
        dist.all_reduce(torch.from_numpy(values), op=dist.ReduceOp.MAX, group=self._hosts)
        return values

    def sum_over_data(self, values: np.ndarray) -> np.ndarray:
        """The sum over data ranks of each element. Hosts communicate directly, without waiting for GPUs."""
        if self._hosts is None:
            dist.all_reduce(torch.from_numpy(values), group=parallel_state.get_data_parallel_group())
            return values
        if self.tensor_rank or self.context_rank or self.pipeline_rank:  # their rows are those of the replica's first
            values = np.zeros_like(values)
        dist.all_reduce(torch.from_numpy(values), group=self._hosts)
        return values


def is_first(chunk: int | None) -> bool:
    """Whether this model chunk holds the embedding."""
    return bool(parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk))


def is_last(chunk: int | None) -> bool:
    """Whether this model chunk holds the head."""
    return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk))
