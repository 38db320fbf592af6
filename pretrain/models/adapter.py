"""Bottleneck adapters (Houlsby et al. 2019, arXiv 1902.00751, section 2.1)."""

from typing import Any

from torch import Tensor, nn

from pretrain.models.kernels import Kernels


class Adapter(nn.Module):
    """x + up(gelu(down(x))), with the GELU of the authors' code. Every tensor rank has both matrices, and computes the
    positions that it has."""

    def __init__(self, kernels: Kernels, size: int, config: Any) -> None:
        super().__init__()
        self.down, self.up = kernels.linear(config.hidden_size, size), kernels.linear(size, config.hidden_size)
        self.activation = kernels.activation["gelu_tanh"]
        for parameter in self.parameters():  # each rank has the gradient of its own positions
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.up(self.activation(self.down(x)))
        return out
