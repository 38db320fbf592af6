"""An RMS norm of the queries or keys of all heads together (OLMoE: Muennighoff et al. 2024, arXiv 2409.02060). Tensor
ranks have some of the heads each: they share the mean square of all.

Shapes: S positions, B rows, N heads on this rank, D width of a head.
"""

import torch
from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn

from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.parameter_gradients import with_fp32_sums
from pretrain.models.rank_sums import sum_over_ranks


class AllHeadsRMSNorm(nn.Module):
    """[S, B, N, D] -> the same shape."""

    def __init__(self, heads: int, config: MegatronConfig, hidden_size: int, eps: float) -> None:
        """`heads`: those of all tensor ranks; `hidden_size`: features of one."""
        super().__init__()
        ranks = config.tensor_model_parallel_size
        self.group = ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp
        self.features, self.eps = heads * hidden_size, eps
        self.weight = nn.Parameter(torch.ones(self.features // ranks))

    def forward(self, x_SBND: Tensor) -> Tensor:
        return with_fp32_sums(self._compute, x_SBND, self.weight)

    def _compute(self, x_SBND: Tensor, weight: Tensor) -> Tensor:
        x = x_SBND.flatten(-2).float()
        squares = sum_over_ranks(x.square().sum(-1, keepdim=True), self.group)
        normed = x * torch.rsqrt(squares / self.features + self.eps)
        out: Tensor = (weight * normed.to(x_SBND.dtype)).view_as(x_SBND)
        return out
