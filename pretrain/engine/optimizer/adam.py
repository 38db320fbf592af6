"""Adam, decoupled weight decay or not: torch's fused kernel, in which each weight is updated by itself.

`adamw`: Loshchilov and Hutter 2017, arXiv 1711.05101. `adam`: Kingma and Ba 2014, arXiv 1412.6980, weight decay being
an L2 penalty, part of the gradient.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer, Optimizer
from pretrain.models.placement import Parameter

MOMENTS = ("exp_avg", "exp_avg_sq")


def adam(settings: AdamOptimizer | AdamWOptimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, settings.learning_rate, (settings.beta1, settings.beta2), settings.eps, fused=True)


def parameter_groups(settings: Optimizer, parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Weight decay of those that are declared to decay."""
    decayed = [p.value for p in parameters if p.spec.decays]
    plain = [p.value for p in parameters if not p.spec.decays]
    decays = ((decayed, settings.weight_decay), (plain, 0.0))
    return [{"params": values, "weight_decay": decay} for values, decay in decays if values]


def adam_state(main: Tensor) -> dict[str, Tensor]:
    """Before the first step: zeros. torch would make it lazily, too late to load into."""
    return {
        "step": torch.tensor(0.0, device=main.device),  # where torch's fused kernel wants it
        **{name: torch.zeros_like(main, memory_format=torch.preserve_format) for name in MOMENTS},
    }
