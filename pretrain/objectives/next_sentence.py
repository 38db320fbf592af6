"""BERT's loss (Devlin et al. 2019, section 3.1) and ALBERT's (Lan et al. 2019, section 3.1): that of masked tokens,
and of each row's answer whether its second segment follows the first in its document; each a mean of its own."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.objectives.base import LossGroups, ScoredLabels, Term
from pretrain.objectives.tokens import Tokens

_UNASKED = -1


class NextSentence(Tokens):
    """See `base.LossObjective`. Beside its logits, a model answers the question, [B, 2]."""

    question = "next_sentence"

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        super().__init__(config, kernels, groups)
        self._holds_first = groups.holds_first
        self.weights = {**self.weights, self.question: 1.0}

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        asked = 0 if rows.next_sentence is None else (rows.next_sentence != _UNASKED).sum()
        return [*super().counts(rows), float(asked)]

    def terms(self, outputs: Any, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        said, answers_B2 = outputs
        return {**super().terms(said, batch), self.question: self._answers(answers_B2, batch)}

    def score(self, outputs: Any, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`."""
        said, answers_B2 = outputs
        judged = super().score(said, batch)
        others = {**judged.others, self.question: self._answers(answers_B2, batch)}
        return ScoredLabels(judged.log_probability, judged.greedy, others)

    def _answers(self, answers_B2: Tensor, batch: MicroBatch) -> Term:
        """At the first position, which one context rank has: the others are asked nothing."""
        asked_B = batch.next_sentence_B
        if asked_B is None or not self._holds_first:
            asked_B = torch.full_like(batch.tokens_BS[:, 0], _UNASKED)
        losses = F.cross_entropy(answers_B2.float(), asked_B, reduction="sum", ignore_index=_UNASKED)
        return Term(losses, (asked_B != _UNASKED).sum().int())


class SentenceOrder(NextSentence):
    """The loss of the answer whether two segments are in their original order."""

    question = "sentence_order"
