"""The parts that a model may have, in the order in which a config asks them."""

from collections.abc import Mapping
from typing import Any

from pretrain.config.part import ModelPart
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
PARTS: Mapping[str, ModelPart[Any]] = {part.key.name: part for part in _ROWS}
