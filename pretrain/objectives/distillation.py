"""The loss of tokens, and beside it what a teacher says of the same rows: the divergence of predictions (Hinton et al.
2015, arXiv 1503.02531), the cosine distance of last hidden states (DistilBERT: Sanh et al. 2019, arXiv 1910.01108), and
distances of all layers (`matched_layers.py`).

The teacher's last states are in the micro-batch; its logits are made a chunk at a time, beside the model's own."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.last_states import LastStates
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups
from pretrain.objectives.divergence import divergence
from pretrain.objectives.matched_layers import LayerDistances
from pretrain.objectives.terms import Term
from pretrain.objectives.tokens import Tokens

_TOKENS, _KL, _COSINE = "tokens", "kl", "cosine"


class DistillationLoss(Tokens):
    """See `base.LossObjective`. Scores are those of tokens alone, which need no teacher."""

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        super().__init__(config, kernels, groups)
        settings = config.distillation
        self._temperature, self._is_causal = settings.temperature, config.model.is_causal
        self._shares_sequence, self._context_group = config.parallel.sequence, groups.context
        self._layers = LayerDistances(config, groups.tensor)
        of_teacher = {_KL: settings.kl_weight, _COSINE: settings.cosine_weight} | self._layers.weights
        self.weights = {_TOKENS: settings.label_weight} | {n: weight for n, weight in of_teacher.items() if weight}

    @property
    def scored(self) -> Sequence[str]:
        """See `base.LossObjective`."""
        return ()

    @property
    def _order(self) -> tuple[str, str]:
        """The sums of logits' judge; the first has a gradient."""
        return (_TOKENS, _KL) if self.weights[_TOKENS] or _KL not in self.weights else (_KL, _TOKENS)

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        shown = rows.loss_mask if self._is_causal else rows.attention_mask
        compared = float(rows.tokens.size if shown is None else shown.sum(dtype=float))
        (asked,) = super().counts(rows)
        known = {_TOKENS: asked} | self._layers.counts(rows)
        return [known.get(name, compared) for name in self.weights]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """See `base.LossObjective`."""
        labels_LB, mask_LB = batch.labels_BL.T.contiguous(), batch.loss_mask_BL.T
        compared_LB = self._compared(batch).T
        of_kl = factors.get(_KL, 0.0)
        from_BN = self.sources_of(batch)
        relative = of_kl / self.weights[_TOKENS] if self.weights[_TOKENS] else 0.0

        def judge(logits_LBV: Tensor, where: slice) -> tuple[Tensor, ...]:
            kl = None
            if _KL in self.weights:  # before the logits are overwritten
                logits_LBV = logits_LBV.float()  # so that the gradients of both losses are added up in fp32
                assert isinstance(batch.teacher, LastStates)
                teacher_LBV = batch.teacher.logits(where)
                kl_LB = divergence(logits_LBV, teacher_LBV, self._temperature, self.vocabulary, self._group)
                kl = (kl_LB * compared_LB[where]).sum()
            tokens, *by_source = self.judge_sums(logits_LBV, labels_LB[where], mask_LB[where], from_BN)
            if kl is None:
                return tokens, *by_source
            if not self.weights[_TOKENS]:
                return kl, tokens.detach(), *by_source
            # the gradient of all is in the first
            return tokens + relative * (kl - kl.detach()), kl.detach(), *by_source

        def judge_states(hidden_LBH: Tensor) -> Tensor:
            assert isinstance(batch.teacher, LastStates)
            if self._shares_sequence:  # all tensor ranks compute the same, so each keeps its slice's gradient
                hidden_LBH = gather_from_sequence_parallel_region(hidden_LBH, tensor_parallel_output_grad=False)
            cosine_LB = F.cosine_similarity(hidden_LBH.float(), batch.teacher.hidden_LBH.float(), dim=-1)
            return ((1 - cosine_LB) * compared_LB).sum()

        layers = batch.teacher.layers if batch.teacher is not None else None
        judges: dict[str, Any] = {"judge_states": judge_states} if _COSINE in self.weights else {}
        judges |= self._layers.judges(layers, self._compared(batch))
        return model(batch, judge=judge, **judges)

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        compared_BL = self._compared(batch)
        of_layers = self._layers.terms(outputs.judged_layers, compared_BL)
        order = self._order if _KL in self.weights else (_TOKENS,)
        sums = dict(zip(order, outputs.judged, strict=False))
        if outputs.judged_states is not None:
            sums[_COSINE] = outputs.judged_states
        for answers in outputs.other_answers:  # whose gradient is zero
            sums[_TOKENS] = sums[_TOKENS] + 0.0 * answers.float().sum()
        asked, compared = batch.loss_mask_BL.sum().int(), compared_BL.sum().int()
        of_states = {name: Term(one, asked if name == _TOKENS else compared) for name, one in sums.items()}
        by_source = self.source_terms(outputs.judged[len(order) :], batch)
        return {name: (of_states | of_layers)[name] for name in self.weights} | by_source

    def _compared(self, batch: MicroBatch) -> Tensor:
        """[B, L] float32: 1 where the model is compared with the teacher, of this context rank's positions: at the
        labels of a decoder, at an encoder's tokens that are not padding."""
        if self._is_causal:
            return batch.loss_mask_BL
        if batch.attention_mask_BS is None:
            return torch.ones_like(batch.loss_mask_BL)
        length = batch.loss_mask_BL.shape[1]
        first = dist.get_rank(self._context_group) * length
        return batch.attention_mask_BS[:, first : first + length].float()
