"""The seam of a training step: what a part of a model or of a run (experts, a teacher, memory) does in it.

The engine has its parts in a list, in the order in which they see the micro-batches, and knows none of them by name.
A step goes through it so:

    during       around its computations, of which there are several where a step is replayed
    computation  how it is computed
    attached     what micro-batches read because of it; it may run passes of its own
    computed     after the passes: sums over ranks
    values       on the device: the host waits for those of all parts at once
    read         the same as numbers
    row_factors  of the update
    updated      after the update, where one was made
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.engine.base import GlobalPart
from pretrain.engine.zero.base import Sharding
from pretrain.models.inputs import MicroBatch
from pretrain.objectives.base import ScoredLabels
from pretrain.objectives.terms import Term

Report = Callable[[dict[str, Term]], tuple[Tensor, Tensor, list[Term]]]
"""terms -> (loss sum, token count, terms to report)"""


@dataclass(frozen=True, kw_only=True)
class StepPasses:
    """The passes of one computation of a step, to which parts may add."""

    factors: Mapping[str, float]
    """factor of the sum of each term in the loss: see `objectives.terms.scales`"""
    scale: float
    """factor of the loss in the backward pass"""
    first_row: int
    """from which dropout numbers rows"""
    report: Report
    forwarded: Callable[[nn.Module, Any], None]
    """to be called with each chunk's output that a backward pass follows"""
    reported: list[list[Term]] = field(default_factory=list)
    """terms of the micro-batches of passes that were run, on the last stage"""


@dataclass(frozen=True, kw_only=True)
class ComputedStep:
    """Results of the passes of a step; the gradient is in the sharding."""

    own_sums: Tensor
    """[terms, 2] float64: sums and counts of the terms of the loss, of this rank's rows"""
    sums: Tensor
    """the same of all ranks"""
    counts: Sequence[float]
    """counts of the terms over the global batch"""
    factors: Mapping[str, float]
    names: Sequence[str]
    """names of the terms; none if there is one"""
    sources: Sequence[str]
    """names of the sources whose losses are apart"""
    computed_positions: int
    tokens: int
    flops: float


Compute = Callable[[Rows, int], ComputedStep]
"""(rows of a data rank, its number) -> the step up to its update. Collective."""


@dataclass(frozen=True, kw_only=True)
class PartFigures:
    """Figures of a step that a part reports."""

    figures: Mapping[str, float] = field(default_factory=dict)
    """figures by their keys in metrics.jsonl"""
    terms: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """sum and count of each term that it adds to the loss"""
    tokens_per_expert: Mapping[str, Sequence[int]] = field(default_factory=dict)


class StepPart:
    """A part that does nothing. Every method is collective."""

    reads: frozenset[str] = frozenset()
    """further facts that micro-batches are to state: "labelled", which places have a loss; "counted", which positions
    of each stack are no padding; "real", which of all positions"""
    weights: Mapping[str, float] = {}
    """weight of each term that it adds to the loss"""

    def use_settings(self, config: RunConfig) -> None:
        """Takes what may change from `config`, that of the step to come."""

    def during(self, step: int) -> AbstractContextManager[None]:
        """Around the computations of a step, of which there may be several."""
        return nullcontext()

    def computation(self, step: int, compute: Compute) -> Compute:
        """Computation of the step: `compute`, or a function around calls of it."""
        return compute

    def keeps_gradients(self, step: int) -> bool:
        """Whether it reads the gradient after the update."""
        return False

    def counts(self, rows: Rows) -> Sequence[float]:
        """Number of summands of each term, in the order of `weights`, that this rank's rows have."""
        return ()

    def attached(self, batches: Sequence[MicroBatch], passes: StepPasses) -> Sequence[MicroBatch]:
        """The micro-batches as the model reads them."""
        return batches

    def to_score(self, batches: Sequence[MicroBatch], batch: Rows, rows: int) -> Sequence[MicroBatch]:
        """Micro-batches of `batch` as the model reads them where they are scored: of that many `rows`, of which the
        last is repeated at their end."""
        return batches

    def scored(self, results: Sequence[ScoredLabels]) -> Sequence[ScoredLabels]:
        """Results of the model for each micro-batch, on the last stage."""
        return results

    def computed(self) -> None:
        """Sums over ranks what the passes found."""

    def values(self, step: int) -> Sequence[Tensor]:
        """float64 vectors of what the host is to know of the step, the same on every rank."""
        return ()

    def read(self, values: Sequence[float], counts: Sequence[float]) -> PartFigures:
        """`values` as numbers, and the counts of its terms over the global batch."""
        return PartFigures()

    def row_factors(self) -> Mapping[str, Tensor]:
        """Factors of the rows of this rank's parameters, by name, in the update; none: of all 1."""
        return {}

    def updated(self, step: int, sharding: Sharding, clipped_by: float) -> Mapping[str, float]:
        """After an update whose gradient was clipped by `clipped_by`: figures of it."""
        return {}

    def carried(self) -> Sequence[Tensor]:
        """Tensors that passes leave for the next step, on this rank. Not collective."""
        return ()

    def found(self) -> Mapping[str, Sequence[Tensor]]:
        """Further results of the passes on this rank, by a name for messages. Not collective."""
        return {}

    def exchanged(self) -> Mapping[str, Sequence[Tensor]]:
        """Results that `computed` makes of those of `found`, by the same names. Not collective."""
        return {}

    def state(self) -> Mapping[str, GlobalPart]:
        """State of the part that a checkpoint holds: live views. Not collective."""
        return {}
