"""The modules that make the keys and values of patterns that project them: of `pretrain/classics` and of installed
packages, by the names of the patterns."""

from typing import Any

from megatron.core.process_groups_config import ProcessGroupCollection
from torch import Tensor, nn

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.patterns.base import PatternSettings


class KeyProjection(nn.Module):
    """The projections of one layer, made of the pattern's settings and the `length` of the model's rows. Its parameters
    are named in the layer's attention behind `core_attention.projection.`"""

    def __init__(self, settings: Any, length: int, groups: ProcessGroupCollection) -> None:
        super().__init__()

    def forward(self, key: Tensor, value: Tensor, key_mask_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values of this rank's heads over full sequences, [sequence, batch, heads, width] each -> those that
        queries attend to, all of them. `key_mask_BS`: positions that are not padding; None: all."""
        raise NotImplementedError


_GROUP = "pretrain.pattern_modules"
_MODULES: Registry[type[KeyProjection]] = Registry(_GROUP, {}, KeyProjection, declared(_GROUP))


def projection_of(pattern: PatternSettings, length: int, groups: ProcessGroupCollection) -> KeyProjection | None:
    """Module that projects the keys and values of a layer; None: nothing does."""
    return _MODULES.require(pattern.name)(pattern, length, groups) if pattern.projects_keys else None
