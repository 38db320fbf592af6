"""What a cluster asks of every job, written once: `configs/cluster/NAME.yaml`, or a file of one's own."""

from pydantic import Field

from pretrain.config.section import Section


class Site(Section):
    partition: str | None = Field(None, description="queue (or several, separated by commas)")
    account: str | None = Field(None, description="who pays")
    qos: str | None = Field(None, description="quality of service")
    constraint: str | None = Field(None, description="features that nodes must have, such as h100&ib")
    exclusive: bool = Field(False, description="no other job on the nodes")
    gpus_per_node: int = Field(0, ge=0, le=64, description="GPUs of a node, with a rank for each; 0: ranks on the CPU")
    ranks_per_node: int | None = Field(None, gt=0, le=1024, description="absent: one for each GPU, or one")
    cpus_per_rank: int | None = Field(None, gt=0, description="cores for each rank; absent: the cluster's default")
    memory: str | None = Field(None, description="of a node, such as 900G; 0: all of it; absent: the default")
    gpu_memory_gib: float | None = Field(None, gt=0, description="of one GPU: runs that can't fit are not queued")
    time: str | None = Field(None, description="limit, such as 1-00:00:00")
    setup: str | None = Field(None, description="shell file that is sourced first: modules, a virtual environment")
    env: dict[str, str] = Field(default_factory=dict, description="variables for all ranks, such as NCCL_IB_HCA")
    container: str | None = Field(None, description="image that ranks run in (pyxis: srun --container-image)")
    container_mounts: str | None = Field(None, description="FROM:TO, separated by commas")
    python: str | None = Field(None, description="absent: the one that submits; in a container: python3")
    sbatch: tuple[str, ...] = Field((), description="more options for sbatch, such as --reservation=name")
    srun: tuple[str, ...] = Field((), description="more options for srun")
    save_margin_s: int = Field(
        300, ge=10, le=86_400, description="seconds before the time limit at which a run is asked to save"
    )

    @property
    def ranks(self) -> int:
        """Of a node."""
        return self.ranks_per_node or max(1, self.gpus_per_node)
