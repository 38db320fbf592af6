"""Attention of a layer by vectors of distances: of positions in `pretrain/classics` and of installed packages, by the
names of the positions."""

from typing import ClassVar

from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn

from data_pipeline.common.plugins import Registry
from pretrain.attention.patterns.base import Drop
from pretrain.config.classics import declared
from pretrain.config.model import Model


class DistanceAttention(nn.Module):
    """Self-attention of one layer. Its parameters are named in the layer's attention behind `core_attention.` and
    `name`."""

    name: ClassVar[str]

    def __init__(self, model: Model, groups: ProcessGroupCollection) -> None:
        super().__init__()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop
    ) -> Tensor:  # fmt: skip
        """See `DistanceVectors`."""
        raise NotImplementedError


_GROUP = "pretrain.distance_attention"
_KINDS: Registry[type[DistanceAttention]] = Registry(_GROUP, {}, DistanceAttention, declared(_GROUP))


def distance_attention(model: Model, groups: ProcessGroupCollection) -> DistanceAttention | None:
    """The attention of one layer; None: the positions of the model have no vectors of distances."""
    name = model.positions.name
    return _KINDS[name](model, groups) if model.distance_rows and name in _KINDS else None
