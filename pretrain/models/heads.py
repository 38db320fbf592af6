"""What turns the last layer's output into logits."""

from collections.abc import Callable

from torch import Tensor, nn

from pretrain.config.model import Model
from pretrain.models.megatron_config import MegatronConfig


class PlainHead(nn.Module):
    """Logits straight from the last layer, times `scale`."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, hidden_LBH: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        return project(hidden_LBH * self.scale if self.scale != 1 else hidden_LBH)


def plain(model: Model, megatron: MegatronConfig) -> PlainHead:
    """See `network.Head`."""
    return PlainHead()


def scaled_if_tied(model: Model, megatron: MegatronConfig) -> PlainHead:
    """T5's: a head that is the embedding, whose entries have deviation 1, gets its input scaled down."""
    return PlainHead(model.hidden**-0.5 if model.tied_head else 1.0)
