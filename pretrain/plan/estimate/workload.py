"""Workload of one optimizer step, for any number of layouts at once: arrays [n] have an entry for each layout, arrays
[n, s] one for each kind of pipeline stage as well. Estimates read nothing else, so that a config (`builder.py`), a
published measurement and a search over thousands of layouts all go through the same arithmetic."""

from dataclasses import dataclass

import numpy as np

from pretrain.plan.estimate.entries import Array, Entries
from pretrain.plan.estimate.shapes import AttentionShapes, ComparisonShapes, KernelShapes, LayerStack, ModelShapes
from pretrain.plan.estimate.step_settings import DeviceSpeeds, LayoutSizes, StageShapes, StepSettings


@dataclass(frozen=True, kw_only=True)
class StepWorkload(Entries):
    """Workload of a step: the model, its split into stages, the layout, and the kernels and devices that run it."""

    model: ModelShapes
    stacks: tuple[LayerStack, ...]
    stages: StageShapes
    layout: LayoutSizes
    step: StepSettings
    attention: AttentionShapes
    comparison: ComparisonShapes
    kernels: KernelShapes
    device: DeviceSpeeds
    others: tuple["StepWorkload", ...] = ()
    """a second model, which reads the micro-batches of a step before this one does: a generator or a frozen teacher,
    whose `model.vocabulary` is 0 where nobody reads its predictions, so that it makes no logits"""

    @property
    def models(self) -> tuple["StepWorkload", ...]:
        """The workload of each model of the step."""
        return self, *self.others

    @property
    def micro_batches(self) -> Array:
        """Micro-batches that each rank processes in a step."""
        return self.step.sequences / (self.layout.data * self.step.micro_sequences)

    @property
    def length(self) -> Array:
        """Positions of a sequence, of both stacks together: what travels between stages."""
        return sum((stack.length * stack.travels for stack in self.stacks), np.zeros_like(self.model.hidden))

    @property
    def source_length(self) -> Array:
        """Positions of a sequence that a source encoder reads; 0: there is none."""
        return self.stacks[0].length * (1 - self.stacks[0].travels)

    @property
    def parameters(self) -> Array:
        """Parameters that one rank of a stage holds, [n, s], without sharding over its replicas."""
        stages = self.stages
        return self._held(stages.sharded_parameters, stages.replicated_parameters, stages.expert_parameters)

    @property
    def trained(self) -> Array:
        """Trained parameters among `parameters`: those with gradients and optimizer states."""
        stages = self.stages
        return self._held(stages.sharded_trained, stages.replicated_trained, stages.expert_trained)

    @property
    def expert_trained(self) -> Array:
        """Parameters of experts among `trained`, which expert ranks share."""
        return self._of_experts(self.stages.expert_trained)

    @property
    def divided(self) -> Array:
        """Trained parameters of which each of a rank's replicas has an equal share under ZeRO, [n, s]. A rank that
        holds some of the experts shares them with fewer ranks: its share is that of all experts with all replicas."""
        stages = self.stages
        return self._divided(stages.sharded_trained, stages.replicated_trained, stages.expert_trained)

    @property
    def moments(self) -> Array:
        """Values that the optimizer keeps, [n, s]: under ZeRO of `divided`, otherwise of `trained`."""
        stages = self.stages
        values = stages.sharded_moments, stages.replicated_moments, stages.expert_moments
        return np.where(self.layout.zero[:, None] > 0, self._divided(*values), self._held(*values))

    def _divided(self, sharded: Array, replicated: Array, of_experts: Array) -> Array:
        """`divided` of such values as of `_held`."""
        held = of_experts[:, 1] * (1 - 1 / self.layout.expert_slices)[:, None]  # which tensor ranks do not have alike
        found: Array = sharded / self.layout.tensor[:, None] + replicated - held
        return found

    def _held(self, sharded: Array, replicated: Array, of_experts: Array) -> Array:
        """Values that a rank holds, [n, s], of those that tensor ranks split or all of them hold, but for `of_experts`,
        [n, 2, s], which expert ranks do."""
        split, held = of_experts.swapaxes(0, 1)
        others = (sharded - split) / self.layout.tensor[:, None] + replicated - held
        found: Array = others + self._of_experts(of_experts)
        return found

    def _of_experts(self, values: Array) -> Array:
        """Values of experts that a rank holds, [n, s], of those that the ranks split which share an expert's features,
        and of those that all of these hold, [n, 2, s]."""
        split, held = values.swapaxes(0, 1)
        found: Array = (split / self.layout.expert_tensor[:, None] + held) / self.layout.expert[:, None]
        return found

    @property
    def in_flight(self) -> Array:
        """Most micro-batches, each of one chunk of a stage, whose activations the stage holds at once, [n, s]: those
        forwarded before the first backward pass, and one more (Narayanan et al. 2021, arXiv 2104.04473, section 2.2;
        interleaved as megatron-core does)."""
        pipeline, virtual = self.layout.pipeline[:, None], self.layout.virtual[:, None]
        after = pipeline - 1 - self.stages.position
        plain = after + 1
        interleaved = 2 * after + (virtual - 1) * pipeline + 1
        every = self.micro_batches[:, None] * virtual
        return np.minimum(np.where(virtual > 1, interleaved, plain), every)

    @property
    def kept_score_biases(self) -> Array:
        """Distance biases that each layer keeps for every score."""
        return np.where(self.attention.shared_score_masks > 0, 0.0, self.attention.score_biases)

    @property
    def tied_parameters(self) -> Array:
        """Values of an embedding that makes the logits of the same stage, too, [n, s]."""
        table = self.model.ties_output * self.model.vocabulary * self.model.embedding_dim / self.layout.tensor
        return table[:, None] * self.stages.embeds * self.stages.predicts

    @property
    def logit_columns(self) -> Array:
        """Vocabulary entries whose logits a rank holds, or answers of a task head."""
        logits = self.model.vocabulary / np.where(self.kernels.logits_sharded > 0, self.layout.tensor, 1.0)
        return np.where(self.model.answers > 0, self.model.answers, logits)
