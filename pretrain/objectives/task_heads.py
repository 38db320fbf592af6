"""Losses of task heads: of a class, of a number, of the first and last position of a span, and of a choice.

Where a position answers is in the batch (`loss_mask`), as for tokens, so that micro-batches, context ranks and rows
that only pad a batch need nothing of their own. AnswerLoss are the same on every tensor rank.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from data_pipeline.batch import RIGHT_CHOICE, SPAN_END, SPAN_START, Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.models.rank_sums import sum_over_ranks
from pretrain.objectives.base import LossGroups, LossObjective, ScoredLabels
from pretrain.objectives.terms import Term


class AnswerLoss(LossObjective):
    """See `base.LossObjective`. A subclass says what the answers of labelled positions cost."""

    term: str

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        self.weights = {self.term: 1.0}
        self._smoothing, self._context_group = config.objective.label_smoothing, groups.context

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        return [float(rows.loss_mask.sum(dtype=float))]

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        losses_BL = self.losses(self._answers(outputs.answers, batch), batch, self._smoothing)
        return {self.term: Term((losses_BL * batch.loss_mask_BL).sum(), batch.loss_mask_BL.sum().int())}

    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`. The loss of a number counts as minus its log probability."""
        answers_BLK = self._answers(outputs.answers, batch)
        losses_BL, right_BL = self.losses(answers_BLK, batch), self.right(answers_BLK, batch)
        return ScoredLabels(-losses_BL, right_BL, {}, answers_BLK)

    def _answers(self, outputs_LBK: Tensor | None, batch: MicroBatch) -> Tensor:
        """[B, L, K] fp32: of each position, or at each position the sum of those that the batch adds up. A classifier
        without a bias answers for the sum of hidden states by the sum of its answers (GPT: Radford et al. 2018, section
        3.3)."""
        assert outputs_LBK is not None, "the model has a task head"
        answers_BLK = outputs_LBK.transpose(0, 1).float()
        if batch.summed_BL is None:
            return answers_BLK
        mine_BK = (answers_BLK * batch.summed_BL[..., None]).sum(1)
        return sum_over_ranks(mine_BK, self._context_group)[:, None].expand_as(answers_BLK)

    @abstractmethod
    def losses(self, answers_BLK: Tensor, batch: MicroBatch, smoothing: float = 0.0) -> Tensor:
        """[B, L] of each position, whether it is labelled or not."""

    @abstractmethod
    def right(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """[B, L] whether a position's answer is its label."""


class ClassLoss(AnswerLoss):
    """Cross entropy of a position's class."""

    term = "classes"

    def losses(self, answers_BLK: Tensor, batch: MicroBatch, smoothing: float = 0.0) -> Tensor:
        """Nats."""
        labels_BL = batch.labels_BL * (batch.loss_mask_BL > 0)  # ids elsewhere may be no classes
        return F.cross_entropy(answers_BLK.movedim(-1, 1), labels_BL, reduction="none", label_smoothing=smoothing)

    def right(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """Whether the label is the most probable class."""
        return answers_BLK.argmax(-1) == batch.labels_BL


class SquaredErrorLoss(AnswerLoss):
    """Squared error of a number."""

    term = "squared_error"

    def losses(self, answers_BLK: Tensor, batch: MicroBatch, smoothing: float = 0.0) -> Tensor:
        """Squared units of the target."""
        assert batch.targets_BL is not None
        return (answers_BLK[..., 0] - batch.targets_BL).square()

    def right(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """No number is right."""
        return torch.zeros_like(batch.loss_mask_BL, dtype=torch.bool)


class SpanLoss(AnswerLoss):
    """Mean of the cross entropies of a span's first and last position among all positions of its row (BERT: arXiv
    1810.04805, section 4.2). That of a conditional end is among those given the labelled start."""

    term = "spans"

    def losses(self, answers_BLK: Tensor, batch: MicroBatch, smoothing: float = 0.0) -> Tensor:
        """Nats, at the first position of the span."""
        losses_B = torch.zeros((), device=answers_BLK.device)
        for number, bit in enumerate((SPAN_START, SPAN_END)):
            here_BL = (batch.labels_BL & bit) > 0
            logits_BL = self._among_tokens(answers_BLK[..., number], batch)
            losses_B = losses_B + 0.5 * _PositionEntropy.apply(logits_BL, here_BL, self._context_group)  # type: ignore[no-untyped-call]
        return losses_B[:, None] * ((batch.labels_BL & SPAN_START) > 0)

    def right(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """Whether both positions are the most probable ones, at the first position of the span."""
        right_B = torch.ones(len(answers_BLK), dtype=torch.bool, device=answers_BLK.device)
        for number, bit in enumerate((SPAN_START, SPAN_END)):
            logits_BL = self._among_tokens(answers_BLK[..., number], batch)
            right_B = right_B & _is_largest(logits_BL, (batch.labels_BL & bit) > 0, self._context_group)
        return right_B[:, None] & ((batch.labels_BL & SPAN_START) > 0)

    def _among_tokens(self, logits_BL: Tensor, batch: MicroBatch) -> Tensor:
        """Minus infinity at padding, as far as the batch says what is padding."""
        if batch.attention_mask_BS is None:
            return logits_BL
        length = logits_BL.shape[1]
        first = dist.get_rank(self._context_group) * length
        return logits_BL.masked_fill(~batch.attention_mask_BS[:, first : first + length], -torch.inf)


class ChoiceLoss(AnswerLoss):
    """Cross entropy of the right choice among those of its row, each with one number at its own position."""

    term = "choice"

    def losses(self, answers_BLK: Tensor, batch: MicroBatch, smoothing: float = 0.0) -> Tensor:
        """Nats, at the position of the right choice."""
        right_BL, logits_BL = batch.labels_BL == RIGHT_CHOICE, self._choice_scores(answers_BLK, batch)
        losses_B: Tensor = _PositionEntropy.apply(logits_BL, right_BL, self._context_group)  # type: ignore[no-untyped-call]
        return losses_B[:, None] * right_BL

    def right(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """Whether the right choice is the most probable one, at its position."""
        right_BL = batch.labels_BL == RIGHT_CHOICE
        logits_BL = self._choice_scores(answers_BLK, batch)
        return right_BL & _is_largest(logits_BL, right_BL, self._context_group)[:, None]

    def _choice_scores(self, answers_BLK: Tensor, batch: MicroBatch) -> Tensor:
        """Minus infinity at all positions but those of choices."""
        return answers_BLK[..., 0].masked_fill(batch.labels_BL == 0, -torch.inf)


def _is_largest(logits_BL: Tensor, here_BL: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B] whether the logit of one position of each row is the largest, also of the other context ranks'."""
    largest_B2 = torch.stack([logits_BL.amax(1), logits_BL.masked_fill(~here_BL, -torch.inf).amax(1)], 1)
    dist.all_reduce(largest_B2, op=dist.ReduceOp.MAX, group=group)
    is_largest_B: Tensor = largest_B2[:, 0] == largest_B2[:, 1]
    return is_largest_B


class _PositionEntropy(torch.autograd.Function):
    """[B] cross entropy of one position of each row, whose logits [B, L] context ranks share: the same on every rank,
    which each have the gradient of their own logits. Of a row whose position is on no rank it is meaningless."""

    @staticmethod
    def forward(ctx: Any, logits_BL: Tensor, here_BL: Tensor, group: dist.ProcessGroup) -> Tensor:
        largest_B1 = logits_BL.amax(1, keepdim=True)
        dist.all_reduce(largest_B1, op=dist.ReduceOp.MAX, group=group)
        exp_BL = (logits_BL - largest_B1).exp()
        label_B = (logits_BL.masked_fill(~here_BL, 0.0) - largest_B1 * here_BL).sum(1)
        sums_2B = torch.stack([exp_BL.sum(1), label_B])
        dist.all_reduce(sums_2B, group=group)
        ctx.save_for_backward(exp_BL / sums_2B[0][:, None], here_BL)
        ctx.group = group
        return sums_2B[0].log() - sums_2B[1]

    @staticmethod
    def backward(ctx: Any, gradient_B: Tensor) -> tuple[Tensor, None, None]:
        probability_BL, here_BL = ctx.saved_tensors
        gradient_B = gradient_B.contiguous()
        dist.all_reduce(gradient_B, group=ctx.group)  # only the rank that holds the first position has any
        return (probability_BL - here_BL.float()) * gradient_B[:, None], None, None
