"""An adaptive softmax (Grave et al. 2017, arXiv 1609.04309): frequent words, which have the lowest ids, compete with
each other and with clusters of the others; a word of a cluster has its share of what the cluster gets.

    p(w) = softmax over [frequent words, clusters] of w              if w is frequent
    p(w) = that of w's cluster * softmax over the cluster's words of w  otherwise

A cluster's logit is made as those of words are: its vector and bias are rows behind those of the vocabulary. So one
product makes all logits, on any layout, and what comes out here is the logarithm of each word's probability, of which
another softmax is the same again.

Shapes: L positions, B rows, V logits of this tensor rank, G groups that compete: the first, then each cluster's words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_CANCELLED = 64 * torch.finfo(torch.float32).eps
"""the part of two terms that is rounding, where they nearly cancel: each is a product of two exponentials"""


@dataclass(frozen=True)
class AdaptiveSoftmax:
    """Called with logits of the rows of one of the tensor ranks of `group`."""

    cutoffs: Sequence[int]
    """the first word of each cluster"""
    vocabulary: int
    """words; the rows of clusters come after these"""
    group: dist.ProcessGroup

    def __call__(self, logits_LBV: Tensor) -> Tensor:
        """[L, B, V] float32: log probabilities of words, in nats; -inf for what is none. The caller may overwrite
        them."""
        out: Tensor = _Adaptive.apply(logits_LBV, self)  # type: ignore[no-untyped-call]
        return out

    def words(self, width: int) -> list[slice]:
        """The columns of the words of each group, of `width` columns of this rank."""
        bounds = [0, *self.cutoffs, self.vocabulary]
        return [self._local(*pair, width) for pair in pairwise(bounds)]

    def clusters(self, width: int) -> tuple[slice, slice]:
        """The columns of clusters, and which of the clusters they are."""
        columns = self._local(self.vocabulary, self.vocabulary + len(self.cutoffs), width)
        first = dist.get_rank(self.group) * width + columns.start - self.vocabulary
        return columns, slice(first, first + columns.stop - columns.start)

    def _local(self, begin: int, end: int, width: int) -> slice:
        before = dist.get_rank(self.group) * width
        first, last = (min(max(bound - before, 0), width) for bound in (begin, end))
        return slice(first, last)


class _Adaptive(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_LBV: Tensor, softmax: AdaptiveSoftmax) -> Tensor:
        width = logits_LBV.shape[-1]
        words, (columns, which) = softmax.words(width), softmax.clusters(width)
        values_LBV = logits_LBV.to(torch.float32, copy=True)
        compete = [[words[0], columns], *([part] for part in words[1:])]
        most_LBG = torch.stack([_largest(values_LBV, group) for group in compete], dim=-1)
        dist.all_reduce(most_LBG, dist.ReduceOp.MAX, group=softmax.group)
        found = values_LBV.new_zeros(*most_LBG.shape[:-1], 2 * len(words) - 1)  # sums of groups, logits of clusters
        for i, group in enumerate(compete):
            for part in group:
                found[..., i] += (values_LBV[..., part] - most_LBG[..., i : i + 1]).exp_().sum(-1)
        found[..., len(words) :][..., which] = values_LBV[..., columns]
        dist.all_reduce(found, group=softmax.group)
        log_sums_LBG = most_LBG + found[..., : len(words)].log()
        added_LBG = -log_sums_LBG[..., :1].expand_as(log_sums_LBG).clone()
        added_LBG[..., 1:] += found[..., len(words) :] - log_sums_LBG[..., 1:]
        for i, part in enumerate(words):
            values_LBV[..., part] += added_LBG[..., i : i + 1]
        values_LBV[..., words[-1].stop :] = -torch.inf  # clusters, and rows that pad the others
        ctx.save_for_backward(logits_LBV, log_sums_LBG)
        ctx.softmax = softmax
        return values_LBV

    @staticmethod
    def backward(ctx: Any, gradient_LBV: Tensor) -> tuple[Tensor, None]:
        logits_LBV, log_sums_LBG = ctx.saved_tensors
        softmax: AdaptiveSoftmax = ctx.softmax
        width = logits_LBV.shape[-1]
        words, (columns, which) = softmax.words(width), softmax.clusters(width)
        of_words_LBG = torch.stack([gradient_LBV[..., part].sum(-1) for part in words], dim=-1)
        dist.all_reduce(of_words_LBG, group=softmax.group)
        of_sums_LBG = of_words_LBG.clone()
        of_sums_LBG[..., 0] = of_words_LBG.sum(-1)  # what a cluster gets is a share of the first group's
        out_LBV = torch.zeros_like(logits_LBV)
        parts = [(i, part, gradient_LBV[..., part]) for i, part in enumerate(words)]
        for i, part, gradient in (*parts, (0, columns, of_words_LBG[..., 1:][..., which])):
            share = logits_LBV[..., part].to(torch.float32, copy=True).sub_(log_sums_LBG[..., i : i + 1]).exp_()
            share.mul_(-of_sums_LBG[..., i : i + 1]).add_(gradient)
            if i > 0:  # where no label is of this cluster, its words have no gradient, and optimizers may read a sign
                share.masked_fill_(share.abs() <= _CANCELLED * gradient.abs(), 0.0)
            out_LBV[..., part] = share
            del share
        return out_LBV, None


def _largest(values_LBV: Tensor, group: Sequence[slice]) -> Tensor:
    """[L, B]: the largest value of these columns; -inf without any."""
    most = values_LBV.new_full(values_LBV.shape[:-1], -torch.inf)
    for part in group:
        if part.stop > part.start:
            most = torch.maximum(most, values_LBV[..., part].amax(-1))
    return most
