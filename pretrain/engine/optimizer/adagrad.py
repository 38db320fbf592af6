"""Adagrad: each weight at a rate that falls with all that its gradients have been (Duchi et al. 2011, JMLR 12, figure
1; with the sum's beginning of TensorFlow's AdagradOptimizer).

    s = s + g^2
    w = w - learning_rate * (g / (sqrt(initial + s) + eps) + weight_decay * w)

The sum s is kept without what it begins with, so that a state of zeros is one that has seen nothing.
"""

from collections.abc import Sequence

from pretrain.config.optimizer import AdagradOptimizer
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.models.placement import Parameter

SUM = "sum_sq"


class Adagrad(Rule):
    """See `base.Rule`. Each weight is updated by itself."""

    settings: AdagradOptimizer

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return (SUM,)

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        for span in ranges:
            sums = span.moments[SUM].addcmul_(span.gradient, span.gradient)
            eps = self.settings.eps * span.parameter.spec.eps_mult
            root = (sums + self.settings.initial_accumulator_value).sqrt_().add_(eps)
            if span.weight_decay:
                span.main.mul_(1 - span.learning_rate * span.weight_decay)
            span.main.addcdiv_(span.gradient, root, value=-span.learning_rate)
