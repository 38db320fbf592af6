"""The models of a run, as a rank holds them: the chunks of its pipeline stage, and their parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pretrain.config.run_config import RunConfig
from pretrain.engine import groups as process_groups
from pretrain.engine.groups import Groups
from pretrain.layout.layout import Layout
from pretrain.model_spec.generator import PREFIX, generator_chunk_parameters, model_chunk_parameters
from pretrain.model_spec.parameters import StageParameter
from pretrain.model_spec.router_biases import router_bias_name
from pretrain.models.experts import place_experts, routers
from pretrain.models.half_precision import HalfPrecisionModule
from pretrain.models.kernels import Kernels
from pretrain.models.megatron_config import MegatronConfig, megatron_config
from pretrain.models.network import Network
from pretrain.models.placement import Parameter, mark_shared, mark_split, parameters, place_dropout
from pretrain.models.registry import build_chunk
from pretrain.models.shared_tables import add_tables, share_tables


@dataclass(frozen=True, kw_only=True)
class BuiltModel:
    """A model whose weights are uninitialised."""

    megatron: MegatronConfig
    chunks: Sequence[Network]
    """model chunks without a wrapper"""
    parameters: Sequence[Parameter]

    def in_precision(self, half: bool) -> Sequence[Any]:
        """The chunks as they compute: in fp32, or with their weights in `half` precision."""
        return [HalfPrecisionModule(self.megatron, chunk) for chunk in self.chunks] if half else self.chunks

    @property
    def router_biases(self) -> dict[str, Tensor]:
        """Biases of the routers on this rank, by their names in the model."""
        found = {router_bias_name(layer): router.bias_E for layer, router in routers(self.chunks).items()}
        return {name: bias_E for name, bias_E in found.items() if bias_E is not None}


@dataclass(frozen=True, kw_only=True)
class RunModels:
    """The model of a run, and its generator if it has one."""

    main: BuiltModel
    generator: BuiltModel | None
    chunks: Sequence[Any]
    """model chunks of `main` as the schedule is to call them"""
    generator_chunks: Sequence[Any]
    """model chunks of `generator` as the schedule is to call them; none without one"""

    @property
    def built(self) -> Sequence[BuiltModel]:
        """The models that there are."""
        return [self.main] if self.generator is None else [self.main, self.generator]

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The parameters of both models."""
        return [parameter for one in self.built for parameter in one.parameters]

    def in_precision(self, half: bool) -> "RunModels":
        """The models with chunks as they compute, see `BuiltModel.in_precision`."""
        generator_chunks = () if self.generator is None else self.generator.in_precision(half)
        return self.with_chunks(self.main.in_precision(half), generator_chunks)

    def with_chunks(self, chunks: Sequence[Any], generator_chunks: Sequence[Any]) -> "RunModels":
        """The models with other chunks for the schedule."""
        return replace(self, chunks=chunks, generator_chunks=generator_chunks)


def build_models(config: RunConfig, layout: Layout, groups: Groups, kernels: Kernels) -> RunModels:
    """This rank's part of the models of `config`, whose chunks no wrapper has yet."""
    main, generator = build_model(config, layout, groups, kernels), None
    if config.generator is not None:
        generator = _build_generator(config, layout, groups, kernels, main)
    chunks_of_generator = () if generator is None else generator.chunks
    return RunModels(main=main, generator=generator, chunks=main.chunks, generator_chunks=chunks_of_generator)


def build_model(config: RunConfig, layout: Layout, groups: Groups, kernels: Kernels) -> BuiltModel:
    """This rank's part of the model of `config`."""
    megatron = megatron_config(config, kernels)
    chunks = _chunks(config, layout, groups, megatron, "")
    return BuiltModel(
        megatron=megatron, chunks=chunks, parameters=_place(chunks, model_chunk_parameters(config, layout), groups)
    )


def _build_generator(
    config: RunConfig, layout: Layout, groups: Groups, kernels: Kernels, main: BuiltModel
) -> BuiltModel:  # fmt: skip
    """This rank's part of the generator of `config`, beside that of its model, `main`. Its parameters are its own: not
    embeddings that both models use."""
    megatron = megatron_config(config.generator_config(), kernels)
    chunks = _chunks(config.generator_config(), layout, groups, megatron, PREFIX)
    assert config.generator is not None
    for chunk, chunk_of_main in zip(chunks, main.chunks, strict=True):
        if config.generator.embedding_sharing == "shared":
            share_tables(chunk, chunk_of_main)
        else:
            add_tables(chunk_of_main, chunk)
    return BuiltModel(
        megatron=megatron, chunks=chunks, parameters=_place(chunks, generator_chunk_parameters(config, layout), groups)
    )


def _chunks(
    config: RunConfig, layout: Layout, groups: Groups, megatron: MegatronConfig, prefix: str
) -> list[Network]:  # fmt: skip
    chunks = []
    for number in range(layout.virtual):
        chunk = number if layout.virtual > 1 else None
        first, last = process_groups.is_first(chunk), process_groups.is_last(chunk)
        module = build_chunk(config.model, megatron, first, last, chunk)
        module.to(megatron.kernels.device)
        place_dropout(module, groups.axes, prefix)
        if groups.regroups_experts:
            place_experts(module, groups.tensor_rank, groups.expert_group if groups.expert_world > 1 else None)
        chunks.append(module)
    return chunks


def _place(
    chunks: Sequence[Network], by_chunk: Sequence[Sequence[StageParameter]], groups: Groups
) -> list[Parameter]:  # fmt: skip
    """The parameters of this rank's `chunks`, of a model whose chunks have those of `by_chunk`."""
    placed = [
        parameter
        for chunk, held in zip(chunks, by_chunk[groups.stage :: groups.pipeline_world], strict=True)
        for parameter in parameters(chunk, held, groups.weight_axes)
    ]
    mark_split(placed, groups.regroups_experts)
    mark_shared(placed)
    for parameter in placed:
        parameter.value.requires_grad_(parameter.spec.trained)
    return placed
