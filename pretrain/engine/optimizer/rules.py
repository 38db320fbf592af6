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
    if isinstance(config.optimizer, AdamOptimizer | AdamWOptimizer):
        return None
    kind = RULES.require(config.optimizer.name)
    replica_groups = ReplicaGroups(parameters, groups, device, replicated, config.parallel.offload_optimizer)
    return kind(config.optimizer, replica_groups)


class NullOptimizer(torch.optim.Optimizer):
    """An optimizer whose step does nothing, for an engine to wrap where a `Rule` makes the update."""

    def __init__(self, groups: list[dict[str, object]], learning_rate: float) -> None:
        super().__init__(groups, {"lr": learning_rate})

    def step(self, closure: object = None) -> None:  # type: ignore[override]  # nobody gives one
        pass
