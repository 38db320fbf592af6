"""Distances of two models layer by layer (TinyBERT: Jiao et al. 2019, arXiv 1909.10351, equations 7 to 9): of hidden
states, and of attention scores before the softmax. Scores are made of queries and keys, so no model keeps them."""

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pretrain.models.layer_states import LayerStates


def hidden_distance(ours: LayerStates, teacher: LayerStates, compared_SB: Tensor) -> Tensor:
    """The mean square difference of hidden states at each position that is compared, of the embeddings and of each
    layer, summed over all."""
    off_KSBH = ours.hidden_KSBH.float() - teacher.hidden_KSBH.float()
    return (off_KSBH.square().mean(dim=-1) * compared_SB).sum()


def score_distance(
    ours: LayerStates,
    teacher: LayerStates,
    compared_SB: Tensor,
    *,
    scales: tuple[float, float],
    heads: int,
    group: dist.ProcessGroup,
) -> Tensor:  # fmt: skip
    """The mean square difference over `heads` of the scores of each pair of positions that are compared, of each layer,
    summed over all. `scales` are the factors of both models' scores; tensor ranks, `group`, have some heads each."""
    compared_BS = compared_SB.T
    pairs_B1QK = (compared_BS[:, :, None] * compared_BS[:, None, :])[:, None]
    total = torch.zeros((), device=compared_SB.device)

    def distance(q: Tensor, k: Tensor, teacher_q: Tensor, teacher_k: Tensor) -> Tensor:
        off_BHQK = _scores(q, k, scales[0]) - _scores(teacher_q, teacher_k, scales[1])
        return (off_BHQK.square() * pairs_B1QK).sum()

    for of_layer in zip(ours.queries, ours.keys, teacher.queries, teacher.keys, strict=True):
        # The scores of one layer at a time are in memory, in the backward pass too.
        total = total + checkpoint(distance, *of_layer, use_reentrant=False, preserve_rng_state=False)
    found: Tensor = reduce_from_tensor_model_parallel_region(total, group=group)
    return found / heads


def _scores(query_SBHD: Tensor, key_SBHD: Tensor, scale: float) -> Tensor:
    """[B, H, Q, K]"""
    return torch.einsum("qbhd,kbhd->bhqk", query_SBHD.float() * scale, key_SBHD.float())
