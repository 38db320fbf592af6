"""The parts that a model may have, in the order of their keys, in which a config asks them: ours, and those of
installed packages (`pretrain.part_keys` and `pretrain.parts`)."""

from collections.abc import Mapping
from typing import Any

from data_pipeline.common.plugins import Registry
from pretrain.config.classics import declared
from pretrain.config.model_keys import ModelKeys
from pretrain.config.part import ModelPart
from pretrain.config.part_keys import KEYS, KEYS_OF_PACKAGES
from pretrain.config.parts.experts import ExpertsPart
from pretrain.config.parts.latent_attention import LatentAttentionPart
from pretrain.config.parts.mtp import MtpPart
from pretrain.config.parts.mup import MupPart

_ROWS: tuple[ModelPart[Any], ...] = (
    ExpertsPart(),
    LatentAttentionPart(),
    MtpPart(),
    MupPart(),
)
_GROUP = "pretrain.parts"
_REGISTRY: Registry[ModelPart[Any]] = Registry(
    _GROUP, {part.key.name: part for part in _ROWS}, ModelPart, declared(_GROUP)
)
PARTS: Mapping[str, ModelPart[Any]] = {
    name: _REGISTRY.require(name) for name in ModelKeys.model_fields if name in KEYS or name in KEYS_OF_PACKAGES
}
