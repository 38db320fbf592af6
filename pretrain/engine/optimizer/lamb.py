"""LAMB: Adam's direction, as long as each parameter is (You et al. 2019, arXiv 1904.00962, algorithm 2).

    u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * w
    w = w - learning_rate * |w| / |u| * u

The paper's phi is the identity, its layers are parameters: a matrix as it lies in a checkpoint (so queries, keys and
values of a layer are one), with |w| and |u| over all of it wherever its pieces are. Biases and norms are not adapted
(ratio 1) and don't decay, as in the authors' BERT. A parameter of zeros, or without an update, has ratio 1.
"""

from collections.abc import Sequence
from math import sqrt

from torch import Tensor

from pretrain.config.optimizer import LambOptimizer
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.models.placement import Parameter


class Lamb(Rule):
    """See `base.Rule`."""

    settings: LambOptimizer

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return ("exp_avg", "exp_avg_sq")

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        beta1, beta2 = self.settings.beta1, self.settings.beta2
        for span in ranges:
            span.moments["exp_avg"].mul_(beta1).add_(span.gradient, alpha=1 - beta1)
            span.moments["exp_avg_sq"].mul_(beta2).addcmul_(span.gradient, span.gradient, value=1 - beta2)
        squares = self._squares(ranges, self._direction)
        for span in ranges:
            ratio = _ratio(*squares[span.parameter.name]) if span.parameter.spec.is_matrix else 1.0
            span.main.sub_(self._direction(span), alpha=span.learning_rate * ratio)

    def _direction(self, span: UpdateRange) -> Tensor:
        settings, step = self.settings, span.update
        mean = span.moments["exp_avg"] / (1 - settings.beta1**step)
        root = (span.moments["exp_avg_sq"] / (1 - settings.beta2**step)).sqrt_()
        direction = mean.div_(root.add_(settings.eps * span.parameter.spec.eps_mult))
        return direction.add_(span.main, alpha=span.weight_decay) if span.weight_decay else direction


def _ratio(weights: float, direction: float) -> float:
    """Ratio of the norms, given their squares."""
    return sqrt(weights / direction) if weights > 0 and direction > 0 else 1.0
