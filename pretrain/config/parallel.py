"""`parallel`: how the run is laid over ranks."""

from typing import Any, Literal

from pydantic import Field, model_validator

from pretrain.config.section import Section


class Parallel(Section):
    tensor: int = Field(1, gt=0, description="tensor parallel size: ranks that share each layer")
    context: int = Field(1, gt=0, description="context parallel size: ranks that share each sequence")
    sequence: bool = Field(
        False, description="sequence parallelism: split norms and dropout along the sequence over the tensor ranks"
    )
    pipeline: int = Field(1, gt=0, description="pipeline parallel size: stages that the layers are divided into")
    virtual: int = Field(1, gt=0, description="virtual pipeline size: model chunks per stage (interleaved schedule)")
    expert: int = Field(
        1,
        gt=0,
        description="expert parallel size: neighbouring ranks that share the experts of each layer (model.experts): "
        "data and context ranks, with parallel.expert_tensor=1 tensor ranks, too",
    )
    expert_tensor: int | None = Field(
        None,
        gt=0,
        description="expert tensor parallel size: tensor ranks that share the features of each expert. 1: none do, and "
        "each tensor rank sends tokens of its own to experts; default: parallel.tensor, all do",
    )
    zero: Literal[0, 1, 2, 3] = Field(
        1,
        description="ZeRO stage, which says what data ranks shard: 0 nothing, 1 optimizer states, 2 and "
        "gradients, 3 and parameters",
    )
    zero_engine: Literal["megatron", "deepspeed"] = Field(
        "megatron",
        description="implementation of ZeRO: megatron-core's (0, 1) or DeepSpeed's (1, 2, 3); stage 0 is the same "
        "for both",
    )
    offload_optimizer: bool = Field(
        False, description="keep optimizer states in host memory and update there (deepspeed, ZeRO 1 to 3)"
    )
    offload_parameters: bool = Field(
        False, description="keep parameters in host memory between uses (deepspeed, ZeRO 3)"
    )
    hpz: int = Field(
        1,
        gt=0,
        description="size of the secondary partition of ZeRO++ (hpZ): neighboring data ranks that hold a second "
        "copy of the weights, from which the backward pass gathers without the network; 1: none "
        "(deepspeed, ZeRO 3)",
    )
    overlap: bool | None = Field(
        None, description="reduce gradients during the backward pass; default: on GPUs, where the layout gains from it"
    )
    bucket_parameters: int | None = Field(
        None,
        gt=0,
        description="parameters whose gradients are reduced together (megatron: only with overlap); default: "
        "those of a layer",
    )
    recompute: Literal["none", "selective", "full"] = Field(
        "none",
        description="activation recomputation in the backward pass: none, selective (attention), full (whole layers)",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_nvme(cls, values: Any) -> Any:
        for key in ("offload_optimizer", "offload_parameters"):
            if isinstance(values, dict) and values.get(key) == "nvme":
                raise ValueError(
                    f"parallel.{key}=nvme: with DeepSpeed 0.19.8, training with states on NVMe departs from the same "
                    "training in memory (by 0.05 to 0.11 of the loss): use true, which is host memory"
                )
        return values

    @property
    def shards_by_deepspeed(self) -> bool:
        return self.zero_engine == "deepspeed" and self.zero > 0

    @property
    def model_ranks(self) -> int:
        """Ranks that work on the same rows together: fewer run no step."""
        return self.tensor * self.context * self.pipeline
