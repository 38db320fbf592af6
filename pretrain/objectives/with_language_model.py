"""The loss of a task head and beside it that of the next token of the same texts, each a mean of its own (GPT: Radford
et al. 2018, section 3.2, where L3 = L2 + 0.5 L1)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups, LossObjective, ScoredLabels
from pretrain.objectives.terms import Term
from pretrain.objectives.tokens import Tokens

_NAME = "language_model"


class WithLanguageModel(LossObjective):
    """See `base.LossObjective`. The loss `task` is the main one."""

    def __init__(
        self, config: RunConfig, kernels: Kernels, groups: LossGroups, task: LossObjective, weight: float
    ) -> None:
        self._task = task
        unsmoothed = config.objective.model_copy(update={"label_smoothing": 0.0})  # that is of the task's classes
        self._tokens = Tokens(config.model_copy(update={"objective": unsmoothed}), kernels, groups)
        self._tokens.sources = ()  # of the task's loss, which is the main one
        self.weights = {**task.weights, _NAME: weight}

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        asked = 0 if rows.next_tokens is None else (rows.next_tokens >= 0).sum()
        return [*self._task.counts(rows), float(asked)]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """See `base.LossObjective`."""
        return self._tokens.forward_train(model, _with_next_tokens(batch), factors)

    def forward_score(self, model: nn.Module, batch: MicroBatch) -> Any:
        """See `base.LossObjective`."""
        return self._tokens.forward_score(model, _with_next_tokens(batch))

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        of_tokens = self._tokens.terms(outputs._replace(answers=None), _with_next_tokens(batch))
        (next_token,) = of_tokens.values()
        return {**self._task.terms(outputs, batch), _NAME: next_token}

    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`."""
        tokens = _with_next_tokens(batch)
        scored = self._tokens.score(outputs, tokens)
        losses = (scored.log_probability * tokens.loss_mask_BL).sum().neg()
        task = self._task.score(outputs, batch)
        return replace(task, others={**task.others, _NAME: Term(losses, tokens.loss_mask_BL.sum().int())})


def _with_next_tokens(batch: MicroBatch) -> MicroBatch:
    """The batch with the next tokens as labels."""
    next_BL: Tensor | None = batch.next_tokens_BL
    if next_BL is None:
        return replace(batch, loss_mask_BL=batch.loss_mask_BL * 0)
    return replace(batch, labels_BL=next_BL.clamp(min=0), loss_mask_BL=(next_BL >= 0).to(batch.loss_mask_BL.dtype))
