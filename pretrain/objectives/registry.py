"""Losses that judge answers, by the name that an objective of the data gives (`Objective.loss`): one row each."""

from data_pipeline.common.plugins import Registry
from pretrain.config.run_config import RunConfig
from pretrain.models.kernels import Kernels
from pretrain.objectives.base import LossGroups, LossObjective
from pretrain.objectives.distillation import DistillationLoss
from pretrain.objectives.further_tokens import FurtherTokens
from pretrain.objectives.next_sentence import NextSentence, SentenceOrder
from pretrain.objectives.replaced_tokens import ReplacedTokensLoss
from pretrain.objectives.task_distillation import TaskDistillationLoss
from pretrain.objectives.task_heads import ChoiceLoss, ClassLoss, SpanLoss, SquaredErrorLoss
from pretrain.objectives.tokens import Tokens
from pretrain.objectives.with_language_model import WithLanguageModel

LOSSES: Registry[type[LossObjective]] = Registry(
    "pretrain.losses",
    {
        "tokens": Tokens,
        "next_sentence": NextSentence,
        "sentence_order": SentenceOrder,
        "classes": ClassLoss,
        "regression": SquaredErrorLoss,
        "spans": SpanLoss,
        "choice": ChoiceLoss,
        "replaced_tokens": ReplacedTokensLoss,
    },
    LossObjective,
)


def make_loss(config: RunConfig, kernels: Kernels, groups: LossGroups) -> LossObjective:
    """The loss of a config's objective on this rank, and of its teacher if it has one."""
    if config.distillation.teacher is not None:
        loss_of_teacher = TaskDistillationLoss if config.objective.loss == "classes" else DistillationLoss
        return loss_of_teacher(config, kernels, groups)
    if config.model.mtp is not None:
        return FurtherTokens(config, kernels, groups)
    loss = LOSSES.require(config.objective.loss)(config, kernels, groups)
    weight: float = getattr(config.objective, "language_model_weight", 0.0)
    return WithLanguageModel(config, kernels, groups, loss, weight) if weight else loss
