"""Legal layouts, and the coordinates of ranks in them. Plain arithmetic: no torch.

The rank order is megatron-core's: tensor ranks are adjacent, then context, then data, then pipeline.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pretrain.config.model import Model
from pretrain.config.parallel import Parallel
from pretrain.config.parts.registry import PARTS
from pretrain.config.run_config import RunConfig
from pretrain.errors import ConfigError
from pretrain.layout.checks import (
    check_batches,
    check_chunks,
    check_context_ranks,
    check_equal_chunks,
    check_fp8_blocks,
    check_sequence_ranks,
    check_sharding,
    check_shared_distances,
    check_shared_weights,
    check_tensor_ranks,
    row_lengths,
)
from pretrain.layout.divisors import divisors
from pretrain.layout.expert_ranks import check_expert_ranks, unsplit_experts


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A legal layout of a run on `world` ranks."""

    world: int
    tensor: int = 1
    pipeline: int = 1
    virtual: int = 1
    sequence: bool = False
    zero: int = 0
    zero_engine: Literal["megatron", "deepspeed"] = "megatron"
    context: int = 1
    expert: int = 1
    unsplit_experts: bool = False
    """tensor ranks do not share the features of experts: `parallel.expert_tensor` is 1, and `parallel.tensor` is not"""

    @property
    def expert_tensor(self) -> int:
        """Tensor ranks that share the features of each expert."""
        return 1 if self.unsplit_experts else self.tensor

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same experts, or parts of them: they sum their gradients."""
        return self.tensor * self.replicas // (self.expert_tensor * self.expert)

    @property
    def replicates(self) -> bool:
        """Whether several ranks hold the same weights, of experts or others, so that ZeRO has something to shard."""
        return max(self.replicas, self.expert_replicas) > 1

    @property
    def regroups_experts(self) -> bool:
        """Whether experts are shared by other ranks, and replicated on others, than the rest of the model."""
        return self.expert > 1 or self.unsplit_experts

    @property
    def shards_by_deepspeed(self) -> bool:
        return self.zero_engine == "deepspeed" and self.zero > 0

    @property
    def data(self) -> int:
        return self.world // (self.tensor * self.context * self.pipeline)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same weights: they sum their gradients, and ZeRO shards the optimizer state over them.
        Weights of experts are an exception (`expert_replicas`)."""
        return self.context * self.data

    def coordinates(self, rank: int) -> tuple[int, int, int, int]:
        """(tensor, context, data, pipeline) rank of a global rank."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        pipeline, data = divmod(rest, self.data)
        return tensor, context, data, pipeline

    def rank(self, tensor: int, context: int, data: int, pipeline: int) -> int:
        """The global rank at these coordinates."""
        return tensor + self.tensor * (context + self.context * (data + self.data * pipeline))

    def __str__(self) -> str:
        """Compact name such as `tp2pp2dp2+sp+vp2+zero1`, with context ranks `tp2cp2pp2dp2`, with expert ranks
        `tp2ep2pp2dp2`, where tensor ranks do not split experts `tp2ep4etp1pp2dp2`. ZeRO stages 2 and 3 are always
        DeepSpeed's; stage 1 has the suffix `deepspeed` if it is."""
        context = f"cp{self.context}" if self.context > 1 else ""
        expert = f"ep{self.expert}" if self.expert > 1 else ""
        expert += "etp1" if self.unsplit_experts else ""
        sizes = f"tp{self.tensor}{context}{expert}pp{self.pipeline}dp{self.data}"
        extras = [
            ("sp", self.sequence),
            (f"vp{self.virtual}", self.virtual > 1),
            (f"zero{self.zero}", self.zero > 0),
            ("deepspeed", self.zero == 1 and self.shards_by_deepspeed),
        ]
        return "+".join([sizes, *(name for name, on in extras if on)])


def settings_on(parallel: Parallel, layout: Layout) -> dict[str, Any]:
    """The settings of `parallel.*` for a layout: its own, and of those of `parallel` that it cannot have, defaults."""
    return parallel.model_dump(mode="json") | {
        "tensor": layout.tensor,
        "context": layout.context,
        "expert": layout.expert,
        "expert_tensor": 1 if layout.unsplit_experts else None,
        "sequence": layout.sequence,
        "pipeline": layout.pipeline,
        "virtual": layout.virtual,
        "zero": layout.zero,
        "zero_engine": layout.zero_engine,
        "offload_optimizer": parallel.offload_optimizer and layout.shards_by_deepspeed,
        "hpz": parallel.hpz if layout.zero == 3 and layout.replicas % parallel.hpz == 0 else 1,
        "overlap": None if layout.zero == 1 and layout.shards_by_deepspeed else parallel.overlap,
        "offload_parameters": parallel.offload_parameters and layout.zero == 3,
    }


class RankCountError(ConfigError):
    """A number of ranks that a layout cannot have. It can have `least`, and multiples of that."""

    def __init__(self, sentence: str, least: int) -> None:
        super().__init__(sentence)
        self.least = least


def plan_layout(config: RunConfig, world: int, trains: bool = True, beside: bool = False) -> Layout:
    """The layout that `config.parallel` describes on `world` ranks. `trains=False`, for evaluation, does not check the
    global batch; nor does `beside`, for a model that is computed on the layout of another, which trains. Raises
    ConfigError with the violated rule and the nearest legal value."""
    parallel, model = config.parallel, config.model
    if (reason := next(filter(None, (part.refuses(model, parallel) for part in PARTS.values())), None)) is not None:
        raise ConfigError(reason)
    check_tensor_ranks(config, is_new=trains and not beside)
    lengths = row_lengths(config)
    check_context_ranks(parallel, model, lengths)
    if config.precision == "fp8":
        check_fp8_blocks(parallel, model)
    check_sequence_ranks(parallel, lengths)
    check_chunks(parallel, model)
    if world % parallel.model_ranks:
        started = f"{world} ranks do" if world > 1 else "1 rank does"
        raise RankCountError(
            f"{started} not fit parallel.tensor={parallel.tensor} x parallel.pipeline={parallel.pipeline} x "
            f"parallel.context={parallel.context}: start a multiple of {parallel.model_ranks} ranks, or choose a "
            "smaller layout",
            parallel.model_ranks,
        )
    if model.layers_share_by is not None:
        check_shared_weights(parallel, model.layers_share_by)
    if model.positions.distance_linears:
        check_shared_distances(parallel, model.positions.name)
    if trains and config.distillation.model is not None:
        _check_second_model("distillation.teacher", config.teacher_config(), model, world)
    if config.generator is not None:
        _check_second_model("generator", config.generator_config(), model, world)
    data = world // parallel.model_ranks
    if parallel.expert > 1 or parallel.expert_tensor is not None:
        teacher = config.distillation.model if trains else None
        of_other = beside or (teacher is not None and teacher.has_expert_layers)
        if model.has_expert_layers or not of_other:
            check_expert_ranks(config, parallel.context * data, trains or beside)
    if trains:
        check_sharding(parallel, parallel.context * data)
        check_batches(config.batch, parallel, data)
    return Layout(
        world=world,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        virtual=parallel.virtual,
        sequence=parallel.sequence,
        zero=parallel.zero,
        zero_engine=parallel.zero_engine if parallel.zero else "megatron",
        context=parallel.context,
        expert=parallel.expert,
        unsplit_experts=unsplit_experts(parallel),
    )


def expert_ranks(config: RunConfig, layout: Layout) -> list[int]:
    """Numbers of expert ranks, ascending, that may train `config` on a layout under ZeRO 0 to 2; the first is 1."""
    if not config.model.has_expert_layers:
        return [1]
    found = []
    sizes = {"tensor": layout.tensor, "expert_tensor": 1 if layout.unsplit_experts else None, "zero": 1}
    for ranks in divisors(layout.expert_replicas * layout.expert):
        parallel = config.parallel.model_copy(update={**sizes, "expert": ranks})
        try:
            check_expert_ranks(config.model_copy(update={"parallel": parallel}), layout.replicas, trains=True)
        except ConfigError:
            continue
        found.append(ranks)
    return found


def _check_second_model(name: str, config: RunConfig, model: Model, world: int) -> None:
    """Refuse a layout on which the second model of a run cannot be computed, which it shares with the first `model`."""
    try:
        for one in (config.model, model):
            check_equal_chunks(one, config.parallel)
        plan_layout(config, world, trains=False, beside=True)
    except ConfigError as error:
        raise ConfigError(f"{name} is computed on the layout of the model, and {error}") from None
