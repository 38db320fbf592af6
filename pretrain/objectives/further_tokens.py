"""The loss of next tokens, and beside it those of further ones, each a mean of its own (DeepSeek-AI 2024, arXiv
2412.19437, section 2.2): the loss is the main one plus loss_scaling_factor times the mean of theirs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.mtp_tokens import mtp_rows
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups
from pretrain.objectives.terms import Term
from pretrain.objectives.tokens import Tokens


class FurtherTokens(Tokens):
    """See `base.LossObjective`. What is scored are next tokens alone."""

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        super().__init__(config, kernels, groups)
        assert config.model.mtp is not None
        self._further = [f"mtp_{depth}" for depth in range(1, config.model.mtp.num_layers + 1)]
        self._plain = list(self.weights)
        self.use_settings(config)

    def use_settings(self, config: RunConfig) -> None:
        """See `base.LossObjective`."""
        assert config.model.mtp is not None
        weight = config.model.mtp.loss_scaling_factor / config.model.mtp.num_layers
        self.weights = {**self.weights, **dict.fromkeys(self._further, weight)}

    @property
    def scored(self) -> Sequence[str]:
        """See `base.LossObjective`."""
        return self._plain[1:]

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        mask_RDS = mtp_rows(rows, len(self._further)).loss_mask_RDS
        return [*super().counts(rows), *mask_RDS.sum((0, 2), dtype=np.float64).tolist()]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """See `base.LossObjective`."""
        assert batch.mtp is not None, "the engine says which tokens follow"
        labels_DLB, masks_DLB = (
            x.permute(1, 2, 0).contiguous() for x in (batch.mtp.labels_BDS, batch.mtp.loss_mask_BDS)
        )

        def judge(labels_LB: Tensor, mask_LB: Tensor, logits_LBV: Tensor, where: slice) -> tuple[Tensor, ...]:
            entropy_LB = self._entropy(logits_LBV, labels_LB[where])
            return ((entropy_LB * mask_LB[where]).sum(),)

        judges = [partial(judge, *of_depth) for of_depth in zip(labels_DLB, masks_DLB, strict=True)]
        judged: Any = partial(model, judge_mtp=judges)
        return super().forward_train(judged, batch, factors)

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        assert batch.mtp is not None, "the engine says which tokens follow"
        counts_D = batch.mtp.loss_mask_BDS.sum((0, 2)).int()
        of_depths = zip(self._further, outputs.judged_mtp, counts_D, strict=True)
        return super().terms(outputs, batch) | {name: Term(total, count) for name, (total,), count in of_depths}
