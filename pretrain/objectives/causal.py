"""Next-token prediction: model + micro-batch -> (loss sum, token count).

Sums and counts travel; the engine divides the gradient once, by the count of the global batch. Rows of the embedding
that pad the vocabulary take no part in the softmax.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor, nn


@dataclass(frozen=True)
class MicroBatch:
    """Tensors on the engine's device. B rows, S positions."""

    tokens_BS: Tensor
    labels_BS: Tensor
    loss_mask_BS: Tensor
    positions_BS: Tensor


class Causal:
    """`vocabulary`: real token ids; `group`: the tensor ranks that share the logits."""

    def __init__(self, vocabulary: int, group: dist.ProcessGroup) -> None:
        self.vocabulary, self.group = vocabulary, group

    def forward(self, model: nn.Module, batch: MicroBatch, cache: Any = None) -> Tensor:
        """Hidden states for the next stage, or logits on the last one: [B, S, V / tensor ranks]; with a key-value
        `cache` [B, 1, V] for the last position."""
        return model(
            batch.tokens_BS, batch.positions_BS, None, inference_context=cache, runtime_gather_output=cache is not None
        )

    def next_token(self, logits_B1V: Tensor) -> Tensor:
        """The most probable next token id [B], from gathered logits."""
        return logits_B1V[:, -1, : self.vocabulary].argmax(dim=-1)

    def loss(self, logits_BSV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(sum of token losses in nats, number of loss-bearing tokens as int32). Overwrites the logits."""
        losses_BS = vocab_parallel_cross_entropy(self._real(logits_BSV), batch.labels_BS)
        return (losses_BS * batch.loss_mask_BS).sum(), batch.loss_mask_BS.sum().int()

    def score(self, logits_BSV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log probability of each label [B, S], whether it is the most probable token [B, S])."""
        greedy_BS = self._most_probable(logits_BSV) == batch.labels_BS
        return -vocab_parallel_cross_entropy(self._real(logits_BSV), batch.labels_BS), greedy_BS

    def _most_probable(self, logits_BSV: Tensor) -> Tensor:
        """The most probable token id [B, S] over all tensor ranks; the lowest id among equals."""
        best_BS, id_BS = self._real(logits_BSV).max(dim=-1)
        id_BS = id_BS + dist.get_rank(self.group) * logits_BSV.shape[-1]
        if dist.get_world_size(self.group) == 1:
            return id_BS
        bests, ids = ([torch.empty_like(x) for _ in range(dist.get_world_size(self.group))] for x in (best_BS, id_BS))
        dist.all_gather(bests, best_BS, group=self.group)
        dist.all_gather(ids, id_BS, group=self.group)
        winner_BS = torch.stack(bests).argmax(dim=0, keepdim=True)
        return torch.stack(ids).gather(0, winner_BS)[0]

    def _real(self, logits_BSV: Tensor) -> Tensor:
        """The logits with padding columns at minus infinity, in place."""
        width = logits_BSV.shape[-1]
        real = self.vocabulary - dist.get_rank(self.group) * width
        return logits_BSV if real >= width else _MaskColumns.apply(logits_BSV, max(0, real))


class _MaskColumns(torch.autograd.Function):
    """Fills columns from `start` with minus infinity, without a copy. Their gradient from the cross entropy is their
    probability, zero, so the gradient passes through as it is."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, start: int) -> Tensor:
        logits[..., start:] = -torch.inf
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None
