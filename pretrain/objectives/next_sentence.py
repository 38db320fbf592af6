"""BERT's loss (Devlin et al. 2019, section 3.1) and ALBERT's (Lan et al. 2019, section 3.1): that of masked tokens,
and of each row's answer whether its second segment follows the first in its document; each a mean of its own."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups, ScoredLabels
from pretrain.objectives.terms import Term
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

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        of_tokens = super().terms(outputs._replace(next_sentence=None), batch)
        return {**of_tokens, self.question: self._answers(outputs, batch)}

    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`."""
        judged = super().score(outputs, batch)
        others = {**judged.others, self.question: self._answers(outputs, batch)}
        return ScoredLabels(judged.log_probability, judged.greedy, others)

    def _answers(self, outputs: ModelOutputs, batch: MicroBatch) -> Term:
        """At the first position, which one context rank has: the others are asked nothing."""
        assert outputs.next_sentence is not None, "the model has a pooled head"
        asked_B = batch.next_sentence_B
        if asked_B is None or not self._holds_first:
            asked_B = torch.full_like(batch.tokens_BS[:, 0], _UNASKED)
        losses = F.cross_entropy(outputs.next_sentence.float(), asked_B, reduction="sum", ignore_index=_UNASKED)
        return Term(losses, (asked_B != _UNASKED).sum().int())


class SentenceOrder(NextSentence):
    """The loss of the answer whether two segments are in their original order."""

    question = "sentence_order"
