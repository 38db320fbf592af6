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
    first_row: int = 0
    """the number that dropout knows it by: see pretrain/dropout.py"""


class Causal:
    """`vocabulary`: real token ids; `group`: the tensor ranks that share the logits."""

    def __init__(self, vocabulary: int, group: dist.ProcessGroup) -> None:
        self.vocabulary, self.group = vocabulary, group

    def forward(self, model: nn.Module, batch: MicroBatch, cache: Any = None) -> Tensor:
        """Hidden states for the next stage, or logits on the last one: [S, B, V / tensor ranks]; with a key-value
        `cache` [B, 1, V] for the last position."""
        if cache is None:
            return model(batch.tokens_BS, batch.positions_BS, None, labels=batch.labels_BS)
        return model(batch.tokens_BS, batch.positions_BS, None, inference_context=cache, runtime_gather_output=True)

    def next_token(self, logits_B1V: Tensor) -> Tensor:
        """The most probable next token id [B], from gathered logits."""
        return logits_B1V[:, -1, : self.vocabulary].argmax(dim=-1)

    def loss(self, logits_SBV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(sum of token losses in nats, number of loss-bearing tokens as int32). Overwrites the logits."""
        losses_SB = vocab_parallel_cross_entropy(self._real(logits_SBV), batch.labels_BS.T.contiguous())
        return (losses_SB * batch.loss_mask_BS.T).sum(), batch.loss_mask_BS.sum().int()

    def score(self, logits_SBV: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log probability of each label [B, S], whether it is the most probable token [B, S])."""
        labels_SB = batch.labels_BS.T.contiguous()
        greedy_SB = self._most_probable(logits_SBV) == labels_SB
        return -vocab_parallel_cross_entropy(self._real(logits_SBV), labels_SB).T, greedy_SB.T

    def _most_probable(self, logits_SBV: Tensor) -> Tensor:
        """The most probable token id [S, B] over all tensor ranks; the lowest id among equals."""
        best_SB, id_SB = self._real(logits_SBV).max(dim=-1)
        id_SB = id_SB + dist.get_rank(self.group) * logits_SBV.shape[-1]
        if dist.get_world_size(self.group) == 1:
            return id_SB
        bests, ids = ([torch.empty_like(x) for _ in range(dist.get_world_size(self.group))] for x in (best_SB, id_SB))
        dist.all_gather(bests, best_SB, group=self.group)
        dist.all_gather(ids, id_SB, group=self.group)
        winner_SB = torch.stack(bests).argmax(dim=0, keepdim=True)
        return torch.stack(ids).gather(0, winner_SB)[0]

    def _real(self, logits_SBV: Tensor) -> Tensor:
        """The logits with padding columns at minus infinity, in place. Autograd need not know (`data`), since their
        gradient from the cross entropy is their probability, zero; told, it would copy all the logits twice."""
        real = self.vocabulary - dist.get_rank(self.group) * logits_SBV.shape[-1]
        logits_SBV.data[..., max(0, real) :] = -torch.inf
        return logits_SBV
