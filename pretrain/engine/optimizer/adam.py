"""Adam, decoupled weight decay or not: torch's fused kernel, in which each weight is updated by itself.

`adamw`: Loshchilov and Hutter 2017, arXiv 1711.05101. `adam`: Kingma and Ba 2014, arXiv 1412.6980, weight decay being
an L2 penalty, part of the gradient.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pretrain.config.optimizer import AdamOptimizer, AdamWOptimizer, Optimizer
from pretrain.model_spec.parameter_spec import ParameterSpec
from pretrain.models.placement import Parameter

MOMENTS = ("exp_avg", "exp_avg_sq")
_VERY_MANY = 1e30
"""updates: fp32 has no greater number next to it that one more would make"""


def adam(settings: AdamOptimizer | AdamWOptimizer, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, settings.learning_rate, (settings.beta1, settings.beta2), settings.eps, fused=True)


def parameter_groups(parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    """Groups of parameters with the same `group_settings`."""
    groups: dict[tuple[float, ...], list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(tuple(group_settings(parameter.spec).values()), []).append(parameter.value)
    names = DEFAULT_GROUP.keys()
    return [{"params": groups[key], **dict(zip(names, key, strict=True))} for key in sorted(groups, reverse=True)]


DEFAULT_GROUP = {"wd_mult": 1.0, "lr_mult": 1.0, "eps_mult": 1.0, "frozen_updates": 0.0}
"""multipliers of weight decay and learning rate, as megatron-core names them, and of eps; and the updates before the
first one"""


def group_settings(spec: ParameterSpec) -> dict[str, float]:
    """Settings of the group of a parameter, under the keys of `DEFAULT_GROUP`."""
    values = spec.wd_mult if spec.decays else 0.0, spec.lr_mult, spec.eps_mult, float(spec.frozen_updates)
    return dict(zip(DEFAULT_GROUP, values, strict=True))


def set_rates(settings: Optimizer, groups: Iterable[dict[str, Any]], learning_rate: float, updates: int) -> None:
    """Sets learning rate, weight decay and eps of each group for the update after `updates` others. The first two are
    zero for groups that are still frozen, whose weights then stay as they are."""
    for group in groups:
        joined = updates >= group["frozen_updates"]
        group["lr"] = learning_rate * group["lr_mult"] * joined
        group["weight_decay"] = settings.weight_decay * group["wd_mult"] * joined
        if isinstance(settings, AdamOptimizer | AdamWOptimizer):
            group["eps"] = settings.eps * group["eps_mult"]


def counted(settings: Optimizer, updates: int) -> float:
    """Number of updates so far, as torch's Adam is to take it. Adam divides the moments by 1 - beta^updates, which is 1
    after very many: where there is no bias correction, there have been so many from the start."""
    corrects = isinstance(settings, AdamOptimizer | AdamWOptimizer) and settings.bias_correction
    return float(updates) if corrects else _VERY_MANY


def adam_state(settings: Optimizer, main: Tensor) -> dict[str, Tensor]:
    """Before the first step: zeros. torch would make it lazily, too late to load into."""
    return {
        "step": torch.tensor(counted(settings, 0), device=main.device),  # where torch's fused kernel wants it
        **{name: torch.zeros_like(main, memory_format=torch.preserve_format) for name in MOMENTS},
    }
