"""The keys of `model` for all parts: ours, and those of installed packages (`pretrain.part_keys`)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from data_pipeline.common.plugins import Registry
from pretrain.config import characters, experts, latent_attention, mtp, mup, recurrent, source_encoder
from pretrain.config.part_key import PartKey
from pretrain.config.section import Section

KEYS: tuple[PartKey[Any], ...] = (
    source_encoder.KEY,
    characters.KEY,
    experts.KEY,
    latent_attention.KEY,
    mtp.KEY,
    mup.KEY,
    recurrent.KEY,
)
_REGISTRY: Registry[PartKey[Any]] = Registry("pretrain.part_keys", {key.name: key for key in KEYS}, PartKey)
KEYS_OF_PACKAGES: Mapping[str, PartKey[Any]] = {name: _REGISTRY[name] for name in _REGISTRY.plugins}
"""keys of the parts that installed packages add, by name"""


if TYPE_CHECKING:

    class PartKeys(Section):
        """What a type checker knows of them."""

        source_encoder: source_encoder.SourceEncoderShape | None
        characters: characters.CharacterShape | None
        experts: experts.Experts | None
        latent_attention: latent_attention.LatentAttention | None
        mtp: mtp.Mtp | None
        mup: mup.Mup | None
        recurrent: recurrent.Recurrent | None

else:
    PartKeys = Section
