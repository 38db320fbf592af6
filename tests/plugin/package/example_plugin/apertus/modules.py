"""The feed-forward layer with the activation."""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from torch import Tensor, nn

from example_plugin.apertus.key import KEY
from example_plugin.apertus.specs import BETA
from pretrain.config.model import Model
from pretrain.models.feed_forward import FeedForward
from pretrain.models.megatron_config import MegatronConfig
from pretrain.models.parameter_gradients import with_fp32_sums
from pretrain.models.slots import FeedForwardModule, PartModules


class XieluFeedForward(FeedForward):
    """Every tensor rank has both parameters, whose gradients of its own features are summed over these ranks."""

    def __init__(self, config: MegatronConfig) -> None:
        super().__init__(config)
        self.alpha_p, self.alpha_n = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.group = ProcessGroupCollection.use_mpu_process_groups(["tp"]).tp

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor | None]:
        x, _ = self.linear_fc1(hidden_states)
        both = copy_to_tensor_model_parallel_region(torch.cat((self.alpha_p, self.alpha_n)), group=self.group)
        x = with_fp32_sums(_xielu, x, both)
        out: tuple[Tensor, Tensor | None] = self.linear_fc2(self.dropout(x))
        return out


def _xielu(x: Tensor, alphas: Tensor) -> Tensor:
    alpha_p, alpha_n = F.softplus(alphas)
    # Up to 0: with transformers' -1e-6 the derivative of what lies between would be another.
    negative = (torch.expm1(x.clamp(max=0.0)) - x) * (BETA + alpha_n)
    return torch.where(x > 0, x * x * alpha_p, negative) + BETA * x


class XieluModules(PartModules):
    def feed_forward(self, model: Model, number: int) -> FeedForwardModule | None:
        return XieluFeedForward if KEY.of(model) is not None else None


MODULES = XieluModules()
