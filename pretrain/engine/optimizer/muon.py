"""Muon: momentum, orthogonalized matrix by matrix (Keller Jordan 2024; as in torch.optim.Muon).

    m = momentum * m + (1 - momentum) * g
    u = momentum * m + (1 - momentum) * g with Nesterov momentum, else m
    w = w - learning_rate * weight_decay * w - learning_rate * r * orthogonalized(u)

r is sqrt(max(1, R / C)) or 0.2 sqrt(max(R, C)) of an R x C matrix; `model.mup` adapts it to the width
(`model_spec.mup.muon_rate`). The matrices are the blocks that are declared of each parameter (`ParameterSpec.blocks`):
queries, keys and values are three, wherever a layout cuts their rows. What has no blocks (embeddings, heads, norms,
biases) is updated by AdamW in the same step.

Clipping and a loss scale change the lengths of gradients, which matter here only in how gradients mix in the momentum.
"""

from collections.abc import Sequence
from math import sqrt

from torch import Tensor

from pretrain.config.optimizer import MuonOptimizer
from pretrain.engine.optimizer.base import OwnedRange, Rule, UpdateRange
from pretrain.engine.optimizer.block_exchange import Block, BlockExchange, BlockSegment, find_blocks
from pretrain.engine.optimizer.newton_schulz import orthogonalize
from pretrain.model_spec.blocks import newton_schulz_flops
from pretrain.model_spec.mup import muon_rate
from pretrain.models.placement import Parameter

MOMENTUM = "momentum"
MEAN, SQUARE = "exp_avg", "exp_avg_sq"


class Muon(Rule):
    """See `base.Rule`."""

    settings: MuonOptimizer
    _exchange: BlockExchange

    def set_ranges(self, ranges: Sequence[Sequence[OwnedRange]]) -> None:
        steps = len(self.settings.steps)
        parameters = sorted(self.replica_groups.parameters.values(), key=lambda parameter: parameter.name)
        blocks = find_blocks(
            parameters, self.settings.per_head, lambda rows, columns: newton_schulz_flops(rows, columns, steps)
        )
        self._exchange = BlockExchange(blocks, ranges, self.replica_groups)

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return (MEAN, SQUARE) if parameter.spec.blocks is None else (MOMENTUM,)

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        spans = {span.parameter.value: span for span in ranges}
        for span in ranges:
            owns = self._exchange.owns(span.parameter, span.start, span.main.numel())
            assert owns, f"{span.parameter.name} has another range than was said"
            factor = self.settings.adamw_rate_factor if span.parameter.spec.blocks is None else 1.0
            if span.weight_decay:
                span.main.mul_(1 - span.learning_rate * factor * span.weight_decay)
            if span.parameter.spec.blocks is None:
                self._step_adamw(span, span.learning_rate * factor)
            else:
                span.moments[MOMENTUM].lerp_(span.gradient, 1 - self.settings.momentum)

        def read(parameter: Parameter, segment: BlockSegment) -> Tensor:
            span = spans[parameter.value]
            momentum = segment.read(span.moments[MOMENTUM])
            if not self.settings.nesterov:
                return momentum
            return segment.read(span.gradient).lerp(momentum, self.settings.momentum)

        def write(parameter: Parameter, segment: BlockSegment, values: Tensor) -> None:
            span = spans[parameter.value]
            segment.subtract(span.main, values.mul_(span.learning_rate).to(span.main.device))

        self._exchange.run(read, self._orthogonalized, write, lambda parameter: self.update_of(parameter) > 0)

    def _orthogonalized(self, blocks: Sequence[Block], stack: Tensor) -> Tensor:
        """The updates of blocks [n, R, C], at a learning rate of 1."""
        settings = self.settings
        updates = orthogonalize(stack, settings.steps, settings.eps, settings.ns_precision)
        for block, update in zip(blocks, updates, strict=True):
            update.mul_(muon_rate(settings, block.parameter.spec, *block.shape))
        return updates

    def _step_adamw(self, span: UpdateRange, rate: float) -> None:
        beta1, beta2, update = self.settings.adamw_beta1, self.settings.adamw_beta2, span.update
        mean = span.moments[MEAN].lerp_(span.gradient, 1 - beta1)
        square = span.moments[SQUARE].mul_(beta2).addcmul_(span.gradient, span.gradient, value=1 - beta2)
        eps = self.settings.adamw_eps * span.parameter.spec.eps_mult
        root = square.sqrt().div_(sqrt(1 - beta2**update)).add_(eps)
        span.main.addcdiv_(mean, root, value=-rate / (1 - beta1**update))
