"""The loss of classes, and beside it what a fine-tuned teacher says of the same rows: its soft labels (Hinton et al.
2015, arXiv 1503.02531), and its layers (`matched_layers.py`). Both are TinyBERT's second stage (Jiao et al. 2019, arXiv
1909.10351, equation 10)."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data_pipeline.batch import Rows
from pretrain.config.run_config import RunConfig
from pretrain.models.inputs import MicroBatch
from pretrain.models.kernels import Kernels
from pretrain.models.last_states import LastAnswers
from pretrain.models.outputs import ModelOutputs
from pretrain.objectives.base import LossGroups
from pretrain.objectives.matched_layers import LayerDistances
from pretrain.objectives.task_heads import ClassLoss
from pretrain.objectives.terms import Term

_KL = "kl"


class TaskDistillationLoss(ClassLoss):
    """See `base.LossObjective`. Scores are those of classes alone, which need no teacher."""

    def __init__(self, config: RunConfig, kernels: Kernels, groups: LossGroups) -> None:
        super().__init__(config, kernels, groups)
        settings = config.distillation
        self._temperature, self._layers = settings.temperature, LayerDistances(config, groups.tensor)
        soft = {_KL: settings.kl_weight} if settings.kl_weight else {}
        self.weights = {self.term: settings.label_weight} | soft | self._layers.weights

    @property
    def scored(self) -> Sequence[str]:
        """See `base.LossObjective`."""
        return ()

    def counts(self, rows: Rows) -> Sequence[float]:
        """See `base.LossObjective`."""
        (asked,) = super().counts(rows)
        of_layers = self._layers.counts(rows)
        return [of_layers.get(name, asked) for name in self.weights]

    def forward_train(self, model: nn.Module, batch: MicroBatch, factors: Mapping[str, float]) -> Any:
        """See `base.LossObjective`."""
        layers = batch.teacher.layers if batch.teacher is not None else None
        return model(batch, **self._layers.judges(layers, _shown(batch)))

    def terms(self, outputs: ModelOutputs, batch: MicroBatch) -> dict[str, Term]:
        """See `base.LossObjective`."""
        found = super().terms(outputs, batch)
        if _KL in self.weights:
            found[_KL] = Term((self._soft_losses(outputs, batch) * batch.loss_mask_BL).sum(), found[self.term].count)
        found |= self._layers.terms(outputs.judged_layers, _shown(batch))
        return {name: found[name] for name in self.weights}

    def _soft_losses(self, outputs: ModelOutputs, batch: MicroBatch) -> Tensor:
        """[B, L] nats: the divergence from the teacher's classes, times temperature^2."""
        assert isinstance(batch.teacher, LastAnswers)
        ours, theirs = (
            (self._answers(one, batch) / self._temperature).log_softmax(dim=-1)
            for one in (outputs.answers, batch.teacher.answers_LBK)
        )
        return F.kl_div(ours, theirs, reduction="none", log_target=True).sum(dim=-1) * self._temperature**2


def _shown(batch: MicroBatch) -> Tensor:
    """[B, L] 1 at positions that are not padding."""
    shown = batch.attention_mask_BS
    return torch.ones_like(batch.loss_mask_BL) if shown is None else shown.float()
