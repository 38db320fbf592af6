"""The pass of a teacher: it reads the micro-batches of a step before the model does, and is never updated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart, TeacherWeights
from pretrain.engine.groups import Groups
from pretrain.engine.megatron.built_model import build_model
from pretrain.engine.megatron.runner import Runner
from pretrain.engine.megatron.state import State, fill_initial
from pretrain.engine.megatron.step_part import StepPart, StepPasses
from pretrain.layout.layout import Layout
from pretrain.model_spec.modules import parameter_specs
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.last_states import LastAnswers, LastStates
from pretrain.models.megatron_config import DTYPES
from pretrain.models.network import Network


class TeacherPass(StepPart, TeacherWeights):
    """The model of `config.distillation`, on the layout of the run's own. Data ranks hold it in full, without gradients
    and optimizer states."""

    def __init__(self, config: RunConfig, layout: Layout, groups: Groups, kernels: Kernels) -> None:
        self._config = config.teacher_config()
        built = build_model(self._config, layout, groups, kernels)
        for chunk in built.chunks:
            chunk.to(DTYPES[config.precision]).requires_grad_(False)
        self._state = State(built.parameters, groups, None, built.router_biases)
        self._layers = config.distillation.matched_layers(config.model.layers)
        self._runner = Runner(self._config.model, layout, built.chunks, built.chunks)

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> list[MicroBatch]:
        """The micro-batches, which on the last stage have the teacher's last states. They stay there until the model
        has read them."""
        states = self._runner.evaluate(batches, self._last_states, _kept)
        if not states:
            return list(batches)
        return [replace(batch, teacher=state) for batch, state in zip(batches, states, strict=True)]

    def _last_states(self, chunk: nn.Module, batch: MicroBatch) -> Any:
        assert isinstance(chunk, Network)
        return chunk.last_states(batch, self._layers)

    def weights_state(self) -> dict[str, GlobalPart]:
        """See `base.TeacherWeights`."""
        return self._state.saved()

    def initialise(self) -> None:
        """See `base.TeacherWeights`."""
        fill_initial(parameter_specs(self._config.model), self._config.run.seed, self.weights_state())


def _kept(
    batch: MicroBatch, states: LastStates | LastAnswers
) -> tuple[Tensor, Tensor, LastStates | LastAnswers]:  # fmt: skip
    """A loss function for the schedule, which reports the states."""
    last = states.hidden_LBH if isinstance(states, LastStates) else states.answers_LBK
    return last.sum(), torch.tensor(0, dtype=torch.int), states
