"""What a model should say at its positions: model + micro-batch -> (loss sum, token count).

Sums and counts travel; the engine divides the gradient once, by the count of the global batch. Rows of the embedding
that pad the vocabulary take no part in the softmax. Which positions count, and what they should say, is in the batch:
the next token, a masked one, a target.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor, nn

from pretrain.models.inputs import MicroBatch


class Tokens:
    """`vocabulary`: real token ids; `group`: the tensor ranks that share the logits; `holds_first`: whether this rank's
    slice of a sequence is the first; `smoothing`: see `Objective.label_smoothing`."""

    def __init__(self, vocabulary: int, group: dist.ProcessGroup, holds_first: bool, smoothing: float = 0.0) -> None:
        self.vocabulary, self.group, self.holds_first, self.smoothing = vocabulary, group, holds_first, smoothing

    def forward(self, model: nn.Module, batch: MicroBatch, cache: Any = None) -> Any:
        """Hidden states for the next stage, or on the last one logits [L, B, V / tensor ranks] (with two segments, and
        [B, 2] of whether the second follows); with a key-value `cache`, of positions that follow those it holds."""
        return model(batch) if cache is None else model(batch, cache)

    def next_token(self, logits_1BV: Tensor) -> Tensor:
        """The most probable next token id [B], on every tensor rank."""
        return self._most_probable(logits_1BV)[-1]

    def log_probabilities(self, logits_LBV: Tensor) -> Tensor:
        """[L, B, vocabulary] float32, nats, on every tensor rank."""
        parts = [torch.empty_like(logits_LBV) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(parts, logits_LBV.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)[..., : self.vocabulary].float().log_softmax(dim=-1)

    def loss(self, outputs: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(sum of losses in nats, number of loss-bearing tokens as int32). Overwrites the logits. Besides a token's,
        there is the loss of each row's answer whether its second segment follows, times `next_sentence_weight`."""
        logits_LBV, next_sentence_B2 = outputs if isinstance(outputs, tuple) else (outputs, None)
        labels_LB = batch.labels_BL.T.contiguous()
        spread_LB: Tensor | float = 0.0
        if self.smoothing:  # before the logits are overwritten
            spread_LB = _AboveMean.apply(logits_LBV, labels_LB, self.vocabulary, self.group)
        losses_LB = vocab_parallel_cross_entropy(self._real(logits_LBV), labels_LB) + self.smoothing * spread_LB
        total = (losses_LB * batch.loss_mask_BL.T).sum()
        if (
            next_sentence_B2 is not None
        ):  # at the first position, which one context rank has; the others' counts as nothing
            asked = batch.next_sentence_B is not None and self.holds_first
            target = (
                batch.next_sentence_B if batch.next_sentence_B is not None else torch.zeros_like(batch.tokens_BS[:, 0])
            )
            answers = F.cross_entropy(next_sentence_B2.float(), target, reduction="sum")
            total = total + answers * (batch.next_sentence_weight if asked else 0.0)
        return total, batch.loss_mask_BL.sum().int()

    def score(self, outputs: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log probability of each label [B, L], whether it is the most probable token [B, L])."""
        logits_LBV = outputs[0] if isinstance(outputs, tuple) else outputs
        labels_LB = batch.labels_BL.T.contiguous()
        greedy_LB = self._most_probable(logits_LBV) == labels_LB
        return -vocab_parallel_cross_entropy(self._real(logits_LBV), labels_LB).T, greedy_LB.T

    def _most_probable(self, logits_LBV: Tensor) -> Tensor:
        """The most probable token id [L, B] over all tensor ranks; the lowest id among equals."""
        best_LB, id_LB = self._real(logits_LBV).max(dim=-1)
        id_LB = id_LB + dist.get_rank(self.group) * logits_LBV.shape[-1]
        if dist.get_world_size(self.group) == 1:
            return id_LB
        bests, ids = ([torch.empty_like(x) for _ in range(dist.get_world_size(self.group))] for x in (best_LB, id_LB))
        dist.all_gather(bests, best_LB, group=self.group)
        dist.all_gather(ids, id_LB, group=self.group)
        winner_LB = torch.stack(bests).argmax(dim=0, keepdim=True)
        return torch.stack(ids).gather(0, winner_LB)[0]

    def _real(self, logits_LBV: Tensor) -> Tensor:
        """The logits with padding columns at minus infinity, in place. Autograd need not know (`data`), since their
        gradient from the cross entropy is their probability, zero; told, it would copy all the logits twice."""
        real = self.vocabulary - dist.get_rank(self.group) * logits_LBV.shape[-1]
        logits_LBV.data[..., max(0, real) :] = -torch.inf
        return logits_LBV


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
    def backward(ctx: Any, gradient_LB: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        own_LB, there_LB = ctx.saved_tensors
        grad_LBV = gradient_LB.new_zeros(ctx.shape, dtype=ctx.dtype)
        grad_LBV[..., : ctx.real] = (-gradient_LB / ctx.vocabulary)[..., None].to(ctx.dtype)
        flat = grad_LBV.view(-1, ctx.shape[-1])  # written to, not added to: which CUDA would do in any order
        flat[torch.arange(len(flat), device=flat.device), there_LB.flatten()] += (
            (gradient_LB * own_LB).flatten().to(ctx.dtype)
        )
        return grad_LBV, None, None, None
