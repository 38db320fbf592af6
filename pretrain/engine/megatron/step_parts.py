"""The parts of a run's step, in the order in which they see its micro-batches."""

from collections.abc import Sequence
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
from pretrain.engine.megatron.replay import StepReplay
from pretrain.engine.megatron.router_terms import RouterTerms
from pretrain.engine.megatron.step_part import StepPart
from pretrain.engine.megatron.teacher import TeacherPass
from pretrain.engine.zero.base import Sharding
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
    chunks: Sequence[Any],
    generator: BuiltModel | None,
    generator_chunks: Sequence[Any],
    parameters: Sequence[Parameter],
    objective: LossObjective,
    sharding: Sharding | None,
) -> list[StepPart]:
    """`chunks` and `generator_chunks`: those of the model, `built`, and of `generator` as the schedule is to call them.
    `parameters` of both models. `sharding`: None where nothing is trained."""
    train, device, parts = sharding is not None, kernels.device, list[StepPart]()
    if train and config.track.activations_every_steps:
        parts.append(LayerOutputs(config, groups, built.chunks, device))
    if train and isinstance(config.optimizer, MuonOptimizer) and config.optimizer.qk_clip_threshold is not None:
        parts.append(QkClip(config.model, config.optimizer.qk_clip_threshold, built.chunks, device))
    if train and config.distillation.teacher is not None:
        parts.append(TeacherPass(config, layout, groups, kernels))
    if generator is not None:
        assert isinstance(objective, SampledLoss)
        parts.append(
            GeneratorPass(
                config,
                layout,
                groups,
                built=generator,
                chunks=generator_chunks,
                objective=objective,
                device=device,
            )
        )
    if config.model.memory_length:
        parts.append(MemoryPart(config, groups, built.chunks, device, train))
    if train and config.model.experts is not None:
        parts.append(RouterTerms(config, groups, built.chunks, device))
    if train and config.track.norms_every_steps:
        parts.append(LayerNorms(config, parameters, groups, device))
    if sharding is not None and config.health.replay_every:
        parts.append(
            StepReplay(
                every=config.health.replay_every,
                layout=layout,
                groups=groups,
                sharding=sharding,
                chunks=[*generator_chunks, *chunks],
                parameters=parameters,
                parts=list(parts),
                device=device,
            )
        )
    return parts
