"""The objective seam of training: what a model's answers to a micro-batch are worth, as terms (`terms.py`)."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.terms import Term


@dataclass(frozen=True)
class ScoredLabels:
    """Scores of labels, without a gradient."""

    log_probability: Tensor
    """[B, L] nats, of each label"""
    greedy: Tensor
    """[B, L] whether it is the most probable token"""
    others: Mapping[str, Term]
    """the terms besides the main one"""
    outputs: Tensor | None = None
    """[B, L, outputs] fp32: the answers of a task head"""


@dataclass(frozen=True)
class LossGroups:
    """The ranks among which answers are split."""

    tensor: dist.ProcessGroup
    """ranks that share the logits of a position"""
    context: dist.ProcessGroup
    """ranks that share the positions of a sequence, each a slice, in order"""

    @property
    def holds_first(self) -> bool:
        """Whether this rank's slice of a sequence is the first."""
        return dist.get_rank(self.context) == 0


class LossObjective(ABC):
    """One way to judge answers; see `registry.py`."""

    weights: Mapping[str, float]
    """weight of each term; the first is the main one, by whose count the gradient is divided"""
    sources: Sequence[str] = ()
    """names of the run's sources, for a loss that says of rows of several ones what each has of the main term"""

    @abstractmethod
    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        """See `registry.make_loss`."""

    @abstractmethod
    def counts(self, rows: Rows) -> Sequence[float]:
        """Number of losses of each term, in the order of `weights`, that `rows` ask for."""

    def use_settings(self, config: RunConfig) -> None:  # noqa: B027  # most losses have none that change
        """Takes the weights of terms from `config`, that of the step to come."""

    @property
    def scored(self) -> Sequence[str]:
        """Terms besides the main one that `score` returns, in this order."""
        return list(self.weights)[1:]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """Hidden states for the next stage, or on the last one the inputs of `terms`. `factors` are those of
        `terms.scales`."""
        return model(batch)

    def forward_score(self, model: nn.Module, batch: MicroBatch) -> Any:
        """Hidden states for the next stage, or on the last one the inputs of `score`."""
        return model(batch)

    @abstractmethod
    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """The terms, by the names that `weights` has; and of rows that name their source the main term of each of
        `sources`, by its `source_term`, which is reported and not trained on."""

    @abstractmethod
    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """The labels' scores."""


class SampledLoss(LossObjective):
    """A loss of a model that reads what a generator sampled (`engine/megatron/generator.py`). What it has of
    `LossObjective` is the model's part; `weights` and `counts` are of both."""

    @abstractmethod
    def forward_generator(self, model: nn.Module, batch: MicroBatch) -> Any:
        """Hidden states for the next stage, or on the last one the inputs of `generator_terms`."""

    @abstractmethod
    def forward_generator_score(self, model: nn.Module, batch: MicroBatch) -> Any:
        """Hidden states for the next stage, or on the last one the inputs of `generator_scores`."""

    @abstractmethod
    def generator_terms(self, outputs: ModelOutputs, batch: MicroBatch) -> tuple[dict[str, Term], Tensor]:
        """The terms of the generator, and the tokens [B, L] that the model is to read."""

    @abstractmethod
    def generator_scores(self, outputs: ModelOutputs) -> tuple[ScoredLabels, Tensor]:
        """The scores of the generator's labels, and the tokens [B, L] that the model is to read."""

    @abstractmethod
    def read_samples(self, batch: MicroBatch, tokens_BL: Tensor) -> MicroBatch:
        """The micro-batch that the model reads after the generator."""
