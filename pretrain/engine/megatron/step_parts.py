"""The parts of a run's step, in the order in which they see its micro-batches."""

from collections.abc import Iterator, Sequence
from typing import Any

from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.built_model import BuiltModel
from pretrain.engine.megatron.generator import GeneratorPass
from pretrain.engine.megatron.layer_norms import LayerNorms
from pretrain.engine.megatron.layer_outputs import LayerOutputs
from pretrain.engine.megatron.memory_part import MemoryPart
from pretrain.engine.megatron.qk_clip import QkClip
from pretrain.engine.megatron.router_terms import RouterTerms
from pretrain.engine.megatron.step_part import StepPart
from pretrain.engine.megatron.teacher import TeacherPass
from pretrain.layout.layout import Layout
from pretrain.models.kernels import Kernels
from pretrain.models.placement import Parameter
from pretrain.objectives.base import LossObjective, SampledLoss


def step_parts(
    config: RunConfig,
    layout: Layout,
    groups: Groups,
    kernels: Kernels,
    *,
    built: BuiltModel,
    generator: BuiltModel | None,
    generator_chunks: Sequence[Any],
    parameters: Sequence[Parameter],
    objective: LossObjective,
    train: bool,
) -> Iterator[StepPart]:
    """`generator_chunks`: those of `generator` as the schedule is to call them. `parameters` of both models."""
    device, chunks = kernels.device, built.chunks
    if train and config.track.activations_every_steps:
        yield LayerOutputs(config, groups, chunks, device)
    if train and isinstance(config.optimizer, MuonOptimizer) and config.optimizer.qk_clip_threshold is not None:
        yield QkClip(config.model, config.optimizer.qk_clip_threshold, chunks, device)
    if train and config.distillation.teacher is not None:
        yield TeacherPass(config, layout, groups, kernels)
    if generator is not None:
        assert isinstance(objective, SampledLoss)
        yield GeneratorPass(
            config,
            layout,
            groups,
            built=generator,
            chunks=generator_chunks,
            objective=objective,
            device=device,
        )
    if config.model.memory_length:
        yield MemoryPart(config, groups, chunks, device, train)
    if train and config.model.experts is not None:
        yield RouterTerms(config, groups, chunks, device)
    if train and config.track.norms_every_steps:
        yield LayerNorms(config, parameters, groups, device)
