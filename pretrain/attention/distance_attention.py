"""Attention of a layer by vectors of distances: of positions in `pretrain/classics` and of installed packages, by the
names of the positions."""

from typing import ClassVar

from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn

from data_pipeline.common.plugins import Registry
from pretrain.attention.cases import DistanceVectors
from pretrain.attention.patterns.base import Drop
from pretrain.config.classics import declared
from pretrain.config.model import Model


class DistanceAttention(nn.Module):
    """Self-attention of one layer. Its parameters are named in the layer's attention behind `core_attention.` and
    `name`."""

    name: ClassVar[str]
    heads_dim: ClassVar[int] = 1
    """dimension of heads in the table that it is called with"""

    def __init__(self, model: Model, groups: ProcessGroupCollection) -> None:
        super().__init__()

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, distances: Tensor, scale: float, dropout: Drop
    ) -> Tensor:  # fmt: skip
        """See `DistanceVectors`."""
        raise NotImplementedError

    def with_table(self, table: Tensor | None) -> DistanceVectors:
        """Itself with what the layer's self-attention makes of vectors that all layers have in common; None: each has
        its own."""
        return self


_GROUP = "pretrain.distance_attention"
_KINDS: Registry[type[DistanceAttention]] = Registry(_GROUP, {}, DistanceAttention, declared(_GROUP))


def distance_attention(model: Model, groups: ProcessGroupCollection) -> DistanceAttention | None:
    """The attention of one layer; None: the positions of the model have no vectors of distances."""
    return _KINDS.require(model.positions.name)(model, groups) if model.distance_rows else None
