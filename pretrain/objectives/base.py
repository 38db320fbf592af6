"""The objective seam of training: what a model's answers to a micro-batch are worth, as named sums with their counts.

Sums and counts travel. Each term is a mean over what it counts in the *global* batch, and the loss is the sum of these
means by their weights. megatron-core divides the gradient once, by the main term's count; so the others enter the sum
that it divides scaled by the main term's count over their own (`scales`), which the batch's columns tell beforehand.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs


@dataclass(frozen=True)
class Term:
    """One term of a loss, of what this rank has of a micro-batch."""

    sum: Tensor
    """scalar, of losses in nats"""
    count: Tensor
    """scalar int32: how many they are"""

    def detached(self) -> "Term":
        """Without what the sum was computed from, which would stay in memory."""
        return Term(self.sum.detach(), self.count)


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
        """How many losses of each term, in the order of `weights`, `rows` ask for."""

    def use_settings(self, config: RunConfig) -> None:  # noqa: B027  # most losses have none that change
        """Takes the weights of terms from `config`, that of the step to come."""

    @property
    def scored(self) -> Sequence[str]:
        """Terms besides the main one that `score` returns, in this order."""
        return list(self.weights)[1:]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """Hidden states for the next stage, or on the last one the inputs of `terms`. `factors` are those of
        `scales`."""
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


def source_term(source: str) -> str:
    """The name of what a source has of the main term. No term of a loss has a slash."""
    return f"source/{source}"


def scales(weights: Mapping[str, float], counts: Sequence[float]) -> dict[str, float]:
    """What terms are multiplied by, from the counts of the global batch, if it is not 1: then the sum of all terms,
    divided by the main term's count, is that of their means by weight. A term that nothing is asked of is left out."""
    main, *others = counts
    (first, weight_of_first), *named = weights.items()
    factors = {first: weight_of_first} if weight_of_first != 1 else {}
    return factors | {
        name: weight * (main / count) if count else 0.0 for (name, weight), count in zip(named, others, strict=True)
    }


def total(terms: Mapping[str, Term], factors: Mapping[str, float]) -> Tensor:
    """The sum of all terms, each times its factor if it has one."""
    first, *others = (term.sum * factors[name] if name in factors else term.sum for name, term in terms.items())
    for one in others:
        first = first + one
    return first


def sum_pairs(results: Sequence[Sequence[Term]], count: int, device: torch.device) -> Tensor:
    """[count, 2] float64: the sums and counts of `count` terms over all `results`."""
    sums = torch.zeros(count, 2, dtype=torch.float64, device=device)
    for terms in results:
        sums += torch.stack([torch.stack([term.sum.double(), term.count.double()]) for term in terms])
    return sums
