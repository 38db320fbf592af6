"""The parts of a run's step, in the order in which they see its micro-batches."""

from pretrain.config.optimizer import MuonOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.built_model import RunModels
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
from pretrain.objectives.base import LossObjective, SampledLoss


def step_parts(
    config: RunConfig,
    layout: Layout,
    groups: Groups,
    kernels: Kernels,
    *,
    models: RunModels,
    objective: LossObjective,
    sharding: Sharding | None,
) -> list[StepPart]:
    """`sharding`: None where nothing is trained."""
    train, device, parts = sharding is not None, kernels.device, list[StepPart]()
    bare, parameters = models.main.chunks, models.parameters
    if train and config.track.activations_every_steps:
        parts.append(LayerOutputs(config, groups, bare, device))
    if train and isinstance(config.optimizer, MuonOptimizer) and config.optimizer.qk_clip_threshold is not None:
        parts.append(QkClip(config.model, config.optimizer.qk_clip_threshold, bare, device))
    if train and config.distillation.teacher is not None:
        parts.append(TeacherPass(config, layout, groups, kernels))
    if models.generator is not None:
        assert isinstance(objective, SampledLoss)
        parts.append(
            GeneratorPass(
                config,
                layout,
                groups,
                built=models.generator,
                chunks=models.generator_chunks,
                objective=objective,
                device=device,
            )
        )
    if config.model.memory_length:
        parts.append(MemoryPart(config, groups, bare, device, train))
    if train and config.model.experts is not None:
        parts.append(RouterTerms(config, groups, bare, device))
    if train and config.track.norms_every_steps:
        parts.append(LayerNorms(config, parameters, groups, device))
    if sharding is not None and config.health.replay_every:
        parts.append(
            StepReplay(
                every=config.health.replay_every,
                layout=layout,
                groups=groups,
                sharding=sharding,
                chunks=[*models.generator_chunks, *models.chunks],
                parameters=parameters,
                parts=list(parts),
                device=device,
            )
        )
    return parts
