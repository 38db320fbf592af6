"""Process groups. The only file that touches megatron-core's parallel_state."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.engine.group_exchanges import GroupExchanges
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


class Groups(GroupExchanges):
    """This rank's coordinates in a layout, and its exchanges."""

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
        self.is_first_of_replica = not (self.tensor_rank or self.context_rank or self.pipeline_rank)
        self.replica_group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        self.data_group = parallel_state.get_data_parallel_group()
        self.context_group = parallel_state.get_context_parallel_group()
        self.pipeline_group = parallel_state.get_pipeline_model_parallel_group()
        self.model_group = parallel_state.get_model_parallel_group()
        self.last_stage_rank = parallel_state.get_pipeline_model_parallel_last_rank()
        self.hosts = None
        if torch.cuda.is_available():  # else the default group is one of hosts
            self.hosts = dist.new_group(backend=hosts_backend, timeout=timedelta(seconds=timeout_s), group_desc="HOSTS")

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
        return self.pipeline_group


def is_first(chunk: int | None) -> bool:
    """Whether this model chunk holds the embedding."""
    return bool(parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk))


def is_last(chunk: int | None) -> bool:
    """Whether this model chunk holds the head."""
    return bool(parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk))
