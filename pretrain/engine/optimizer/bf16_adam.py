"""Adam with moments in bf16 (`optimizer.moments`): 4 bytes less for each weight than in fp32.

Each update is that of `adam.py`, in fp32, a block at a time; the new moments are rounded once, stochastically
(`random/rounding.py`). Rounded to the nearest value, the second moment would hardly change where `beta2` is near 1. The
random bits of an element depend on the seed, the update, the parameter's name and the place in it, so that they are the
same on every layout and after every restart.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam as functional_adam

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer
from pretrain.engine.boxes import boxes
from pretrain.engine.optimizer.adam import MOMENTS, counted
from pretrain.engine.optimizer.base import Rule, UpdateRange
from pretrain.engine.optimizer.totals import ReplicaGroups
from pretrain.models.placement import Parameter
from pretrain.random.rounding import random_bits, round_into

_BLOCK = 1 << 20
"""elements that are updated at a time, which bounds the memory that it takes"""


class Bf16Adam(Rule):
    """See `base.Rule`. Each weight is updated by itself."""

    settings: AdamOptimizer | AdamWOptimizer
    moment_dtype = torch.bfloat16

    def __init__(self, settings: AdamOptimizer | AdamWOptimizer, replica_groups: ReplicaGroups, seed: int) -> None:
        super().__init__(settings, replica_groups)
        self._seed = seed

    def moment_names(self, parameter: Parameter) -> Sequence[str]:
        return MOMENTS

    def apply(self, ranges: Sequence[UpdateRange]) -> None:
        for span in ranges:
            for begin in range(0, span.main.numel(), _BLOCK):
                self._update_block(span, begin)

    def _update_block(self, span: UpdateRange, begin: int) -> None:
        settings, block = self.settings, slice(begin, begin + _BLOCK)
        main, gradient = span.main[block], span.gradient[block]
        moments = [span.moments[name][block] for name in MOMENTS]
        mean, square = (moment.float() for moment in moments)
        functional_adam(
            [main],
            [gradient],
            [mean],
            [square],
            [],
            [torch.full((), counted(settings, span.update - 1), device=main.device)],
            fused=True,
            decoupled_weight_decay=settings.name == "adamw",
            amsgrad=False,
            beta1=settings.beta1,
            beta2=settings.beta2,
            lr=span.learning_rate,
            weight_decay=span.weight_decay,
            eps=settings.eps * span.parameter.spec.eps_mult,
            maximize=False,
        )
        bits = self._random_bits(span, begin, len(main))
        for moment, value, of_moment in zip(moments, (mean, square), bits.unbind(1), strict=False):
            round_into(moment, value, of_moment)

    def _random_bits(self, span: UpdateRange, begin: int, count: int) -> Tensor:
        """[count, 4] int16: random bits for the values of a range from its value `begin` on."""
        parameter = span.parameter
        name = f"moments/{self._seed}/{span.update}/{parameter.name}"
        found = boxes(span.start + begin, count, parameter.local_shape, parameter.offset)
        return torch.cat([random_bits(name, box.offset, box.shape, span.main.device) for box in found])
