"""Lion: steps of one size, in the direction of a momentum's signs (Chen et al. 2023, arXiv 2302.06675, algorithm 2).

    w = w - learning_rate * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * w)
    m = beta2 * m + (1 - beta2) * g

The momentum m starts at zero and has no bias correction: only the sign of a sum with it counts.
"""

from collections.abc import Sequence

from pretrain.config.optimizer import LionOptimizer
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.models.placement import Parameter

MOMENTUM = "exp_avg"


class Lion(Rule):
    """See `base.Rule`. Each weight is updated by itself."""

    settings: LionOptimizer

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return (MOMENTUM,)

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        for span in ranges:
            momentum = span.moments[MOMENTUM]
            direction = momentum.lerp(span.gradient, 1 - self.settings.beta1).sign_()
            if span.weight_decay:
                span.main.mul_(1 - span.learning_rate * span.weight_decay)
            span.main.sub_(direction, alpha=span.learning_rate)
            momentum.lerp_(span.gradient, 1 - self.settings.beta2)
