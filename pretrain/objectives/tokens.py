"""Losses of tokens: what a model should say at its positions.

Rows of the embedding that pad the vocabulary take no part in the softmax. Which positions count, and what they should
say, is in the batch: the next token, a masked one, a target.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups, LossObjective, ScoredLabels
from pretrain.objectives.label_logits import label_logits
from pretrain.objectives.terms import Term, source_term


class Tokens(LossObjective):
    """See `base.LossObjective`. What is asked of logits is asked where they are made (`models/output_linear.py`), of as
    many positions as there are at a time."""

    weights: Mapping[str, float]

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        self.vocabulary, self._smoothing = config.model.vocabulary or 0, config.objective.label_smoothing
        self._z = config.objective.z_loss > 0
        self.weights = {"tokens": 1.0} | ({"z": config.objective.z_loss} if self._z else {})
        self._cross_entropy, self._log_sums, self._group = kernels.cross_entropy, kernels.log_sums, groups.tensor
        names = [source.called for source in config.data.sources]
        self.sources = names if len(names) == len(set(names)) > 1 else ()

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        asked = float(rows.loss_mask.sum(dtype=np.float64))
        return [asked] * (1 + self._z)

    def forward(self, model: nn.Module, batch: MicroBatch, cache: Any = None) -> Any:
        """Hidden states for the next stage, or on the last one outputs with logits; with a key-value `cache`, of
        positions that follow those it holds."""
        return model(batch) if cache is None else model(batch, cache)

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """See `base.LossObjective`."""
        labels_LB, mask_LB = batch.labels_BL.T.contiguous(), batch.loss_mask_BL.T
        from_BN = self.sources_of(batch)

        def judge(logits_LBV: Tensor, where: slice) -> tuple[Tensor, ...]:
            return self.judge_sums(logits_LBV, labels_LB[where], mask_LB[where], from_BN)

        return model(batch, judge=judge)

    def forward_score(self, model: nn.Module, batch: MicroBatch, cache: Any = None) -> Any:
        """See `base.LossObjective`; with a `cache`, as `forward`."""
        labels_LB, mask_LB = batch.labels_BL.T.contiguous(), batch.loss_mask_BL.T

        def judge(logits_LBV: Tensor, where: slice) -> tuple[Tensor, ...]:
            return self.judge_scores(logits_LBV, labels_LB[where], mask_LB[where])

        return model(batch, cache, judge)

    def judge_scores(self, logits_LBV: Tensor, labels_LB: Tensor, mask_LB: Tensor) -> tuple[Tensor, ...]:
        """The cross entropy [L, B] of labels, whether each is the most probable token, and the sum of the term of the
        softmax's denominator, if there is one. Overwrites the logits."""
        greedy_LB = self._argmax_tokens(logits_LBV) == labels_LB
        read = self._read(logits_LBV, labels_LB)
        return read.entropy_LB, greedy_LB, *self._squares(read, mask_LB)

    def argmax_tokens(self, logits_LBV: Tensor) -> Tensor:
        """[B, L] the most probable token ids, on every tensor rank. Overwrites the logits."""
        return self._argmax_tokens(logits_LBV).T

    def log_probabilities(self, logits_LBV: Tensor) -> Tensor:
        """[L, B, vocabulary] float32, nats, on every tensor rank."""
        parts = [torch.empty_like(logits_LBV) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(parts, logits_LBV.contiguous(), group=self._group)
        return torch.cat(parts, dim=-1)[..., : self.vocabulary].float().log_softmax(dim=-1)

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        losses, *squares = outputs.judged
        for answers in outputs.other_answers:  # whose gradient is zero
            losses = losses + 0.0 * answers.float().sum()
        return self._terms([losses, *squares], batch)

    def score(self, outputs: ModelOutputs, batch: MicroBatch) -> ScoredLabels:
        """See `base.LossObjective`."""
        entropy_LB, greedy_LB, *squares = outputs.judged
        _, *others = self._terms([entropy_LB.sum(), *squares], batch).items()
        return ScoredLabels(-entropy_LB.T, greedy_LB.T, dict(others))

    def _terms(self, sums: Sequence[Tensor], batch: MicroBatch) -> dict[str, Term]:
        count, names = batch.loss_mask_BL.sum().int(), ["tokens", "z"][: 1 + self._z]
        found = {name: Term(one, count) for name, one in zip(names, sums, strict=False)}
        return found | self.source_terms(sums[len(names) :], batch)

    def sources_of(self, batch: MicroBatch) -> Tensor | None:
        """[B, sources] whether a row is from each of the run's sources; None where losses are not logged apart."""
        if batch.source_B is None or not self.sources:
            return None
        numbers_N = torch.arange(len(self.sources), device=batch.source_B.device)
        return batch.source_B[:, None] == numbers_N

    def source_terms(self, sums: Sequence[Tensor], batch: MicroBatch) -> dict[str, Term]:
        """The term of each source, from what `judge_sums` said of it last: one tensor, or nothing."""
        from_BN = self.sources_of(batch)
        if from_BN is None or not sums:
            return {}
        (by_source_CN,) = sums
        counts_N = (batch.loss_mask_BL.sum(1, keepdim=True) * from_BN).sum(0).int()
        each = zip(self.sources, by_source_CN.sum(0), counts_N, strict=True)
        return {source_term(name): Term(one, count) for name, one, count in each}

    def judge_sums(
        self, logits_LBV: Tensor, labels_LB: Tensor, mask_LB: Tensor, from_BN: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Sums of the terms; and with `from_BN`, the sources of rows, of the first term's losses of each, [1, sources].
        The gradient of all is in the first: both have the same count, so the second needs only its weight as a factor.
        Overwrites the logits."""
        read = self._read(logits_LBV, labels_LB)
        squares = self._squares(read, mask_LB)
        losses_LB = (read.entropy_LB + self._smoothing * read.spread_LB) * mask_LB
        losses = losses_LB.sum()
        for one in squares:
            losses = losses + self.weights["z"] * (one - one.detach())
        others = [one.detach() for one in squares]
        if from_BN is not None:  # a choice, not a product, which would spread what is not finite
            others.append(torch.where(from_BN, losses_LB.detach().sum(0)[:, None], 0.0).sum(0, keepdim=True))
        return losses, *others

    def _read(self, logits_LBV: Tensor, labels_LB: Tensor) -> "_Readings":
        """The numbers that a loss is made of. Overwrites the logits."""
        if self._log_sums is not None:
            sums = self._log_sums(logits_LBV, labels_LB, self.vocabulary, self._group)
            return _Readings(sums.log_sum - sums.label, sums.log_sum, sums.label - sums.mean)
        logits_LBV, spread_LB, label_LB = logits_LBV.float(), 0.0, None
        if self._smoothing:  # before the logits are overwritten
            spread_LB = _AboveMean.apply(logits_LBV, labels_LB, self.vocabulary, self._group)  # type: ignore[no-untyped-call]
        if self._z:
            label_LB = label_logits(logits_LBV, labels_LB, self._group)
        entropy_LB = self._entropy(logits_LBV, labels_LB)
        return _Readings(entropy_LB, None if label_LB is None else entropy_LB + label_LB, spread_LB)

    def _entropy(self, logits_LBV: Tensor, labels_LB: Tensor) -> Tensor:
        """The cross entropy alone, [L, B]. Overwrites the logits."""
        if self._log_sums is not None:
            sums = self._log_sums(logits_LBV, labels_LB, self.vocabulary, self._group)
            return sums.log_sum - sums.label
        return self._cross_entropy(self._real(logits_LBV.float()), labels_LB, self._group)

    def _squares(self, read: "_Readings", mask_LB: Tensor) -> Sequence[Tensor]:
        """The sum of the term of the softmax's denominator Z, if there is one: of log(Z)^2 (Chowdhery et al. 2022,
        arXiv 2204.02311, section 5)."""
        return [(read.log_sum_LB.square() * mask_LB).sum()] if self._z and read.log_sum_LB is not None else []

    def _argmax_tokens(self, logits_LBV: Tensor) -> Tensor:
        """The most probable token id [L, B] over all tensor ranks; the lowest id among equals."""
        best_LB, id_LB = self._real(logits_LBV).max(dim=-1)
        id_LB = id_LB + dist.get_rank(self._group) * logits_LBV.shape[-1]
        if dist.get_world_size(self._group) == 1:
            return id_LB
        bests, ids = ([torch.empty_like(x) for _ in range(dist.get_world_size(self._group))] for x in (best_LB, id_LB))
        dist.all_gather(bests, best_LB, group=self._group)
        dist.all_gather(ids, id_LB, group=self._group)
        winner_LB = torch.stack(bests).argmax(dim=0, keepdim=True)
        return torch.stack(ids).gather(0, winner_LB)[0]

    def _real(self, logits_LBV: Tensor) -> Tensor:
        """The logits with padding columns at minus infinity, in place. Autograd need not know (`data`), since their
        gradient from the cross entropy is their probability, zero; otherwise it would copy all logits twice."""
        real = self.vocabulary - dist.get_rank(self._group) * logits_LBV.shape[-1]
        logits_LBV.data[..., max(0, real) :] = -torch.inf
        return logits_LBV


class _Readings(NamedTuple):
    """[L, B] float32, of the logits of each position."""

    entropy_LB: Tensor
    """the cross entropy of the label"""
    log_sum_LB: Tensor | None
    """logarithm of the softmax's denominator; None where nothing asks for it"""
    spread_LB: Tensor | float
    """the label's logit above the mean; 0 where nothing asks for it"""


class _AboveMean(torch.autograd.Function):
    """[L, B]: by how much the label's logit is above the mean of all real ids'. The cross entropy with a target that
    gives a part of its probability to all ids alike, and the rest to the label, is greater by that part times this
    (megatron-core's own smoothing takes each tensor rank's ids for all). Keeps no logits for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, logits_LBV: Tensor, labels_LB: Tensor, vocabulary: int, group: dist.ProcessGroup
    ) -> Tensor:  # fmt: skip
        width = logits_LBV.shape[-1]
        first = dist.get_rank(group) * width
        own_LB = (labels_LB >= first) & (labels_LB < first + width)
        there_LB = (labels_LB - first).clamp(0, width - 1)
        real = min(width, max(0, vocabulary - first))
        label_LB = logits_LBV.gather(-1, there_LB[..., None])[..., 0].float() * own_LB
        spread_LB = label_LB - logits_LBV[..., :real].sum(-1, dtype=torch.float32) / vocabulary
        dist.all_reduce(spread_LB, group=group)
        ctx.save_for_backward(own_LB, there_LB)
        ctx.shape, ctx.dtype, ctx.real, ctx.vocabulary = logits_LBV.shape, logits_LBV.dtype, real, vocabulary
        return spread_LB

    @staticmethod
    def backward(ctx: Any, gradient_LB: Tensor) -> tuple[Tensor, None, None, None]:
        own_LB, there_LB = ctx.saved_tensors
        grad_LBV = gradient_LB.new_zeros(ctx.shape, dtype=ctx.dtype)
        grad_LBV[..., : ctx.real] = (-gradient_LB / ctx.vocabulary)[..., None].to(ctx.dtype)
        flat = grad_LBV.view(-1, ctx.shape[-1])  # written to, not added to: which CUDA would do in any order
        flat[torch.arange(len(flat), device=flat.device), there_LB.flatten()] += (
            (gradient_LB * own_LB).flatten().to(ctx.dtype)
        )
        return grad_LBV, None, None, None
