"""Stochastic gradient descent with momentum: the update."""

from collections.abc import Sequence

from example_plugin.optimizer import SgdSettings
from pretrain.engine.optimizer.base import Due, Rule
from pretrain.models.placement import Parameter


class Sgd(Rule):
    settings: SgdSettings

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return ("momentum",)

    def apply(self, ranges: Sequence[Due], learning_rate: float) -> None:
        for due in ranges:
            momentum = due.moments["momentum"].mul_(self.settings.momentum).add_(due.gradient)
            if due.parameter.declared.decays:
                due.main.mul_(1 - learning_rate * self.settings.weight_decay)
            due.main.add_(momentum, alpha=-learning_rate)
