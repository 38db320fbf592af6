"""Stochastic gradient descent with momentum: the update."""

from collections.abc import Sequence

from example_plugin.optimizer import SgdSettings
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.models.placement import Parameter


class Sgd(Rule):
    settings: SgdSettings

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return ("momentum",)

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        for span in ranges:
            momentum = span.moments["momentum"].mul_(self.settings.momentum).add_(span.gradient)
            span.main.mul_(1 - span.learning_rate * span.weight_decay)
            span.main.add_(momentum, alpha=-span.learning_rate)
