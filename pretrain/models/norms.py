"""Norms whose parameters say whether their gradients are partial (sequence parallelism)."""

from functools import partial
from typing import Any

import torch.nn.functional as F
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from pretrain.models.parameter_gradients import layer_norm, with_fp32_sums


class LayerNorm(nn.LayerNorm):
    """Layer norm whose parameters say whether their gradients are partial (sequence parallelism)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """RMS norm, without mean and bias; its gain says whether its gradient is partial (sequence parallelism)."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        return with_fp32_sums(partial(self.compute, eps=self.eps), x, self.weight)

    @staticmethod
    def compute(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, eps)


class ZeroCenteredRMSNorm(RMSNorm):
    """RMS norm that stores its gain minus one: weight decay, and the few bits of half precision, act on the distance
    from one."""

    @staticmethod
    def compute(x: Tensor, weight: Tensor, eps: float | None) -> Tensor:
        return F.rms_norm(x.float(), weight.shape, 1 + weight.float(), eps).to(x.dtype)
