"""ELECTRA's loss (Clark et al. 2020, arXiv 2003.10555, section 2): the generator's of masked tokens, and that of every
token whether the generator replaced it; each a mean of its own.

The generator reads a micro-batch first and samples a token at each masked position (`random/gumbel.py`). A sample that
is the original token counts as original. No gradient passes from one model to the other but through the embeddings
that they share.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from data_pipeline.batch import Rows
from data_pipeline.recipes.replaced_tokens import ReplacedTokens
from pretrain.config.run_config import RunConfig
from pretrain.model_spec.logits import places_at_once
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups, SampledLoss, ScoredLabels
from pretrain.objectives.terms import Term
from pretrain.objectives.tokens import Tokens
from pretrain.random.gumbel import sample

TOKENS, REPLACED = "tokens", "replaced"


class ReplacedTokensLoss(SampledLoss):
    """See `base.SampledLoss`: a model that finds replaced tokens."""

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        assert isinstance(config.objective, ReplacedTokens)
        self.weights = {TOKENS: 1.0, REPLACED: config.objective.replaced_weight}
        self._tokens = Tokens(config, kernels, groups)
        self._tensor_group, self._context_group = groups.tensor, groups.context

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        real = rows.tokens.size if rows.attention_mask is None else rows.attention_mask.sum(dtype=float)
        return [*self._tokens.counts(rows), float(real)]

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`. The labels of `batch` are 1 where a token was replaced (`read_samples`)."""
        logits_BL = _logits(outputs)
        losses_BL = F.binary_cross_entropy_with_logits(logits_BL, batch.labels_BL.float(), reduction="none")
        mask_BL = batch.loss_mask_BL
        return {REPLACED: Term((losses_BL * mask_BL).sum(), mask_BL.sum().int())}

    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`: whether each token was replaced."""
        logits_BL, replaced_BL = _logits(outputs), batch.labels_BL
        losses_BL = F.binary_cross_entropy_with_logits(logits_BL, replaced_BL.float(), reduction="none")
        return ScoredLabels(-losses_BL, (logits_BL > 0) == (replaced_BL > 0), self.terms(outputs, batch))

    def forward_generator(self, model: nn.Module, batch: MicroBatch) -> Any:
        """See `base.SampledLoss`: the sum of the losses of masked tokens, and the tokens [L, B] that the model is to
        read."""
        return self._sampled(model, batch, scores=False)

    def forward_generator_score(self, model: nn.Module, batch: MicroBatch) -> Any:
        """The same with the cross entropy of each label, and whether it is the most probable token, for the sum."""
        return self._sampled(model, batch, scores=True)

    def generator_terms(self, outputs: ModelOutputs, batch: MicroBatch) -> tuple[dict[str, Term], Tensor]:
        """See `base.SampledLoss`."""
        loss, tokens_LB = outputs.judged
        return {TOKENS: Term(loss, batch.loss_mask_BL.sum().int())}, tokens_LB.T.contiguous()

    def generator_scores(self, outputs: ModelOutputs) -> tuple[ScoredLabels, Tensor]:
        """See `base.SampledLoss`."""
        entropy_LB, greedy_LB, tokens_LB = outputs.judged
        return ScoredLabels(-entropy_LB.T, greedy_LB.T, {}), tokens_LB.T.contiguous()

    def read_samples(self, batch: MicroBatch, tokens_BL: Tensor) -> MicroBatch:
        """See `base.SampledLoss`."""
        replaced_BL = (tokens_BL != batch.labels_BL).long()
        return replace(batch, tokens_BS=tokens_BL, labels_BL=replaced_BL, loss_mask_BL=self._real(batch))

    def _sampled(self, model: nn.Module, batch: MicroBatch, scores: bool) -> Any:
        labels_LB, mask_LB = batch.labels_BL.T.contiguous(), batch.loss_mask_BL.T
        length, rows = labels_LB.shape
        row_B = batch.noise_rows_B
        if row_B is None:
            first = (batch.first_row + 2**63) % 2**64 - 2**63  # as int64 holds it
            offsets_B = batch.row_offsets_B
            row_B = first + (torch.arange(rows, device=labels_LB.device) if offsets_B is None else offsets_B)
        position_L = torch.arange(length, device=labels_LB.device) + dist.get_rank(self._context_group) * length

        labelled = batch.labelled
        assert labelled is not None, "the engine finds them for a generator"

        def judge(logits_LBV: Tensor, where: slice) -> tuple[Tensor, ...]:
            position_N, row_N = labelled.within(where)
            tokens_LB = labels_LB[where].clone()
            with torch.no_grad():  # before the logits are overwritten
                tokens_LB[position_N, row_N] = sample(
                    logits_LBV[position_N, row_N],
                    row_B[row_N],
                    position_L[where][position_N],
                    vocabulary=self._tokens.vocabulary,
                    at_once=places_at_once(logits_LBV.shape[-1]),
                    group=self._tensor_group,
                )
            judged = self._tokens.judge_scores if scores else self._tokens.judge_sums
            return *judged(logits_LBV, labels_LB[where], mask_LB[where]), tokens_LB

        return model(batch, judge=judge)

    def _real(self, batch: MicroBatch) -> Tensor:
        """[B, L] float32: 1 at tokens that are not padding, of this context rank's positions."""
        if batch.attention_mask_BS is None:
            return torch.ones_like(batch.loss_mask_BL)
        length = batch.loss_mask_BL.shape[1]
        first = dist.get_rank(self._context_group) * length
        return batch.attention_mask_BS[:, first : first + length].float()


def _logits(outputs: ModelOutputs) -> Tensor:
    """[B, L] fp32: of each token, that it was replaced."""
    assert outputs.answers is not None, "the model has a task head"
    return outputs.answers[..., 0].T.float()
