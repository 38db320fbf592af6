"""The parts that a model may have, in the order in which a config asks them: ours, then those of installed packages
(`pretrain.part_keys` and `pretrain.parts`)."""

from collections.abc import Mapping
from typing import Any

from data_pipeline.common.plugins import Registry
from pretrain.config.part import ModelPart
from pretrain.config.part_keys import KEYS_OF_PACKAGES
from pretrain.config.parts.characters import CharactersPart
from pretrain.config.parts.experts import ExpertsPart
from pretrain.config.parts.latent_attention import LatentAttentionPart
from pretrain.config.parts.mtp import MtpPart
from pretrain.config.parts.mup import MupPart
from pretrain.config.parts.recurrent import RecurrentPart
from pretrain.config.parts.source_encoder import SourceEncoderPart

_ROWS: tuple[ModelPart[Any], ...] = (
    SourceEncoderPart(),
    CharactersPart(),
    ExpertsPart(),
    LatentAttentionPart(),
    MtpPart(),
    MupPart(),
    RecurrentPart(),
)
_REGISTRY: Registry[ModelPart[Any]] = Registry("pretrain.parts", {part.key.name: part for part in _ROWS}, ModelPart)
PARTS: Mapping[str, ModelPart[Any]] = {
    **_REGISTRY.built_in,
    **{name: _REGISTRY.require(name) for name in KEYS_OF_PACKAGES},
}
