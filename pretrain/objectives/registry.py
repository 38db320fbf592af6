"""What judges answers, by the name that an objective of the data gives (`Objective.loss`): one row each."""

import torch.distributed as dist

from data_pipeline.common.plugins import Registry
from pretrain.config.run_config import RunConfig
from pretrain.models.kernels import Kernels
from pretrain.objectives.base import LossObjective
from pretrain.objectives.next_sentence import NextSentence, SentenceOrder
from pretrain.objectives.tokens import Tokens

LOSSES: Registry[type[Tokens]] = Registry(
    "pretrain.losses",
    {"tokens": Tokens, "next_sentence": NextSentence, "sentence_order": SentenceOrder},
    Tokens,
)


def make_loss(
    config: RunConfig, kernels: Kernels, tensor_group: dist.ProcessGroup, holds_first: bool
) -> LossObjective:  # fmt: skip
    """`tensor_group`: the ranks that share the logits; `holds_first`: whether this rank's slice of a sequence is the
    first."""
    return LOSSES.require(config.objective.loss)(config, kernels, tensor_group, holds_first)
