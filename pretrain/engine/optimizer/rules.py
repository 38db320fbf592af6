"""Update rules of our own, by name. A new one is one file here and one row."""

from collections.abc import Sequence

import torch

from data_pipeline.common.plugins import Registry
from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer
from pretrain.config.run_config import RunConfig
from pretrain.engine.groups import Groups
from pretrain.engine.optimizer.adafactor import Adafactor
from pretrain.engine.optimizer.adagrad import Adagrad
from pretrain.engine.optimizer.base import Rule
from pretrain.engine.optimizer.bf16_adam import Bf16Adam
from pretrain.engine.optimizer.lamb import Lamb
from pretrain.engine.optimizer.lion import Lion
from pretrain.engine.optimizer.muon import Muon
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.models.placement import Parameter

RULES: Registry[type[Rule]] = Registry(
    "pretrain.update_rules",
    {"lamb": Lamb, "adafactor": Adafactor, "adagrad": Adagrad, "lion": Lion, "muon": Muon},
    Rule,
)


def find_rule(
    config: RunConfig, parameters: Sequence[Parameter], groups: Groups, device: torch.device, replicated: bool
) -> Rule | None:
    """The config's, of a rank that holds `parameters`; None for those that are torch's (`adam.py`). `replicated`: see
    `Sharding`."""
    settings = config.optimizer
    if isinstance(settings, AdamOptimizer | AdamWOptimizer) and settings.moments == "fp32":
        return None
    replica_groups = ReplicaGroups(parameters, groups, device, replicated, config.parallel.offload_optimizer)
    if isinstance(settings, AdamOptimizer | AdamWOptimizer):
        return Bf16Adam(settings, replica_groups, config.run.seed)
    return RULES.require(settings.name)(settings, replica_groups)


class NullOptimizer(torch.optim.Optimizer):
    """An optimizer whose step does nothing, for an engine to wrap where a `Rule` makes the update."""

    def __init__(self, groups: list[dict[str, object]], learning_rate: float) -> None:
        super().__init__(groups, {"lr": learning_rate})

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # nobody gives one
        pass
