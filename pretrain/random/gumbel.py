"""Samples from logits as a function of (seed, step, row of the global batch, position), and of nothing else.

The token with the largest sum of its logit and Gumbel noise is a sample of the softmax (Gumbel 1954; Maddison et al.
2014, arXiv 1411.0030). The noise of a token is a hash of its coordinates, of 32 bits, so every layout draws the same
tokens, up to ties within the rounding of logits.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.random.dropout import key
from pretrain.random.hashing import GAMMA, fold, mix, shifted

_SITE = (key("generator.samples") + 2**63) % 2**64 - 2**63  # as int64 holds it


def gumbel_noise(rows_N: Tensor, positions_N: Tensor, first: int, count: int) -> Tensor:
    """[N, count] float64: the noise of tokens [first, first + count) at N places, each given by an int64 key of its row
    and its position in it."""
    hashed_N = mix(mix(rows_N + _SITE) + positions_N * GAMMA)
    bits = shifted(fold(hashed_N, first, count), 32)
    return -(-((bits.double() + 0.5) * 2.0**-32).log()).log()


def sample(
    logits_NV: Tensor, rows_N: Tensor, positions_N: Tensor, *, vocabulary: int, at_once: int, group: dist.ProcessGroup
) -> Tensor:  # fmt: skip
    """[N] int64: one token of each place, the same on all tensor ranks (`group`), of which each has V logits. Rows that
    pad the vocabulary are never drawn. There is noise for `at_once` places at a time."""
    width = logits_NV.shape[-1]
    first = dist.get_rank(group) * width
    real = min(width, max(0, vocabulary - first))
    best_N = torch.full(rows_N.shape, -torch.inf, dtype=torch.float64, device=logits_NV.device)
    token_N = torch.full_like(rows_N, first)
    for begin in range(0, len(rows_N) if real else 0, at_once):
        some = slice(begin, begin + at_once)
        noise = gumbel_noise(rows_N[some], positions_N[some], first, real)
        best_N[some], index_N = noise.add_(logits_NV[some, :real].detach()).max(dim=-1)
        token_N[some] = index_N + first
    if dist.get_world_size(group) == 1:
        return token_N
    bests, tokens = ([torch.empty_like(x) for _ in range(dist.get_world_size(group))] for x in (best_N, token_N))
    dist.all_gather(bests, best_N, group=group)
    dist.all_gather(tokens, token_N, group=group)
    winner_N = torch.stack(bests).argmax(dim=0, keepdim=True)
    return torch.stack(tokens).gather(0, winner_N)[0]
