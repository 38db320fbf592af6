"""What judges answers, by the name that an objective of the data gives (`Objective.loss`): one row each."""

from data_pipeline.common.plugins import Registry
from pretrain.config.run_config import RunConfig
from pretrain.models.kernels import Kernels
from pretrain.objectives.base import LossGroups, LossObjective
from pretrain.objectives.next_sentence import NextSentence, SentenceOrder
from pretrain.objectives.task_heads import ClassLoss, SpanLoss, SquaredErrorLoss
from pretrain.objectives.tokens import Tokens

LOSSES: Registry[type[LossObjective]] = Registry(
    "pretrain.losses",
    {
        "tokens": Tokens,
        "next_sentence": NextSentence,
        "sentence_order": SentenceOrder,
        "classes": ClassLoss,
        "regression": SquaredErrorLoss,
        "spans": SpanLoss,
    },
    LossObjective,
)


def make_loss(config: RunConfig, kernels: Kernels, groups: LossGroups) -> LossObjective:
    """The loss of a config's objective on this rank."""
    return LOSSES.require(config.objective.loss)(config, kernels, groups)
