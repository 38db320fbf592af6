"""Distances of two models layer by layer (TinyBERT: Jiao et al. 2019, arXiv 1909.10351, equations 7 to 9): of hidden
states, and of attention scores before the softmax. Scores are made of queries and keys, so no model keeps them."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.layer_states import JudgeLayers, LayerStates
from pretrain.objectives.terms import Term

HIDDEN, ATTENTION = "hidden", "attention"


class LayerDistances:
    """The terms of a loss that compare layers; none where `distillation` has no weight for them."""

    def __init__(self, config: RunConfig, group: dist.ProcessGroup) -> None:
        """`group`: tensor ranks."""
        settings = config.distillation
        self.weights = {
            name: weight
            for name, weight in ((HIDDEN, settings.hidden_weight), (ATTENTION, settings.attention_weight))
            if weight
        }
        self._heads, self._group = config.model.heads, group
        if self.weights:
            assert settings.model is not None, "the teacher is resolved"
            self._scales = config.model.score_scale, settings.model.score_scale

    def counts(self, rows: Rows) -> dict[str, float]:
        """Counts that the terms of `rows` are divided by: positions that are not padding, and pairs of them in a
        row."""
        shown = rows.attention_mask
        of_rows = np.full(len(rows.tokens), rows.tokens.shape[1]) if shown is None else shown.sum(axis=1)
        counts = {HIDDEN: float(of_rows.sum()), ATTENTION: float(np.square(of_rows.astype(float)).sum())}
        return {name: counts[name] for name in self.weights}

    def judges(self, teacher: LayerStates | None, compared_BL: Tensor) -> dict[str, JudgeLayers]:
        """Keyword arguments of a network for these terms. `compared_BL`: 1 at positions that are not padding."""
        if not self.weights:
            return {}
        assert teacher is not None, "the teacher has read the rows"
        compared_SB = compared_BL.T

        def judge(states: LayerStates) -> tuple[Tensor, ...]:
            found = []
            if HIDDEN in self.weights:
                found.append(_hidden_distance(states, teacher, compared_SB))
            if ATTENTION in self.weights:
                distance = _score_distance(states, teacher, compared_SB, self._scales)
                total: Tensor = reduce_from_tensor_model_parallel_region(distance, group=self._group)
                found.append(total / self._heads)
            return tuple(found)

        return {"judge_layers": judge}

    def terms(self, sums: Sequence[Tensor], compared_BL: Tensor) -> dict[str, Term]:
        """The terms of a micro-batch, of what the judge returned."""
        if not self.weights:
            return {}
        counts = {HIDDEN: compared_BL.sum().int(), ATTENTION: compared_BL.sum(dim=1).square().sum().int()}
        return {name: Term(one, counts[name]) for name, one in zip(self.weights, sums, strict=True)}


def _hidden_distance(ours: LayerStates, teacher: LayerStates, compared_SB: Tensor) -> Tensor:
    """The mean square difference of hidden states at each position that is compared, of the embeddings and of each
    layer, summed over all."""
    total = torch.zeros((), device=compared_SB.device)

    def distance(own_SBH: Tensor, teacher_SBH: Tensor) -> Tensor:
        return ((own_SBH.float() - teacher_SBH.float()).square().mean(dim=-1) * compared_SB).sum()

    for of_layer in zip(ours.hidden_KSBH, teacher.hidden_KSBH, strict=True):
        total = total + checkpoint(distance, *of_layer, use_reentrant=False, preserve_rng_state=False)
    return total


def _score_distance(
    ours: LayerStates, teacher: LayerStates, compared_SB: Tensor, scales: tuple[float, float]
) -> Tensor:  # fmt: skip
    """The square difference of the scores of each pair of positions that are compared, summed over all layers and this
    tensor rank's heads. `scales` are the factors of both models' scores."""
    compared_BS = compared_SB.T
    pairs_B1QK = (compared_BS[:, :, None] * compared_BS[:, None, :])[:, None]
    total = torch.zeros((), device=compared_SB.device)

    def distance(q: Tensor, k: Tensor, teacher_q: Tensor, teacher_k: Tensor) -> Tensor:
        off_BHQK = _scores(q, k, scales[0]) - _scores(teacher_q, teacher_k, scales[1])
        return (off_BHQK.square() * pairs_B1QK).sum()

    for of_layer in zip(ours.queries, ours.keys, teacher.queries, teacher.keys, strict=True):
        # The scores of one layer at a time are in memory, in the backward pass too.
        total = total + checkpoint(distance, *of_layer, use_reentrant=False, preserve_rng_state=False)
    return total


def _scores(query_SBHD: Tensor, key_SBHD: Tensor, scale: float) -> Tensor:
    """[B, H, Q, K]"""
    return torch.einsum("qbhd,kbhd->bhqk", query_SBHD.float() * scale, key_SBHD.float())
